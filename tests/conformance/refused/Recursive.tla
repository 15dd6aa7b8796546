---- MODULE Recursive ----
\* refused at 5:1: the recursive operator Sum
EXTENDS Integers
RECURSIVE Sum(_)
Sum(n) == IF n = 0 THEN 0 ELSE n + Sum(n - 1)
====
