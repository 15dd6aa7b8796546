---------------------------- MODULE SystemNetwork -----------------------------
(***************************************************************************)
(* The network is a set of messages: it reorders always, and duplicates    *)
(* and loses up to a bound.                                                *)
(***************************************************************************)
EXTENDS SystemRetire

\* A message arrives; keep: the network has doubled it, and the second one is still under way.
Deliver(m, keep) ==
    /\ m \in net
    /\ m.op = "READY" => lives.began[m.transfer[1]] <= lives.met      \* the handshake comes first
    /\ IF keep THEN Count("dup") < MaxDup /\ Use("dup") ELSE UNCHANGED used
    /\ m.op # "START" => ev' = [op |-> "Deliver", message |-> m, keep |-> keep]
    /\ CASE m.op = "START"                         -> IF PE!CanAsk(lives.peers[lives.born[m.attempt]]) THEN OnStart(m, keep)
                                                                                                   ELSE OnLateStart(m, keep)
         [] m.op = "READY"                         -> OnReady(m, keep)
         [] m.op \in {"READ_DONE", "READ_FAILED"}  -> OnReport(m, keep)
         [] m.op = "COMMITTED"                     -> OnCommitted(m, keep)
         [] m.op = "REVOKED"                       -> OnRevoked(m, keep)
         [] m.op = "ABORT"                         -> OnAbort(m, keep)
         [] m.op = "RUN_FAILED"                    -> OnRunFailed(m, keep)
         [] m.op = "RETIRE"                        -> OnRetire(m, keep)
         [] m.op = "RETIRED"                       -> OnRetired(m, keep)

\* A message gets lost.
Lose(m) ==
    /\ m \in net
    /\ Count("loss") < MaxLoss
    /\ Use("loss")
    /\ net' = net \ {m}
    /\ ev' = [op |-> "Lose", message |-> m]
    /\ UNCHANGED <<sides, truth, history>>
===============================================================================
