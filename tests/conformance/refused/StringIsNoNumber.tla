---- MODULE StringIsNoNumber ----
\* refused at 3:9: # between a number and a string
F(s) == {1, 2} # {"a"}
====
