---- MODULE Instance ----
\* refused at 4:6: M!Help, of an INSTANCE
M == INSTANCE Helper
F == M!Help
====
