---- MODULE BindingGraph ----
(* One Binding, driven by every event in every order.  ev is the event that led   *)
(* here: TLC's dump labels an edge with its action's name alone, so the event *)
(* and its arguments travel in the state.                                     *)
EXTENDS Binding
VARIABLES s, ev

Init == s = Initial /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>

TypeOK == s \in State
\* At most one run is accepted, and it never changes.
OneRun == \A r, q \in Runs : CanAccept(s, r) /\ CanAccept(s, q) => r = q
Bound == [][s.run # NoRun => s'.run = s.run]_<<s, ev>>
====
