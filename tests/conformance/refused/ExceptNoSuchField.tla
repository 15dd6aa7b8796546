---- MODULE ExceptNoSuchField ----
\* refused at 3:26: EXCEPT on b, which is no field of the record
F == [[a |-> 1] EXCEPT !.b = 2]
====
