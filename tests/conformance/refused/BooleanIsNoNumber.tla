---- MODULE BooleanIsNoNumber ----
\* refused at 3:6: = between a number and a boolean
F == 1 = TRUE
====
