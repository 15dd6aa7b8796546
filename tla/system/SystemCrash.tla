----------------------------- MODULE SystemCrash ------------------------------
(***************************************************************************)
(* A side crashes, loses all its state, and comes back as another life.    *)
(* The members of a group are one failure domain: where one is lost, all   *)
(* are, and so they have one life.                                         *)
(*                                                                         *)
(* Its messages may still come, late.  What it had under way may go on:    *)
(* a device reads for a Decode that is dead (an orphan), until somebody    *)
(* fences it.  Prefill hears of Decode's new life at the handshake         *)
(* (PeerGone), of the fence from its backend (PeerFenced), and then ends   *)
(* what is held for the old one (PeerLost).  Decode hears of Prefill's new *)
(* life (PrefillGone), and fails every attempt that has begun to read  *)
(* from the old one; whoever has not may be served by the new one, and     *)
(* hears nothing of the old one any more.  A connection begins with the    *)
(* handshake, so no READY of a life comes before Decode has met it; later  *)
(* it may, when that is over.                                              *)
(*                                                                         *)
(* lives: which lives there are (decode, prefill), in which one each       *)
(* attempt and each run was born, what Prefill knows of the lives of       *)
(* Decode (peers), and which life of Prefill Decode has met.               *)
(***************************************************************************)
EXTENDS SystemNetwork

\* The runs that life i of Decode has asked for.
AskedBy(i) == {r \in Runs : Started(Leader, r) /\ lives.born[runs[Leader][r].attempt] = i}

Stands(t) == Holds(mem[t[4]][GateOf(t[1], t[3])], t[1], t[2], t[3])

\* A life of Decode has died, whose attempts are as: its memory is gone, and nobody waits for it any more.
DecodeDies(i, as) ==
    LET its(x) == x.op \in {"read", "stray", "own", "forward"} /\ x.attempt \in as IN
    /\ attempts' = [a \in Attempts |-> IF a \in as THEN RC!Initial ELSE attempts[a]]
    /\ bindings' = [a \in Attempts |-> IF a \in as THEN BI!Initial ELSE bindings[a]]
    /\ dests' = [a \in Attempts |-> IF a \in as /\ dests[a].phase # "idle" THEN FI!Forgotten ELSE dests[a]]
    /\ groups' = [g \in DOMAIN groups |-> IF g[1] \in as THEN CG!Initial(Members) ELSE groups[g]]
    /\ reads' = [t \in Transfers |-> IF runs[t[4]][t[1]].attempt \in as THEN RD!Initial ELSE reads[t]]
    /\ owner' = [b \in Blocks |-> IF owner[b] \in as THEN 0 ELSE owner[b]]
    /\ dest' = [b \in Blocks |-> IF owner'[b] = 0 THEN [cl \in Steps |-> [p \in Parts |-> Empty]] ELSE dest[b]]
    /\ io' = {x \in io : ~its(x)}
             \cup {[op |-> "orphan", transfer |-> x.transfer, life |-> i, right |-> x.right /\ Stands(x.transfer)]
                     : x \in {y \in io : y.op = "read" /\ its(y)}}
    /\ blamed' = blamed \cup {<<"attempt", a>> : a \in {b \in as : dests[b].phase \notin {"idle", "forgotten"}}}
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, block, net, mem, pooled, registered, taken, replies, verdicts, landed>>

CrashDecode ==
    /\ Count("crash_decode") < MaxCrashDecode
    /\ Use("crash_decode")
    /\ DecodeDies(lives.decode, Attempts)
    /\ lives' = [lives EXCEPT !.decode = @ + 1, !.met = lives.prefill]
    /\ ev' = [op |-> "CrashDecode"]

\* A life of Prefill has died, whose runs are rs and whose gates gs: its slots, runs and records are gone.
PrefillDies(rs, gs) ==
    LET its(x) == x.transfer[1] \in rs IN
    /\ runs' = [m \in Members |-> [r \in Runs |-> IF r \in rs /\ Started(Leader, r) THEN Forgotten(runs[Leader][r]) ELSE runs[m][r]]]
    /\ slots' = [m \in Members |-> [i \in Gates |-> IF i \in gs THEN PB!Initial ELSE slots[m][i]]]
    /\ transfers' = [t \in Transfers |-> IF t[1] \in rs THEN TR!Initial ELSE transfers[t]]
    /\ pool' = [o \in DOMAIN pool |-> IF o[1] \in rs THEN PO!Initial ELSE pool[o]]
    /\ mem' = [m \in Members |-> [i \in Gates |-> IF i \in gs THEN Empty ELSE mem[m][i]]]
    /\ io' = {x \in io : x.op \in {"read", "stray", "own", "forward"} \/ ~its(x)}
             \cup {[x EXCEPT !.right = FALSE] : x \in {y \in io : y.op = "orphan" /\ its(y)}}
    /\ taken' = {w \in taken : w[1] \notin rs}
    /\ UNCHANGED <<lane, attempts, bindings, dests, groups, reads, block, net, pooled, dest, registered, owner, history>>

\* The slots of the life that begins then count their epochs from the beginning.
CrashPrefill ==
    /\ Count("crash_prefill") < MaxCrashPrefill
    /\ Use("crash_prefill")
    /\ PrefillDies(Runs, Gates)
    /\ lives' = [lives EXCEPT !.prefill = @ + 1, !.peers = [i \in DOMAIN @ |-> PE!Initial]]
    /\ ev' = [op |-> "CrashPrefill"]

\* A copy of a dead Decode comes to its end.
OrphanEnd(x) ==
    /\ x.op = "orphan"
    /\ io' = io \ {x}
    /\ ev' = [op |-> "OrphanEnd", transfer |-> x.transfer]
    /\ UNCHANGED <<sides, net, used, mem, pooled, dest, registered, taken, owner, history, lives>>

\* Another life of Decode has answered Prefill's greeting.
PeerGone(i) ==
    /\ i < lives.decode
    /\ PE!CanGo(lives.peers[i])
    /\ lives' = [lives EXCEPT !.peers[i] = PE!Go(@)]
    /\ ev' = [op |-> "PeerGone", life |-> i]
    /\ UNCHANGED <<sides, net, used, truth, history>>

\* The backend has seen to it that no copy of that life can run any more.
PeerFenced(i) ==
    /\ i < lives.decode
    /\ PE!CanFence(lives.peers[i])
    /\ io' = {x \in io : ~(x.op = "orphan" /\ x.life = i)}
    /\ lives' = [lives EXCEPT !.peers[i] = PE!Fence(@)]
    /\ ev' = [op |-> "PeerFenced", life |-> i]
    /\ UNCHANGED <<sides, net, used, mem, pooled, dest, registered, taken, owner, history>>

\* What Prefill holds for the runs rs of a life of Decode ends as lost, and so do they; nobody will ask about them.
RunsLost(rs) ==
    LET mine(m) == {r \in rs : runs[m][r].phase \notin {"idle", "forgotten"}}
        gone(m) == {t \in Transfers : t[4] = m /\ t[1] \in mine(m) /\ TR!CanLose(transfers[t])}
        ended(m, p) == [p EXCEPT !.open = @ \ gone(m)]
        freed(m, s) == SettleSlot([s EXCEPT !.transfers = @ \ gone(m)])
        left(m, s) == IF s.owner \in mine(m) THEN LeaveSlot(s, s.owner) ELSE s
        over(m) == {r \in mine(m) : PR!CanFail(runs[m][r])}
    IN
    /\ transfers' = [t \in Transfers |-> IF t \in gone(t[4]) THEN TR!Lose(transfers[t]) ELSE transfers[t]]
    /\ runs' = [m \in Members |->
            [r \in Runs |-> IF r \in mine(m) THEN PR!Retire(FailRun(ended(m, runs[m][r]))) ELSE runs[m][r]]]
    /\ slots' = [m \in Members |-> [k \in Gates |-> left(m, freed(m, slots[m][k]))]]
    /\ pool' = [o \in DOMAIN pool |-> IF \E m \in Members : o[1] \in over(m) THEN SpoilObject(pool[o]) ELSE pool[o]]
    /\ verdicts' = verdicts \cup UNION {{<<m, r, "failed">> : r \in over(m)} : m \in Members}
    /\ UNCHANGED <<lane, attempts, bindings, dests, groups, reads, block, net, used, truth, replies, landed, blamed>>

