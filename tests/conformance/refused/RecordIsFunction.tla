---- MODULE RecordIsFunction ----
\* refused at 3:6: = between a record and a function
F == [a |-> 1] = [x \in {"a"} |-> 1]
====
