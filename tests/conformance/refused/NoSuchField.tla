---- MODULE NoSuchField ----
\* refused at 3:6: the field b, which no such record has
F == [a |-> 1].b
====
