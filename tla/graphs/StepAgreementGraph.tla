---- MODULE StepAgreementGraph ----
(* One StepAgreement, driven by every event in every order.  ev is the event that led here: *)
(* TLC's dump labels an edge with its action's name alone, so the event and its arguments    *)
(* travel in the state.                                                                      *)
EXTENDS StepAgreement
VARIABLES s, ev

Init == (\E ms \in SUBSET Members : s = Initial(ms)) /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>

TypeOK == s \in State
\* Who enters first finds everybody ready.
AllOrNone == [][(s.entered = {} /\ s'.entered # {}) => s.ready = s.members]_<<s, ev>>
====
