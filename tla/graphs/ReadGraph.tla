---- MODULE ReadGraph ----
(* One Read, driven by every event in every order.  ev is the event that led   *)
(* here: TLC's dump labels an edge with its action's name alone, so the event *)
(* and its arguments travel in the state.                                     *)
EXTENDS Read
VARIABLES s, ev

Init == s = Initial /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>

TypeOK == s \in State
\* Only a read that ended well can be committed, and nothing of it can land any more.
CommittedIsStill == s.phase \in {"done", "committed"} => ~s.landing
ReadingMayLand == s.phase = "reading" => s.landing
AnswerFinal == [][s.phase \in {"committed", "revoked"} => s'.phase = s.phase]_<<s, ev>>
====
