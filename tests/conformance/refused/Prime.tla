---- MODULE Prime ----
\* refused at 3:9: an expression of action level
F(x) == x'
====
