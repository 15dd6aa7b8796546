---- MODULE PoolObjectGraph ----
(* One PoolObject, driven by every event in every order.  ev is the event that led   *)
(* here: TLC's dump labels an edge with its action's name alone, so the event *)
(* and its arguments travel in the state.                                     *)
EXTENDS PoolObject
VARIABLES s, ev

Init == s = Initial /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>

TypeOK == s \in State
\* I4: readable only after all its layers are written.
PublishAfterComplete == s.phase = "readable" => s.written = s.layers /\ s.layers # {}
\* A pin keeps the object.
PinKeeps == s.pins # {} => s.phase = "readable"
WriteOnce == [][s.phase \in {"failed", "gone"} => s'.phase = s.phase]_<<s, ev>>
====
