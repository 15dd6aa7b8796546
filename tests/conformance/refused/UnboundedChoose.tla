---- MODULE UnboundedChoose ----
\* refused at 3:9: the unbounded CHOOSE
F(S) == CHOOSE x : x \notin S
====
