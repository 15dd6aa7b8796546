--------------------------------- MODULE Peer ---------------------------------
(***************************************************************************)
(* One life of Decode, as Prefill knows it.                                *)
(*                                                                         *)
(* alive -> gone -> fenced -> lost;  with read_lease also gone -> lost     *)
(*                                                                         *)
(* A life is gone when another one answers at its address.  That it is     *)
(* gone proves nothing about its copies: a device may go on reading for a  *)
(* process that has died.  Only when the backend has fenced it can none of *)
(* them run any more, and only then, in seed mode, is what it had not yet  *)
(* read taken back.  With read_lease nothing that a dead Decode reads is   *)
(* ever believed, so nothing more than its end need be known.              *)
(***************************************************************************)

State == [phase : {"alive", "gone", "fenced", "lost"}]

Initial == [phase |-> "alive"]

\* May this life ask for runs?
CanAsk(s) == s.phase = "alive"

\* Another life has answered in its place.
CanGo(s) == s.phase = "alive"
Go(s) == [s EXCEPT !.phase = "gone"]

\* None of its copies can run any more.
CanFence(s) == s.phase = "gone"
Fence(s) == [s EXCEPT !.phase = "fenced"]

\* Everything that is held for it ends.
CanLose(s, lease) == /\ s.phase \in {"gone", "fenced"}
                     /\ lease \/ s.phase = "fenced"
Lose(s) == [s EXCEPT !.phase = "lost"]

Events == [op : {"Go", "Fence"}] \cup [op : {"Lose"}, lease : BOOLEAN]

Enabled(s, e) ==
    CASE e.op = "Go"    -> CanGo(s)
      [] e.op = "Fence" -> CanFence(s)
      [] e.op = "Lose"  -> CanLose(s, e.lease)

Step(s, e) ==
    CASE e.op = "Go"    -> Go(s)
      [] e.op = "Fence" -> Fence(s)
      [] e.op = "Lose"  -> Lose(s)
===============================================================================
