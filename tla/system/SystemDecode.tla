----------------------------- MODULE SystemDecode -----------------------------
(***************************************************************************)
(* What Decode does: the life of an attempt, the ends of its copies, and   *)
(* what each message to it does.  An action is one call of DecodeSession   *)
(* (protocol/decode.py), under the same name.  Several Decode ranks have   *)
(* one session, that of rank 0: what the others do is in SystemRanks.      *)
(***************************************************************************)
EXTENDS SystemState

-------------------------------------------------------------------------------
(* Decode: the life of an attempt.                                          *)

\* Decode admits attempt a with block set b; the destination is not yet registered.
Admit(a, b) ==
    /\ RC!CanAllocate(attempts[a]) /\ FI!CanOwn(dests[a])
    /\ IF a = 1 THEN TRUE ELSE dests[a - 1].phase # "idle"      \* nonces are used in order
    /\ owner[b] = 0
    /\ attempts' = [attempts EXCEPT ![a] = SettleAttempt(RC!Allocate(@, Layers))]
    /\ dests' = [dests EXCEPT ![a] = Emptied(FI!Own(@, {Rank}), {})]
    /\ owner' = [owner EXCEPT ![b] = a]
    /\ block' = [block EXCEPT ![a] = b]
    /\ dest' = [dest EXCEPT ![b] = [cl \in Steps |-> [p \in Parts |-> Empty]]]
    /\ net' = net \cup (IF attempts'[a].phase = "advertised" THEN {[op |-> "START", attempt |-> a]} ELSE {})
    /\ io' = io \cup {[op |-> "own", attempt |-> a, rank |-> k] : k \in DecodeRanks \ {Rank}}
    /\ ev' = [op |-> "Admit", attempt |-> a, block |-> b]
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, bindings, groups, reads, used, mem, pooled, registered, taken, history>>

\* The backend of every rank has registered the destination: now, not before, Prefill hears of it.
Registered(a) ==
    /\ Known(a) /\ a \notin registered
    /\ \A k \in DecodeRanks : ~Registering(a, k)
    /\ RC!CanRegister(attempts[a])
    /\ registered' = registered \cup {a}
    /\ attempts' = [attempts EXCEPT ![a] = SettleAttempt(RC!Register(@))]
    /\ net' = net \cup (IF attempts'[a].phase = "advertised" THEN {[op |-> "START", attempt |-> a]} ELSE {})
    /\ ev' = [op |-> "Registered", attempt |-> a]
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, bindings, dests, groups, reads, block, used, mem, pooled, dest, io, taken, owner, history>>

\* Everything has arrived: inference begins and reads the destination.
Schedule(a) ==
    /\ Known(a)
    /\ RC!CanSchedule(attempts[a])
    /\ attempts' = [attempts EXCEPT ![a] = RC!Schedule(@)]
    /\ ev' = [op |-> "Schedule", attempt |-> a]
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, bindings, dests, groups, reads, block, net, used, truth, history>>

\* Inference has ended, at every rank; the blocks go back.
Finish(a) ==
    /\ Known(a)
    /\ ~Computing(a)
    /\ RC!CanFinish(attempts[a])
    /\ Settle(a, RC!Finish(attempts[a]), IF FI!CanDrain(dests[a]) THEN FI!Drain(dests[a]) ELSE dests[a], Open(a, groups))
    /\ ev' = [op |-> "Finish", attempt |-> a]
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, bindings, groups, reads, block, net, used, bytes, history>>

\* The client gives up, or Decode's deadline passes: the attempt fails and each member is told, once.
Abort(a) ==
    /\ Known(a)
    /\ Count("abort") < MaxAbort
    /\ RC!CanFail(attempts[a])
    /\ Use("abort")
    /\ Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups))
    /\ net' = net \cup {[op |-> "ABORT", attempt |-> a, member |-> m] : m \in Members}
    /\ blamed' = blamed \cup {<<"attempt", a>>}
    /\ ev' = [op |-> "Abort", attempt |-> a]
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, bindings, groups, reads, block, bytes, replies, verdicts, landed>>

\* What lies at one (chunk, layer) of a destination when the parts of member m have become x.
Brings(at, m, x) == [p \in Parts |-> IF p \in Sends(m) THEN x ELSE at[p]]

