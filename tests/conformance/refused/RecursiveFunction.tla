---- MODULE RecursiveFunction ----
\* refused at 4:1: a recursive function
EXTENDS Integers
f[n \in 0..3] == IF n = 0 THEN 0 ELSE f[n - 1]
====
