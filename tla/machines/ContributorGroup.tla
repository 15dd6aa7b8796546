--------------------------- MODULE ContributorGroup ---------------------------
(***************************************************************************)
(* The Prefill ranks (members) that feed one Decode rank with one          *)
(* (chunk, layer) of an attempt.  The layer has succeeded only when every  *)
(* member's read is committed; a member with no blocks still ends with a   *)
(* verdict.  It has failed as soon as one member failed, but memory may be *)
(* given away only when it is quiet: no member's copy may still land.      *)
(***************************************************************************)
CONSTANT Members     \* bound of the graph

State == [members : SUBSET Members,
          reading : SUBSET Members,      \* copies that may still land
          done    : SUBSET Members,
          failed  : SUBSET Members]

Initial(members) == [members |-> members, reading |-> {}, done |-> {}, failed |-> {}]

CanBegin(s, m) == m \in s.members
Begin(s, m) == [s EXCEPT !.reading = @ \cup {m}]

\* m's copy is known to have stopped.
CanLanded(s, m) == m \in s.reading
Landed(s, m) == [s EXCEPT !.reading = @ \ {m}]

CanDone(s, m) == m \in s.members /\ m \notin s.failed
Done(s, m) == [s EXCEPT !.done = @ \cup {m}]

CanFail(s, m) == m \in s.members /\ m \notin s.done
Fail(s, m) == [s EXCEPT !.failed = @ \cup {m}]

CanSucceed(s) == s.done = s.members
CanQuiet(s) == s.reading = {}

Events == [op : {"Begin", "Landed", "Done", "Fail"}, member : Members]

Enabled(s, e) ==
    CASE e.op = "Begin"  -> CanBegin(s, e.member)
      [] e.op = "Landed" -> CanLanded(s, e.member)
      [] e.op = "Done"   -> CanDone(s, e.member)
      [] e.op = "Fail"   -> CanFail(s, e.member)

Step(s, e) ==
    CASE e.op = "Begin"  -> Begin(s, e.member)
      [] e.op = "Landed" -> Landed(s, e.member)
      [] e.op = "Done"   -> Done(s, e.member)
      [] e.op = "Fail"   -> Fail(s, e.member)
===============================================================================
