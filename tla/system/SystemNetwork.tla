---------------------------- MODULE SystemNetwork -----------------------------
(***************************************************************************)
(* The network is a set of messages: it reorders always, and duplicates    *)
(* and loses up to a bound.                                                *)
(***************************************************************************)
EXTENDS SystemPrefill, SystemDecode

\* A message arrives; keep: the network has doubled it, and the second one is still under way.
Deliver(m, keep) ==
    /\ m \in net
    /\ IF keep THEN Count("dup") < MaxDup /\ Use("dup") ELSE UNCHANGED used
    /\ m.op # "START" => ev' = [op |-> "Deliver", message |-> m, keep |-> keep]
    /\ CASE m.op = "START"                         -> OnStart(m, keep)
         [] m.op = "READY"                         -> OnReady(m, keep)
         [] m.op \in {"READ_DONE", "READ_FAILED"}  -> OnReport(m, keep)
         [] m.op = "COMMITTED"                     -> OnCommitted(m, keep)
         [] m.op = "REVOKED"                       -> OnRevoked(m, keep)
         [] m.op = "ABORT"                         -> OnAbort(m, keep)
         [] m.op = "RUN_FAILED"                    -> OnRunFailed(m, keep)

\* A message gets lost.
Lose(m) ==
    /\ m \in net
    /\ Count("loss") < MaxLoss
    /\ Use("loss")
    /\ net' = net \ {m}
    /\ ev' = [op |-> "Lose", message |-> m]
    /\ UNCHANGED <<sides, truth, history>>
===============================================================================