PeerLost(i) ==
    /\ PE!CanLose(lives.peers[i], ReadLease)
    /\ RunsLost(AskedBy(i))
    /\ lives' = [lives EXCEPT !.peers[i] = PE!Lose(@)]
    /\ ev' = [op |-> "PeerLost", life |-> i]

\* The attempts hit have read of a life of Prefill that is over: they have failed, for nobody there knows of them.
Deserted(hit) ==
    LET emptied(a) == Emptied(Invalidate(dests[a]), Open(a, groups))
        back == {a \in hit : FI!CanReclaim(emptied(a))}
    IN
    /\ attempts' = [a \in Attempts |-> IF a \in hit THEN FailAttempt(attempts[a]) ELSE attempts[a]]
    /\ dests' = [a \in Attempts |-> IF a \in back THEN FI!Reclaim(emptied(a)) ELSE IF a \in hit THEN emptied(a) ELSE dests[a]]
    /\ owner' = [b \in Blocks |-> IF \E a \in back : block[a] = b THEN 0 ELSE owner[b]]
    /\ blamed' = blamed \cup {<<"attempt", a>> : a \in hit}
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, bindings, groups, reads, block, net, used, bytes, replies, verdicts, landed>>

\* Decode meets another life of Prefill.
PrefillGone ==
    /\ lives.met < lives.prefill
    /\ Deserted({a \in Attempts : RC!Depends(attempts[a])})
    /\ lives' = [lives EXCEPT !.met = lives.prefill]
    /\ ev' = [op |-> "PrefillGone"]

Lives == 1..(MaxCrashDecode + 1)
Crash == \/ CrashDecode \/ CrashPrefill \/ PrefillGone
         \/ \E x \in io : OrphanEnd(x)
         \/ \E i \in Lives : PeerGone(i) \/ PeerFenced(i) \/ PeerLost(i)

\* Every other step leaves the lives as they are; who begins now is born in the present one.
Born ==
    lives' = [lives EXCEPT
        !.born = [a \in Attempts |-> IF dests[a].phase = "idle" /\ dests'[a].phase # "idle" THEN lives.decode ELSE lives.born[a]],
        !.began = [r \in Runs |-> IF runs[Leader][r].phase = "idle" /\ runs'[Leader][r].phase # "idle" THEN lives.prefill ELSE lives.began[r]]]
===============================================================================
