---- MODULE Temporal ----
\* refused at 3:9: an expression of temporal level
F(x) == []x
====
