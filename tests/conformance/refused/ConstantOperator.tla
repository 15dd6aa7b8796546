---- MODULE ConstantOperator ----
\* refused at 3:10: the constant operator Op
CONSTANT Op(_)
F == Op(1)
====
