---- MODULE Variable ----
\* refused at 4:10: the variable x
EXTENDS Integers
VARIABLE x
F == 1
====
