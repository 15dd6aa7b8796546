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

\* The runs of life i of Decode that member m remembers.
BornIn(m, i) == {r \in Runs : runs[m][r].phase \notin {"idle", "forgotten"} /\ lives.born[runs[m][r].attempt] = i}

Stands(t) == Holds(mem[t[4]][GateOf(t[1], t[3])], t[1], t[2], t[3])

\* Decode dies: its memory is gone, and nobody waits for it any more; another life begins.
CrashDecode ==
    /\ Count("crash_decode") < MaxCrashDecode
    /\ Use("crash_decode")
    /\ attempts' = [a \in Attempts |-> RC!Initial]
    /\ bindings' = [a \in Attempts |-> BI!Initial]
    /\ dests' = [a \in Attempts |-> IF dests[a].phase = "idle" THEN dests[a] ELSE FI!Forgotten]
    /\ groups' = [g \in DOMAIN groups |-> CG!Initial(Members)]
    /\ reads' = [t \in Transfers |-> RD!Initial]
    /\ owner' = [b \in Blocks |-> 0]
    /\ dest' = [b \in Blocks |-> [cl \in Steps |-> [p \in Parts |-> Empty]]]
    /\ io' = {x \in io : x.op \notin {"read", "stray", "own", "forward"}}
             \cup {[op |-> "orphan", transfer |-> x.transfer, life |-> lives.decode, right |-> x.right /\ Stands(x.transfer)]
                     : x \in {y \in io : y.op = "read"}}
    /\ blamed' = blamed \cup {<<"attempt", a>> : a \in {b \in Attempts : dests[b].phase \notin {"idle", "forgotten"}}}
    /\ lives' = [lives EXCEPT !.decode = @ + 1, !.met = lives.prefill]
    /\ ev' = [op |-> "CrashDecode"]
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, block, net, mem, pooled, registered, taken, replies, verdicts, landed>>

\* Prefill dies: its slots, runs and records are gone; another life begins, whose slots count their epochs from the beginning.
CrashPrefill ==
    /\ Count("crash_prefill") < MaxCrashPrefill
    /\ Use("crash_prefill")
    /\ runs' = [m \in Members |-> [r \in Runs |-> IF Started(Leader, r) THEN Forgotten(runs[Leader][r]) ELSE runs[m][r]]]
    /\ slots' = [m \in Members |-> [i \in Gates |-> PB!Initial]]
    /\ transfers' = [t \in Transfers |-> TR!Initial]
    /\ pool' = [o \in DOMAIN pool |-> PO!Initial]
    /\ mem' = [m \in Members |-> [i \in Gates |-> Empty]]
    /\ io' = {x \in io : x.op \in {"read", "stray", "own", "forward"}} \cup {[x EXCEPT !.right = FALSE] : x \in {y \in io : y.op = "orphan"}}
    /\ taken' = {}
    /\ lives' = [lives EXCEPT !.prefill = @ + 1, !.peers = [i \in DOMAIN @ |-> PE!Initial]]
    /\ ev' = [op |-> "CrashPrefill"]
    /\ UNCHANGED <<lane, attempts, bindings, dests, groups, reads, block, net, pooled, dest, registered, owner, history>>

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

\* What Prefill holds for that life ends as lost, and so do its runs; nobody will ask about them.
PeerLost(i) ==
    LET gone(m) == {t \in Transfers : t[4] = m /\ t[1] \in BornIn(m, i) /\ TR!CanLose(transfers[t])}
        ended(m, p) == [p EXCEPT !.open = @ \ gone(m)]
        freed(m, s) == SettleSlot([s EXCEPT !.transfers = @ \ gone(m)])
        left(m, s) == IF s.owner \in BornIn(m, i) THEN LeaveSlot(s, s.owner) ELSE s
        over(m) == {r \in BornIn(m, i) : PR!CanFail(runs[m][r])}
    IN
    /\ PE!CanLose(lives.peers[i], ReadLease)
    /\ transfers' = [t \in Transfers |-> IF t \in gone(t[4]) THEN TR!Lose(transfers[t]) ELSE transfers[t]]
    /\ runs' = [m \in Members |->
            [r \in Runs |-> IF r \in BornIn(m, i) THEN PR!Retire(FailRun(ended(m, runs[m][r]))) ELSE runs[m][r]]]
    /\ slots' = [m \in Members |-> [k \in Gates |-> left(m, freed(m, slots[m][k]))]]
    /\ pool' = [o \in DOMAIN pool |-> IF \E m \in Members : o[1] \in over(m) THEN SpoilObject(pool[o]) ELSE pool[o]]
    /\ verdicts' = verdicts \cup UNION {{<<m, r, "failed">> : r \in over(m)} : m \in Members}
    /\ lives' = [lives EXCEPT !.peers[i] = PE!Lose(@)]
    /\ ev' = [op |-> "PeerLost", life |-> i]
    /\ UNCHANGED <<lane, attempts, bindings, dests, groups, reads, block, net, used, truth, replies, landed, blamed>>

\* Decode meets another life of Prefill: what was read of the old one has failed, for nobody there knows of it.
PrefillGone ==
    LET hit == {a \in Attempts : RC!Depends(attempts[a])}
        emptied(a) == Emptied(Invalidate(dests[a]), Open(a, groups))
        back == {a \in hit : FI!CanReclaim(emptied(a))}
    IN
    /\ lives.met < lives.prefill
    /\ attempts' = [a \in Attempts |-> IF a \in hit THEN FailAttempt(attempts[a]) ELSE attempts[a]]
    /\ dests' = [a \in Attempts |-> IF a \in back THEN FI!Reclaim(emptied(a)) ELSE IF a \in hit THEN emptied(a) ELSE dests[a]]
    /\ owner' = [b \in Blocks |-> IF \E a \in back : block[a] = b THEN 0 ELSE owner[b]]
    /\ blamed' = blamed \cup {<<"attempt", a>> : a \in hit}
    /\ lives' = [lives EXCEPT !.met = lives.prefill]
    /\ ev' = [op |-> "PrefillGone"]
    /\ UNCHANGED <<runs, slots, transfers, pool, lane, bindings, groups, reads, block, net, used, bytes, replies, verdicts, landed>>

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
