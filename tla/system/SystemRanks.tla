----------------------------- MODULE SystemRanks ------------------------------
(***************************************************************************)
(* What the other ranks of a Decode instance do.                           *)
(*                                                                         *)
(* The ranks are one peer: rank 0 has the only session, is told of every   *)
(* rank's reads, and answers for all.  A layer has arrived when every      *)
(* member's transfer is committed, to whatever rank it goes (the members   *)
(* of ContributorGroup are all of them), and the blocks go back when no    *)
(* rank's copy may land any more.  So what is left is                      *)
(*   each rank's part of a destination (Sends, in SystemState);            *)
(*   its registration: an attempt is advertised when every rank has its    *)
(*   destination (Registered asks);                                        *)
(*   the forward: rank 0 says it to all, all compute, each its own share,  *)
(*   and they meet at its end; inference has ended only after that (Finish *)
(*   asks).                                                                *)
(* What rank 0 says to another arrives in its order and is never lost; the *)
(* words themselves (OWN, READ, FORWARD, RECLAIM) are therefore left out,  *)
(* and only what a rank is at stands in io.                                *)
(***************************************************************************)
EXTENDS SystemState

\* Rank k has registered the destination of attempt a, and rank 0 hears of it.
Owned(a, k) ==
    /\ Registering(a, k)
    /\ io' = io \ {[op |-> "own", attempt |-> a, rank |-> k]}
    /\ ev' = [op |-> "Owned", attempt |-> a, rank |-> k]
    /\ UNCHANGED <<sides, net, used, mem, pooled, dest, registered, taken, owner, history>>

\* Every rank begins a forward of attempt a.  (One rank alone has nobody to wait for: there inference is one stretch of time.)
Forward(a) ==
    /\ DecodeRanks # {Rank}
    /\ attempts[a].phase = "scheduled"
    /\ ~Computing(a)
    /\ io' = io \cup {[op |-> "forward", attempt |-> a, rank |-> k] : k \in DecodeRanks}
    /\ ev' = [op |-> "Forward", attempt |-> a]
    /\ UNCHANGED <<sides, net, used, mem, pooled, dest, registered, taken, owner, history>>

\* Rank k has computed its part, and waits for the others.
ForwardEnd(a, k) ==
    /\ [op |-> "forward", attempt |-> a, rank |-> k] \in io
    /\ io' = io \ {[op |-> "forward", attempt |-> a, rank |-> k]}
    /\ ev' = [op |-> "ForwardEnd", attempt |-> a, rank |-> k]
    /\ UNCHANGED <<sides, net, used, mem, pooled, dest, registered, taken, owner, history>>
===============================================================================
