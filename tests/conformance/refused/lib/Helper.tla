---- MODULE Helper ----
Help == 1
====
