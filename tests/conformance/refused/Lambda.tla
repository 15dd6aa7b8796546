---- MODULE Lambda ----
\* refused at 3:1: the operator parameter Op of F
F(Op(_)) == 1
G == F(LAMBDA x : x)
====
