---- MODULE SequenceSet ----
\* refused at 4:15: the operator Seq
EXTENDS Sequences
F(x) == x \in Seq({1})
====
