---- MODULE FailureInvalidationGraph ----
(* One FailureInvalidation, driven by every event in every order.  ev is the event that led   *)
(* here: TLC's dump labels an edge with its action's name alone, so the event *)
(* and its arguments travel in the state.                                     *)
EXTENDS FailureInvalidation
VARIABLES s, ev

Init == s = Initial /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>

TypeOK == s \in State
\* Blocks return only when every rank is closed and drained.
InOrder == /\ s.drained \subseteq s.closed
           /\ s.phase = "reclaimed" => s.ranks \subseteq s.drained
           /\ s.closed # {} => s.phase \in {"draining", "reclaimed"}
\* What is poisoned is never valid again.
PoisonStays == [][s.phase = "poisoned" => s'.phase \in {"poisoned", "draining"}]_<<s, ev>>
\* It is forgotten only when it is reclaimed, and stays forgotten: its nonce is used.
ForgetsInTime == [][/\ s'.phase = "forgotten" => s.phase \in {"reclaimed", "forgotten"}
                    /\ s.phase = "forgotten" => s' = s]_<<s, ev>>
====
