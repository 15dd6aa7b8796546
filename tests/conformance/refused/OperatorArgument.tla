---- MODULE OperatorArgument ----
\* refused at 4:1: the operator parameter Op of G
F(x) == x
G(Op(_)) == 1
H == G(F)
====
