---- MODULE OperatorSymbol ----
\* refused at 3:1: the operator symbol ++
a ++ b == {a, b}
====
