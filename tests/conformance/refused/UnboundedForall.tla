---- MODULE UnboundedForall ----
\* refused at 3:9: the unbounded \A
F(S) == \A x : x \in S
====
