---- MODULE Extended ----
\* refused at 4:6: Help, defined in Helper.tla
EXTENDS Helper
F == Help
====
