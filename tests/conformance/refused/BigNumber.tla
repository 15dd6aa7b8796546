---- MODULE BigNumber ----
\* refused at 3:6: the number 2147483648
F == 2147483648
====
