---- MODULE PhysicalBufferGraph ----
(* One PhysicalBuffer, driven by every event in every order.  ev is the event that led   *)
(* here: TLC's dump labels an edge with its action's name alone, so the event *)
(* and its arguments travel in the state.                                     *)
EXTENDS PhysicalBuffer
VARIABLES s, ev

Init == s = Initial /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>

TypeOK == s \in State
\* An open gate means that nobody needs the contents: not an attention, a save, a transfer, nor the owner.
GateShut == s.phase = "free" => s.attending = {} /\ s.saves = {} /\ s.transfers = {} /\ s.owner = NoRun
\* A load or a computation belongs to the epoch that it writes.
EpochNamed == s.phase # "free" => s.epoch > 0
\* Readers are named only by a write: nothing is published from a slot in its first load.
PublishAfterWrite == s.phase = "loading" => s.transfers = {} /\ s.saves = {} /\ s.attending = {}
\* Only the gate gives the slot to a new epoch.
EpochByClaim == [][s'.epoch # s.epoch => s.phase = "free" /\ s'.epoch = s.epoch + 1]_<<s, ev>>
====