\* The remote copy of t ends: "ok", "quiet" (failed, and stopped), "unknown" (failed, perhaps still running).
ReadEnd(t, a, how) ==
    LET c == t[2]  l == t[3]  m == t[4]  g == <<a, c, l>>
        good == [op |-> "read", transfer |-> t, attempt |-> a, right |-> TRUE]
        bad == [op |-> "read", transfer |-> t, attempt |-> a, right |-> FALSE]
        right == good \in io /\ Holds(mem[m][GateOf(t[1], l)], t[1], c, l)
        failed == how # "ok"
    IN
    /\ good \in io \/ bad \in io
    /\ IF failed THEN RD!CanEndFailed(reads[t]) ELSE RD!CanEndOk(reads[t])
    /\ CASE how = "ok" -> UNCHANGED used
         [] how = "quiet" -> Count("fail") < MaxFail /\ Use("fail")
         [] how = "unknown" -> Count("unknown") < MaxUnknown /\ Use("unknown")
    /\ io' = (io \ {good, bad}) \cup (IF how = "unknown" THEN {[op |-> "stray", transfer |-> t, attempt |-> a]} ELSE {})
    /\ dest' = [dest EXCEPT ![block[a]][<<c, l>>] = Brings(@, m, IF ~failed /\ right /\ a \in registered THEN t ELSE Junk)]
    /\ landed' = IF ~failed /\ right THEN landed \cup {t} ELSE landed
    /\ reads' = [reads EXCEPT ![t] = IF failed THEN RD!EndFailed(@, how = "quiet") ELSE RD!EndOk(@)]
    /\ groups' = [groups EXCEPT ![g] =
            LET g1 == IF how = "unknown" \/ ~CG!CanLanded(@, m) THEN @ ELSE CG!Landed(@, m)
            IN IF failed /\ CG!CanFail(g1, m) THEN CG!Fail(g1, m) ELSE g1]
    /\ IF failed THEN Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups'))
                 ELSE UNCHANGED attempts /\ Drain(a, dests[a], Open(a, groups'))
    /\ net' = net \cup {Report(RD!Report(reads'[t]), t)}
    /\ blamed' = IF failed THEN blamed \cup {<<"run", t[1]>>} ELSE blamed
    /\ ev' = [op |-> "ReadEnd", transfer |-> t, attempt |-> a, how |-> how]
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, bindings, block, mem, pooled, registered, taken, replies, verdicts>>

