---- MODULE Assertion ----
\* refused at 4:6: the operator Assert
EXTENDS TLC
F == Assert(TRUE, "no")
====
