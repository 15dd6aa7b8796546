---- MODULE RecursiveLet ----
\* refused at 5:13: the recursive operator G
EXTENDS Integers
F(n) == LET RECURSIVE G(_)
            G(x) == IF x = 0 THEN 0 ELSE G(x - 1)
        IN G(n)
====
