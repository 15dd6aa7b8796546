---- MODULE OperatorParameter ----
\* refused at 3:1: the operator parameter Op of F
F(Op(_), x) == Op(x)
====
