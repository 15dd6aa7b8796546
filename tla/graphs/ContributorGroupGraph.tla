---- MODULE ContributorGroupGraph ----
(* One ContributorGroup, driven by every event in every order.  ev is the event that led   *)
(* here: TLC's dump labels an edge with its action's name alone, so the event *)
(* and its arguments travel in the state.                                     *)
EXTENDS ContributorGroup
VARIABLES s, ev

Init == (\E ms \in SUBSET Members : s = Initial(ms)) /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>

TypeOK == s \in State
\* Every member has one verdict at most, and success needs all of them.
OneVerdict == s.done \cap s.failed = {}
SuccessIsAll == CanSucceed(s) => s.failed = {} \/ s.members = {}
VerdictsStay == [][s.done \subseteq s'.done /\ s.failed \subseteq s'.failed]_<<s, ev>>
====
