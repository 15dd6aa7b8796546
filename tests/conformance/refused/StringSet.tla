---- MODULE StringSet ----
\* refused at 3:15: the operator STRING
F(x) == x \in STRING
====
