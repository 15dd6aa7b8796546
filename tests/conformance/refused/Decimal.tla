---- MODULE Decimal ----
\* refused at 3:6: a decimal number
F == 1.5
====
