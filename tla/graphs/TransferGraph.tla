---- MODULE TransferGraph ----
(* One Transfer, driven by every event in every order.  ev is the event that led   *)
(* here: TLC's dump labels an edge with its action's name alone, so the event *)
(* and its arguments travel in the state.                                     *)
EXTENDS Transfer
VARIABLES s, ev

Init == s = Initial /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>

TypeOK == s \in State
\* Only what is held may get a verdict, and a verdict never changes.
VerdictFinal == [][s.phase \in {"done", "failed", "revoked", "lost"} => s' = s]_<<s, ev>>
\* COMMITTED is the answer to done alone.
CommitsOnlyDone == Reply(s) = "COMMITTED" => s.phase = "done"
====
