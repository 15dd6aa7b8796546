---- MODULE Power ----
\* refused at 4:6: the operator ^
EXTENDS Integers
F == 2 ^ 3
====
