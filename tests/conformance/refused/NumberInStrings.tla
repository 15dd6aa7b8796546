---- MODULE NumberInStrings ----
\* refused at 3:6: \in between a number and a string
F == 1 \in {"a"}
====
