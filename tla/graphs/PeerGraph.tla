---- MODULE PeerGraph ----
(* One Peer, driven by every event in every order.  ev is the event that led   *)
(* here: TLC's dump labels an edge with its action's name alone, so the event *)
(* and its arguments travel in the state.                                     *)
EXTENDS Peer
VARIABLES s, ev

Init == s = Initial /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>

TypeOK == s \in State
\* Without a lease only what is fenced is lost.
LostIsFenced == [][(s'.phase = "lost" /\ s.phase # "lost" /\ ~ev'.lease) => s.phase = "fenced"]_<<s, ev>>
\* No life comes back, and none is lost that may still be alive.
OneWay == [][/\ s'.phase = "lost" => s.phase # "alive"
             /\ s.phase = "lost" => s'.phase = "lost"
             /\ s.phase = "fenced" => s'.phase \in {"fenced", "lost"}]_<<s, ev>>
====
