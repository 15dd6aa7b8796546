----------------------------- MODULE SystemRetire -----------------------------
(***************************************************************************)
(* What is over is forgotten, so that a server which has served many       *)
(* requests remembers the live ones only (Retiring).                       *)
(*                                                                         *)
(* Decode says RETIRE of an attempt whose blocks are reclaimed, again and  *)
(* again until it is answered, and then forgets the attempt with all its   *)
(* reads.  RETIRE only marks the runs of the attempt, the leader's first   *)
(* and then, as they hear of it, the others': each ends as it would have   *)
(* (its transfers are refused), and is forgotten when it is over, every    *)
(* transfer has its verdict, and no copy of it is under way.  A member     *)
(* forgets a run only when its leader has ended it, for from whoever has   *)
(* forgotten nobody hears that it failed; the leader forgets last, and     *)
(* with it the group forgets the objects in the pool.                      *)
(* A run that failed says so until it is marked, and Decode answers with   *)
(* RETIRE where it knows no such attempt: so a run that a late START made  *)
(* for an attempt long over does not stay for ever.                        *)
(*                                                                         *)
(* A nonce is never used again (CanStart, CanOwn).  Physical truth and     *)
(* history are not forgotten: properties go on to look at them.            *)
(***************************************************************************)
EXTENDS SystemPrefill, SystemDecode
LOCAL INSTANCE TLC      \* TLCEval: a long trace would drag along every function that TLC has not looked at yet

\* Decode will never read anything of attempt a again; said until it is answered.
Retire(a) ==
    /\ Retiring
    /\ Known(a)
    /\ FI!CanForget(dests[a])
    /\ RETIRE(a) \notin net
    /\ net' = net \cup {RETIRE(a)}
    /\ ev' = [op |-> "Retire", attempt |-> a]
    /\ UNCHANGED <<sides, used, truth, history>>

\* RETIRE: the leader's runs of this attempt may be forgotten, once they are over.
OnRetire(m, keep) ==
    /\ runs' = [runs EXCEPT ![Leader] = [r \in Runs |->
            IF Ours(r) /\ @[r].attempt = m.attempt /\ PR!CanRetire(@[r]) THEN PR!Retire(@[r]) ELSE @[r]]]
    /\ net' = Rest(m, keep) \cup {[op |-> "RETIRED", attempt |-> m.attempt]}
    /\ UNCHANGED <<slots, transfers, pool, lane, attempts, bindings, dests, groups, reads, block, truth, history>>

\* RETIRED: Decode forgets the attempt, its destination, its groups and its reads.
OnRetired(m, keep) ==
    LET a == m.attempt IN
    /\ net' = Rest(m, keep)
    /\ IF Known(a) /\ FI!CanForget(dests[a])
       THEN /\ attempts' = [attempts EXCEPT ![a] = RC!Initial]
            /\ bindings' = [bindings EXCEPT ![a] = BI!Initial]
            /\ dests' = [dests EXCEPT ![a] = FI!Forget(@)]
            /\ groups' = TLCEval([g \in DOMAIN groups |-> IF g[1] = a THEN CG!Initial(Members) ELSE groups[g]])
            /\ reads' = TLCEval([t \in Transfers |-> IF runs[t[4]][t[1]].attempt = a THEN RD!Initial ELSE reads[t]])
       ELSE UNCHANGED <<attempts, bindings, dests, groups, reads>>
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, block, truth, history>>

\* The leader has heard RETIRE of run r, and member m hears of it.
Heed(m, r) ==
    /\ Retiring
    /\ runs[Leader][r].retired /\ ~runs[m][r].retired
    /\ PR!CanRetire(runs[m][r])
    /\ runs' = [runs EXCEPT ![m][r] = PR!Retire(@)]
    /\ ev' = [op |-> "Heed", member |-> m, run |-> r]
    /\ UNCHANGED <<slots, transfers, pool, lane, attempts, bindings, dests, groups, reads, block, net, used, truth, history>>

\* Does what the other members do let m forget run r?
LetForget(m, r) == IF m = Leader THEN \A n \in Members \ {m} : runs[n][r].phase = "forgotten"
                                 ELSE runs[Leader][r].phase \in {"done", "failed"}

\* Member m forgets run r and its transfers; the leader, the group's records in the pool too.
Forget(m, r) ==
    /\ Retiring
    /\ Started(m, r)
    /\ PR!CanForget(runs[m][r], HeldBy(m, r))
    /\ LetForget(m, r)
    /\ runs' = [runs EXCEPT ![m][r] = Forgotten(@)]
    /\ transfers' = TLCEval([t \in Transfers |-> IF t[1] = r /\ t[4] = m THEN TR!Initial ELSE transfers[t]])
    /\ pool' = IF m = Leader THEN [o \in DOMAIN pool |-> IF o[1] = r THEN PO!Initial ELSE pool[o]] ELSE pool
    /\ ev' = [op |-> "Forget", member |-> m, run |-> r]
    /\ UNCHANGED <<slots, lane, attempts, bindings, dests, groups, reads, block, net, used, truth, history>>

\* RUN_FAILED is said again, by the leader, until the attempt is retired.
ResendFailed(r) ==
    /\ Retiring
    /\ PR!Untold(runs[Leader][r])
    /\ RunFailed(Leader, r) \notin net
    /\ net' = net \cup {RunFailed(Leader, r)}
    /\ ev' = [op |-> "ResendFailed", run |-> r]
    /\ UNCHANGED <<sides, used, truth, history>>
===============================================================================
