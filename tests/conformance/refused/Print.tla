---- MODULE Print ----
\* refused at 4:6: the operator PrintT
EXTENDS TLC
F == PrintT(1)
====
