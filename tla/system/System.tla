-------------------------------- MODULE System --------------------------------
(***************************************************************************)
(* The Prefill ranks, the Decode ranks that they feed, and all that may go *)
(* wrong between.                                                          *)
(*                                                                         *)
(* Modelled: groups of any size, one for each Decode rank; several requests*)
(* in one step (lanes);                                                    *)
(* layers that share slots and layers that own one; runs in several       *)
(* chunks, each layer saved to a host pool and reloaded from it, which give *)
(* way to others between two of them;                                      *)
(* attempts on Decode that own blocks, one after the other the same ones;  *)
(* a network that reorders always, and duplicates and loses up to a bound; *)
(* failed saves, evictions, failed loads; reads that fail quietly and reads*)
(* whose failure leaves unknown whether bytes still land; aborts (a client,*)
(* or Decode's own deadline); a proxy that retries (START twice); with     *)
(* ReadLease, revocation at any time (a lease is a clock; safety may not   *)
(* depend on it, so here it may run out whenever it likes).                *)
(*                                                                         *)
(* Every decision is a guard of a machine: the operators M!CanX.  The      *)
(* sessions in protocol/ are this module's actions, in Python, on the same *)
(* machines; an action here is one call there, and `ev` is its label.      *)
(*                                                                         *)
(*   SystemState      variables, machines, beginning, what settles itself  *)
(*   SystemPrefill    SystemDecode    SystemNetwork    the actions         *)
(*   SystemRanks      what the other Decode ranks do                       *)
(*   SystemRetire     what is over is forgotten (Retiring)                 *)
(*   SystemCrash      a side dies, and comes back as another life          *)
(*   SystemSafety     SystemWitnesses   what must never be; what must occur*)
(*   this module      what may happen next, and what must happen at last   *)
(***************************************************************************)
EXTENDS SystemCrash, SystemRanks, SystemSafety, SystemWitnesses

Worker == \E m \in Members, r \in Runs : Claim(m, r) \/ Write(m, r) \/ Miss(m, r) \/ GiveWay(m, r)
Group == \E m \in Members, r \in Runs : Join(m, r) \/ Stop(m, r)
Device == \E t \in Transfers : LayerDone(t) \/ (\E ok \in BOOLEAN : SaveEnd(t, ok) \/ LoadEnd(t, ok))
Remote == \E t \in Transfers, a \in Attempts : Landed(t, a) \/ \E how \in {"ok", "quiet", "unknown"} : ReadEnd(t, a, how)
Resend == \E t \in Transfers : ResendReady(t) \/ ResendReport(t)
Client == \E a \in Attempts : \/ \E b \in Blocks : Admit(a, b)
                              \/ Registered(a) \/ Schedule(a) \/ Finish(a) \/ Abort(a)
Faults == (\E t \in Transfers : Revoke(t)) \/ (\E o \in Runs \X Chunks : Evict(o))
Forgetting == (\E a \in Attempts : Retire(a)) \/ (\E r \in Runs : ResendFailed(r) \/ \E m \in Members : Heed(m, r) \/ Forget(m, r))
Ranks == \E a \in Attempts : Forward(a) \/ \E k \in DecodeRanks : Owned(a, k) \/ ForwardEnd(a, k)
Network == \E m \in net : Lose(m) \/ \E keep \in BOOLEAN : Deliver(m, keep)

Next == \/ (Worker \/ Group \/ Device \/ Remote \/ Resend \/ Client \/ Faults \/ Forgetting \/ Ranks \/ Network) /\ Born
        \/ Crash
Spec == Init /\ [][Next]_vars

\* For configurations of several members: attentions and saves, which the members do not share, end before anything else
\* happens.  What they do to a gate meanwhile is explored with one member.
Eager == (\E x \in io : x.op \in {"attend", "save"}) => ev'.op \in {"LayerDone", "SaveEnd"}
\* Where nothing is lost, nothing need be said again.
Calm == /\ Eager
        /\ ev'.op \notin {"ResendReady", "ResendReport", "ResendFailed"}
        /\ ev'.op = "Retire" => [op |-> "RETIRED", attempt |-> ev'.attempt] \notin net

-------------------------------------------------------------------------------
(* Liveness.                                                                *)

Messages == [op : {"START", "RETIRE", "RETIRED"}, attempt : Attempts]
            \cup [op : {"ABORT"}, attempt : Attempts, member : Members]
            \cup [op : {"READY"}, transfer : Transfers, attempt : Attempts, epoch : 1..Cardinality(Runs \X Steps), final : BOOLEAN]
            \cup [op : {"READ_DONE", "READ_FAILED"}, transfer : Transfers, reader : Lives]
            \cup [op : {"COMMITTED", "REVOKED"}, transfer : Transfers]
            \cup [op : {"RUN_FAILED"}, run : Runs, attempt : Attempts, member : Members]
Working == \A m \in Members, r \in Runs : /\ WF_vars(Claim(m, r)) /\ WF_vars(Write(m, r)) /\ WF_vars(Miss(m, r))
                                          /\ WF_vars(Join(m, r)) /\ WF_vars(Stop(m, r))
Fair == /\ Working
        /\ \A t \in Transfers : WF_vars(LayerDone(t)) /\ WF_vars(SaveEnd(t, TRUE)) /\ WF_vars(LoadEnd(t, TRUE))
        /\ \A t \in Transfers : WF_vars(ResendReady(t)) /\ WF_vars(ResendReport(t))
        /\ \A t \in Transfers, a \in Attempts : WF_vars(ReadEnd(t, a, "ok")) /\ WF_vars(Landed(t, a))
        /\ \A a \in Attempts : WF_vars(Registered(a)) /\ WF_vars(Schedule(a)) /\ WF_vars(Finish(a))
        /\ \A m \in Messages : WF_vars(Deliver(m, FALSE))
        /\ Retiring => /\ \A a \in Attempts : WF_vars(Retire(a))
                       /\ \A r \in Runs : WF_vars(ResendFailed(r)) /\ \A m \in Members : WF_vars(Heed(m, r)) /\ WF_vars(Forget(m, r))
FairSpec == Spec /\ Fair
\* Decode's deadline: whoever may be aborted is, some day, unless it is complete by then.
DeadlineSpec == FairSpec /\ \A a \in Attempts : WF_vars(Abort(a))
\* Only Prefill is alive, and its leases run out: nothing is expected of Decode or the network.
LeaseSpec == /\ Spec
             /\ Working
             /\ \A t \in Transfers : WF_vars(LayerDone(t)) /\ WF_vars(SaveEnd(t, TRUE)) /\ WF_vars(LoadEnd(t, TRUE))
             /\ \A t \in Transfers : WF_vars(Revoke(t))

\* L1: every run gets its verdict, every gate opens again, every attempt ends.
EveryRunEnds == \A m \in Members, r \in Runs : runs[m][r].phase = "running" ~> runs[m][r].phase \in {"done", "failed"}
EveryGateOpens == \A m \in Members, i \in Gates : slots[m][i].phase # "free" ~> slots[m][i].phase = "free"
EveryAttemptEnds == \A a \in Attempts : attempts[a].phase # "idle" ~> attempts[a].phase \in {"failed", "released"}
\* And what is over is forgotten.
AllIsForgotten == \A m \in Members, r \in Runs : runs[m][r].phase # "idle" ~> runs[m][r].phase = "forgotten"
\* L2: whatever happened, the blocks come back.
BlocksReturn == \A a \in Attempts : dests[a].phase \in {"draining", "poisoned"} ~> dests[a].phase = "reclaimed"
===============================================================================
