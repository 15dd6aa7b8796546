---- MODULE UnboundedExists ----
\* refused at 3:9: the unbounded \E
F(S) == \E x : x \in S
====