\* The backend's end event for a copy whose failure was unknown; until now it may have written.
Landed(t, a) ==
    LET op == [op |-> "stray", transfer |-> t, attempt |-> a]
        g == <<a, t[2], t[3]>>
    IN
    /\ op \in io
    /\ RD!CanLanded(reads[t])
    /\ io' = io \ {op}
    /\ dest' = [dest EXCEPT ![block[a]][<<t[2], t[3]>>] = Brings(@, t[4], Junk)]
    /\ reads' = [reads EXCEPT ![t] = RD!Landed(@)]
    /\ groups' = [groups EXCEPT ![g] = IF CG!CanLanded(@, t[4]) THEN CG!Landed(@, t[4]) ELSE @]
    /\ Drain(a, dests[a], Open(a, groups'))
    /\ ev' = [op |-> "Landed", transfer |-> t, attempt |-> a]
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, attempts, bindings, block, net, used, mem, pooled, registered, taken, history>>

\* A report that nobody has answered is sent again.
ResendReport(t) ==
    /\ RD!Unanswered(reads[t])
    /\ Report(RD!Report(reads[t]), t) \notin net
    /\ net' = net \cup {Report(RD!Report(reads[t]), t)}
    /\ ev' = [op |-> "ResendReport", transfer |-> t]
    /\ UNCHANGED <<sides, used, truth, history>>

-------------------------------------------------------------------------------
(* What each message does.                                                  *)

\* READY: begin the read, or repeat the report that is owed, or refuse.
OnReady(m, keep) ==
    LET t == m.transfer  a == m.attempt  r == t[1]  c == t[2]  l == t[3]  g == <<a, c, l>>
        bound == IF BI!CanBind(bindings[a]) THEN BI!Bind(bindings[a], r) ELSE bindings[a]
        accept == FI!CanRead(dests[a], Rank) /\ BI!CanAccept(bound, r) /\ lives.began[r] = lives.met
        right == Holds(mem[t[4]][GateOf(r, l)], r, c, l)
        s1 == IF RC!CanReceive(attempts[a]) THEN RC!Receive(attempts[a]) ELSE attempts[a]
        s2 == IF m.final /\ RC!CanCount(s1) THEN RC!Count(s1, c) ELSE s1
    IN
    IF ~RD!CanBegin(reads[t])
    THEN /\ net' = Rest(m, keep) \cup (IF RD!Unanswered(reads[t]) THEN {Report(RD!Report(reads[t]), t)} ELSE {})
         /\ UNCHANGED <<sides, truth, history>>
    ELSE IF accept
    THEN /\ bindings' = [bindings EXCEPT ![a] = bound]
         /\ reads' = [reads EXCEPT ![t] = RD!Begin(@)]
         /\ groups' = [groups EXCEPT ![g] = IF CG!CanBegin(@, t[4]) THEN CG!Begin(@, t[4]) ELSE @]
         /\ attempts' = [attempts EXCEPT ![a] = s2]      \* what has just begun to be read completes nothing
         /\ io' = io \cup {[op |-> "read", transfer |-> t, attempt |-> a, right |-> right]}
         /\ net' = Rest(m, keep)
         /\ UNCHANGED <<runs, slots, transfers, pool, lane, dests, block, mem, pooled, dest, registered, taken, owner, history>>
    ELSE /\ net' = Rest(m, keep) \cup {Report("READ_FAILED", t)}
         /\ UNCHANGED <<sides, truth, history>>

\* COMMITTED: what was read is believed.
OnCommitted(m, keep) ==
    LET t == m.transfer  c == t[2]  l == t[3]  a == runs[t[4]][t[1]].attempt  g == <<a, c, l>>
        new == IF CG!CanDone(groups[g], t[4]) THEN CG!Done(groups[g], t[4]) ELSE groups[g]
        s == IF CG!CanSucceed(new) /\ RC!CanGot(attempts[a]) THEN SettleAttempt(RC!Got(attempts[a], c, l)) ELSE attempts[a]
    IN
    /\ net' = Rest(m, keep)
    /\ IF RD!CanCommit(reads[t])
       THEN /\ reads' = [reads EXCEPT ![t] = RD!Commit(@)]
            /\ groups' = [groups EXCEPT ![g] = new]
            /\ attempts' = [attempts EXCEPT ![a] = s]
            /\ dests' = [dests EXCEPT ![a] = IF s.phase = "complete" /\ FI!CanValidate(@) THEN FI!Validate(@) ELSE @]
       ELSE UNCHANGED <<reads, groups, attempts, dests>>
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, bindings, block, truth, history>>

\* REVOKED: what was read is not believed, and the attempt fails; or a failed report is answered.
OnRevoked(m, keep) ==
    LET t == m.transfer  a == runs[t[4]][t[1]].attempt  g == <<a, t[2], t[3]>> IN
    /\ net' = Rest(m, keep)
    /\ IF RD!CanRevoke(reads[t])
       THEN /\ reads' = [reads EXCEPT ![t] = RD!Revoke(@)]
            /\ groups' = [groups EXCEPT ![g] = IF CG!CanFail(@, t[4]) THEN CG!Fail(@, t[4]) ELSE @]
            /\ Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups'))
       ELSE UNCHANGED <<reads, groups, attempts, dests, owner>>
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, bindings, block, bytes, history>>

RETIRE(a) == [op |-> "RETIRE", attempt |-> a]

\* RUN_FAILED: the attempt fails if it listens to this run.  About one that is forgotten nobody will ask.
OnRunFailed(m, keep) ==
    LET a == m.attempt
        bound == IF BI!CanBind(bindings[a]) THEN BI!Bind(bindings[a], m.run) ELSE bindings[a]
    IN
    /\ net' = Rest(m, keep) \cup (IF Known(a) THEN {} ELSE {RETIRE(a)})
    /\ IF Known(a) /\ BI!CanAccept(bound, m.run)
       THEN /\ bindings' = [bindings EXCEPT ![a] = bound]
            /\ Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups))
       ELSE UNCHANGED <<bindings, attempts, dests, owner>>
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, groups, reads, block, bytes, history>>
===============================================================================
