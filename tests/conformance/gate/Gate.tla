---- MODULE Gate ----
(* A small gate, for the tests of the toolchain. *)
EXTENDS Naturals
CONSTANTS Members, MaxGen

State == [phase : {"Free", "Live"}, gen : 0..MaxGen, acked : SUBSET Members]
\* A gate may begin at any generation.
Initial(g) == [phase |-> "Free", gen |-> g, acked |-> {}]

Holds(s, m) == s.phase = "Live" /\ m \notin s.acked
CanAlloc(s) == s.phase = "Free"
Alloc(s) == [s EXCEPT !.phase = "Live", !.gen = @ + 1, !.acked = {}]
CanAck(s, m) == Holds(s, m)
Ack(s, m) == [s EXCEPT !.acked = @ \cup {m}]
CanRelease(s, all) == /\ s.phase = "Live"
                      /\ \A m \in all : m \in s.acked
Release(s) == [s EXCEPT !.phase = "Free"]

Events == [op : {"Alloc", "Release"}] \cup [op : {"Ack"}, member : Members]
Enabled(s, e) ==
    CASE e.op = "Alloc"   -> CanAlloc(s) /\ s.gen < MaxGen
      [] e.op = "Ack"     -> CanAck(s, e.member)
      [] e.op = "Release" -> CanRelease(s, Members)
Step(s, e) ==
    CASE e.op = "Alloc"   -> Alloc(s)
      [] e.op = "Ack"     -> Ack(s, e.member)
      [] e.op = "Release" -> Release(s)
====
