---------------------------- MODULE SystemPrefill -----------------------------
(***************************************************************************)
(* What Prefill does: the steps of each member's worker, the pool, and     *)
(* what each message to it does.  An action is one call of a member's      *)
(* PrefillSession (protocol/prefill.py), under the same name.              *)
(*                                                                         *)
(* The members of a group run one run together: the leader begins it and   *)
(* the others join; a step is computed when all are ready for it; when it  *)
(* fails at one, the others stop it.  What they tell each other goes       *)
(* through a channel of their own, which loses nothing and keeps its order *)
(* but takes its time.  Each has its own slots and its own transfers; the  *)
(* objects of the pool are the group's, and each saves its share of them.  *)
(***************************************************************************)
EXTENDS SystemState

-------------------------------------------------------------------------------
(* The workers' steps.                                                      *)

\* The leader decides in which order runs take a gate.  Were each rank to choose, two could take theirs for different runs, and each
\* wait for the other for ever.
Follows(m, r, c, l) ==
    IF m = Leader THEN TRUE ELSE
    LET p == runs[Leader][r]  s == slots[Leader][GateOf(r, l)] IN
    IF p.chunk = c /\ p.layer = l THEN s.owner = r /\ s.phase \in {"loading", "computing"}
                                  ELSE transfers[<<r, c, l, Leader>>].phase # "idle"

\* Member m takes the slot for the next layer of run r; the load, if one is due, begins.
Claim(m, r) ==
    LET p == runs[m][r]  c == p.chunk  l == p.layer  i == GateOf(r, l)  needed == Needed(m, r, c, l)  w == <<r, c, l, m>>
        extend == Extends(m, r, c, l)
    IN
    /\ Started(m, r)
    /\ PR!CanAct(p)
    /\ Follows(m, r, c, l)
    /\ IF extend THEN PB!CanExtend(slots[m][i], r) ELSE PB!CanClaim(slots[m][i])
    /\ \A o \in needed : PO!CanPin(pool[o])
    /\ slots' = [slots EXCEPT ![m][i] = IF extend THEN PB!Extend(@, r) ELSE PB!Claim(@, r, needed # {})]
    /\ pool' = [o \in DOMAIN pool |-> IF o \in needed THEN PO!Pin(pool[o], w) ELSE pool[o]]
    /\ mem' = IF extend THEN mem ELSE [mem EXCEPT ![m][i] = IF needed = {} THEN <<r, l, 0>> ELSE Junk]
    /\ io' = io \cup (IF needed = {} THEN {} ELSE {[op |-> "load", transfer |-> w]})
    /\ taken' = taken \cup {w}
    /\ ev' = [op |-> "Claim", member |-> m, run |-> r]
    /\ UNCHANGED <<runs, transfers, lane, attempts, bindings, dests, groups, reads, block, net, used, pooled, dest, registered, owner, history>>

\* Member m fails run r: its gates and the pool hear of it, Decode is told once.
Failing(m, r, sl, pl) ==
    /\ runs' = [runs EXCEPT ![m][r] = FailRun(@)]
    /\ pool' = Spoil(pl, r)
    /\ slots' = [slots EXCEPT ![m] = [i \in Gates |-> LeaveSlot(sl[i], r)]]
    /\ verdicts' = Said(m, r, runs[m][r], runs'[m][r])

RunFailed(m, r) == [op |-> "RUN_FAILED", run |-> r, attempt |-> runs[m][r].attempt, member |-> m]

\* The load ends.  A pool error is a miss: the run fails.
LoadEnd(w, ok) ==
    LET r == w[1]  c == w[2]  l == w[3]  m == w[4]  i == GateOf(r, l)  op == [op |-> "load", transfer |-> w]
        ended == IF PB!CanLoadEnded(slots[m][i]) THEN SettleSlot(PB!LoadEnded(slots[m][i])) ELSE slots[m][i]
        sl == [slots EXCEPT ![m][i] = ended]
        pl == [o \in DOMAIN pool |-> IF o \in Earlier(r, c) /\ PO!CanUnpin(pool[o], w)
                                     THEN PO!Unpin(pool[o], w) ELSE pool[o]]
        right == \A k \in 1..(c - 1) : \A n \in Members : <<r, k, l, n>> \in pooled
    IN
    /\ op \in io
    /\ ok \/ (Count("load") < MaxLoadFail)
    /\ IF ok THEN UNCHANGED used ELSE Use("load")
    /\ io' = io \ {op}
    /\ mem' = [mem EXCEPT ![m][i] = IF ok /\ right THEN <<r, l, c - 1>> ELSE Junk]
    /\ IF ok THEN slots' = sl /\ pool' = pl /\ UNCHANGED <<runs, verdicts, net, blamed>>
             ELSE /\ Failing(m, r, sl[m], pl)
                  /\ net' = IF PR!CanFail(runs[m][r]) THEN net \cup {RunFailed(m, r)} ELSE net
                  /\ blamed' = blamed \cup {<<"run", r>>}
    /\ ev' = [op |-> "LoadEnd", transfer |-> w, ok |-> ok]
    /\ UNCHANGED <<transfers, lane, attempts, bindings, dests, groups, reads, block, pooled, dest, registered, taken, owner, replies, landed>>

\* What the next load needs will never be readable: the run fails instead of waiting.
Miss(m, r) ==
    LET p == runs[m][r] IN
    /\ Started(m, r)
    /\ PR!CanAct(p)
    /\ \E o \in Needed(m, r, p.chunk, p.layer) : PO!Missing(pool[o])
    /\ Failing(m, r, slots[m], pool)
    /\ net' = net \cup {RunFailed(m, r)}
    /\ ev' = [op |-> "Miss", member |-> m, run |-> r]
    /\ UNCHANGED <<transfers, lane, attempts, bindings, dests, groups, reads, block, used, truth, replies, landed, blamed>>

\* Between two chunks run r gives way: it leaves the slots of its own, which it would have extended, and loads them again when it
\* goes on; all that it needs for that is in the pool.  Shared slots it has left already, and their rows are loaded for each chunk: where
\* it has no slot of its own nothing changes.  Once the gates of its lane are free its blocks are anybody's, and so is what lies in them.
GiveWay(m, r) ==
    LET own == {i \in Gates : slots[m][i].owner = r}
        idle == {i \in Gates : PB!CanExtend(slots[m][i], r)}
        stored == {c \in Chunks : PO!CanPin(pool[<<r, c>>])}
    IN
    /\ GivingWay
    /\ Started(m, r)
    /\ Shared = Layers \/ own # {}
    /\ PR!CanGiveWay(runs[m][r], own, idle, stored)
    /\ slots' = [slots EXCEPT ![m] = [i \in Gates |-> LeaveSlot(@[i], r)]]
    /\ mem' = [mem EXCEPT ![m] = [i \in Gates |-> IF i[2] = lane[r] /\ slots'[m][i].phase = "free" THEN Junk ELSE @[i]]]
    /\ ev' = [op |-> "GiveWay", member |-> m, run |-> r]
    /\ UNCHANGED <<runs, transfers, pool, lane, attempts, bindings, dests, groups, reads, block, net, used, pooled, dest, io, registered, taken, owner, history>>

\* May member m write the rows of its next step, as far as it alone is concerned?
MayWrite(m, r) ==
    LET p == runs[m][r] IN
    /\ Started(m, r)
    /\ PR!CanAct(p)
    /\ PB!CanWrite(slots[m][GateOf(r, p.layer)], r)
    /\ TR!CanPublish(transfers[<<r, p.chunk, p.layer, m>>])

\* What the members say when they are asked about step (c, l) of run r.  A rank asked keeps to its answer until it has heard all.
Agreement(r, c, l) ==
    [members |-> Members,
     ready   |-> {m \in Members : MayWrite(m, r) /\ runs[m][r].chunk = c /\ runs[m][r].layer = l},
     entered |-> {m \in Members : transfers[<<r, c, l, m>>].phase # "idle"}]

\* kv_written: the gate is closed for attention, save and transfer; then the save begins and READY goes out.
Write(m, r) ==
    LET p == runs[m][r]  c == p.chunk  l == p.layer  i == GateOf(r, l)  t == <<r, c, l, m>>  o == <<r, c>>
        after == IF mem[m][i] = <<r, l, c - 1>> THEN <<r, l, c>> ELSE Junk
        right == after # Junk
    IN
    /\ MayWrite(m, r)
    /\ SA!CanEnter(Agreement(r, c, l))
    /\ mem' = [mem EXCEPT ![m][i] = after]
    /\ slots' = [slots EXCEPT ![m][i] = PB!Write(@, t, {t}, l \notin Shared /\ c < p.chunks)]
    /\ transfers' = [transfers EXCEPT ![t] = TR!Publish(@)]
    /\ pool' = [pool EXCEPT ![o] = IF PO!CanAllocate(@) THEN PO!Allocate(@, Pieces) ELSE @]
    /\ runs' = [runs EXCEPT ![m][r] = SettleRun(PR!Advance(@, {t}))]
    /\ verdicts' = Said(m, r, p, runs'[m][r])
    /\ io' = io \cup {[op |-> "attend", transfer |-> t, right |-> right], [op |-> "save", transfer |-> t, right |-> right]}
    /\ net' = net \cup {READY(t, p.attempt)}
    /\ taken' = taken \ {t}
    /\ ev' = [op |-> "Write", member |-> m, run |-> r]
    /\ UNCHANGED <<lane, attempts, bindings, dests, groups, reads, block, used, pooled, dest, registered, owner, replies, landed, blamed>>

IoOf(o, t) == {x \in io : x.op = o /\ x.transfer = t}

\* layer_done: the attention of step t no longer needs the slot.
LayerDone(t) ==
    /\ IoOf("attend", t) # {}
    /\ io' = io \ IoOf("attend", t)
    /\ slots' = [slots EXCEPT ![t[4]][GateOf(t[1], t[3])] = IF PB!CanAttended(@, t) THEN SettleSlot(PB!Attended(@, t)) ELSE @]
    /\ ev' = [op |-> "LayerDone", transfer |-> t]
    /\ UNCHANGED <<runs, transfers, pool, lane, attempts, bindings, dests, groups, reads, block, net, used, mem, pooled, dest, registered, taken, owner, history>>

\* The save of step t to the pool ends, well or badly: the gate hears of it, and the object gets its layer or is spoilt.
SaveEnd(t, ok) ==
    LET m == t[4]  i == GateOf(t[1], t[3])  o == <<t[1], t[2]>>  piece == Piece(t[3], m)
        right == (\A x \in IoOf("save", t) : x.right) /\ Holds(mem[m][i], t[1], t[2], t[3])
    IN
    /\ IoOf("save", t) # {}
    /\ ok \/ Count("save") < MaxSaveFail
    /\ IF ok THEN UNCHANGED <<used, blamed>> ELSE Use("save") /\ blamed' = blamed \cup {<<"run", t[1]>>}
    /\ io' = io \ IoOf("save", t)
    /\ pooled' = IF ok /\ right THEN pooled \cup {t} ELSE pooled
    /\ pool' = [pool EXCEPT ![o] =
            IF ok THEN IF PO!CanLayerSaved(@, piece) THEN SettleObject(PO!LayerSaved(@, piece)) ELSE @
                  ELSE SpoilObject(@)]
    /\ slots' = [slots EXCEPT ![m][i] = IF PB!CanSaveEnded(@, t) THEN SettleSlot(PB!SaveEnded(@, t)) ELSE @]
    /\ ev' = [op |-> "SaveEnd", transfer |-> t, ok |-> ok]
    /\ UNCHANGED <<runs, transfers, lane, attempts, bindings, dests, groups, reads, block, net, mem, dest, registered, taken, owner, replies, verdicts, landed>>

\* The pool evicts a readable object that nobody has pinned.
Evict(o) ==
    /\ pool[o].phase # "absent"      \* there is nothing of it to evict
    /\ Count("evict") < MaxEvict
    /\ PO!CanEvict(pool[o])
    /\ Use("evict")
    /\ pool' = [pool EXCEPT ![o] = PO!Evict(@)]
    /\ pooled' = {x \in pooled : <<x[1], x[2]>> # o}
    /\ blamed' = blamed \cup {<<"run", o[1]>>}
    /\ ev' = [op |-> "Evict", object |-> o]
    /\ UNCHANGED <<runs, slots, transfers, lane, attempts, bindings, dests, groups, reads, block, net, mem, dest, io, registered, taken, owner, replies, verdicts, landed>>

\* Transfer t has a verdict: the gate and the run hear of it.
EndTransfer(t, new, failed) ==
    LET r == t[1]  m == t[4]
        sl == [slots EXCEPT ![m][GateOf(r, t[3])] = IF PB!CanTransferEnded(@, t) THEN SettleSlot(PB!TransferEnded(@, t)) ELSE @]
        p == IF PR!CanClose(runs[m][r], t) THEN PR!Close(runs[m][r], t) ELSE runs[m][r]
    IN
    /\ transfers' = [transfers EXCEPT ![t] = new]
    /\ runs' = [runs EXCEPT ![m][r] = IF failed THEN FailRun(p) ELSE SettleRun(p)]
    /\ slots' = IF failed THEN [sl EXCEPT ![m] = [i \in Gates |-> LeaveSlot(sl[m][i], r)]] ELSE sl
    /\ pool' = IF failed THEN Spoil(pool, r) ELSE pool
    /\ verdicts' = Said(m, r, runs[m][r], runs'[m][r])

\* With read_lease, Prefill takes a buffer back although no word came.
Revoke(t) ==
    /\ ReadLease
    /\ Count("revoke") < MaxRevoke
    /\ TR!CanRevoke(transfers[t])
    /\ Use("revoke")
    /\ EndTransfer(t, TR!Revoke(transfers[t]), TRUE)
    /\ net' = IF PR!CanFail(runs[t[4]][t[1]]) THEN net \cup {RunFailed(t[4], t[1])} ELSE net
    /\ blamed' = blamed \cup {<<"run", t[1]>>}
    /\ ev' = [op |-> "Revoke", transfer |-> t]
    /\ UNCHANGED <<lane, attempts, bindings, dests, groups, reads, block, truth, replies, landed>>

\* READY is sent again while the transfer is held.
ResendReady(t) ==
    /\ transfers[t].phase = "held"
    /\ READY(t, runs[t[4]][t[1]].attempt) \notin net
    /\ net' = net \cup {READY(t, runs[t[4]][t[1]].attempt)}
    /\ ev' = [op |-> "ResendReady", transfer |-> t]
    /\ UNCHANGED <<sides, used, truth, history>>

-------------------------------------------------------------------------------
(* The group.                                                               *)

\* The leader has begun run r, and member m hears of it.
Join(m, r) ==
    /\ m # Leader
    /\ Started(Leader, r)      \* what it has forgotten is over everywhere
    /\ PR!CanStart(runs[m][r])
    /\ IF r = 1 THEN TRUE ELSE runs[m][r - 1].phase # "idle"
    /\ runs' = [runs EXCEPT ![m][r] = PR!Start(@, runs[Leader][r].attempt, runs[Leader][r].chunks, Cardinality(Layers))]
    /\ ev' = [op |-> "Join", member |-> m, run |-> r]
    /\ UNCHANGED <<slots, transfers, pool, lane, attempts, bindings, dests, groups, reads, block, net, used, truth, history>>

\* Run r has failed at another member, and m hears of it: it computes no further.
Stop(m, r) ==
    /\ \E n \in Members \ {m} : runs[n][r].phase = "failed"
    /\ PR!CanFail(runs[m][r])
    /\ Failing(m, r, slots[m], pool)
    /\ ev' = [op |-> "Stop", member |-> m, run |-> r]
    /\ UNCHANGED <<transfers, lane, attempts, bindings, dests, groups, reads, block, net, used, truth, replies, landed, blamed>>

-------------------------------------------------------------------------------
(* What each message does.                                                  *)

\* START: the leader begins a run for the attempt, in some lane.  A second START makes a second run.
OnStart(m, keep) ==
    \E r \in Runs, k \in Lanes :
    /\ PR!CanStart(runs[Leader][r])
    /\ IF r = 1 THEN TRUE ELSE runs[Leader][r - 1].phase # "idle"
    /\ runs' = [runs EXCEPT ![Leader][r] = PR!Start(@, m.attempt, ChunksOf(m.attempt), Cardinality(Layers))]
    /\ lane' = [lane EXCEPT ![r] = k]
    /\ net' = Rest(m, keep)
    /\ blamed' = IF \E q \in Runs : runs[Leader][q].attempt = m.attempt THEN blamed \cup {<<"rival", m.attempt>>} ELSE blamed
    /\ ev' = [op |-> "Deliver", message |-> m, keep |-> keep, lane |-> k]
    /\ UNCHANGED <<slots, transfers, pool, attempts, bindings, dests, groups, reads, block, truth, replies, verdicts, landed>>

\* START of a life of Decode that is over: it asks for nothing.
OnLateStart(m, keep) ==
    /\ net' = Rest(m, keep)
    /\ ev' = [op |-> "Deliver", message |-> m, keep |-> keep, lane |-> 0]      \* of no run
    /\ UNCHANGED <<sides, truth, history>>

\* READ_DONE and READ_FAILED: the first one to find the transfer held decides; every one is answered.
OnReport(m, keep) ==
    LET t == m.transfer
        heard == LET p == runs[t[4]][t[1]] IN p.phase # "forgotten" /\ m.reader = lives.born[p.attempt]
        good == heard /\ m.op = "READ_DONE" /\ TR!CanDone(transfers[t])
        bad == heard /\ m.op = "READ_FAILED" /\ TR!CanFail(transfers[t])
        new == IF good THEN TR!Done(transfers[t]) ELSE IF bad THEN TR!Fail(transfers[t]) ELSE transfers[t]
        reply == TR!Reply(new)
    IN
    /\ IF good \/ bad THEN EndTransfer(t, new, bad)
                      ELSE UNCHANGED <<transfers, runs, slots, pool, verdicts>>
    /\ IF ~heard      \* it is forgotten, and nobody waits for an answer; or another life of Decode speaks of what it does not know
       THEN net' = Rest(m, keep) /\ UNCHANGED replies
       ELSE /\ net' = Rest(m, keep) \cup {Answer(reply, t)}
            /\ replies' = replies \cup {<<t, reply>>}
    /\ UNCHANGED <<lane, attempts, bindings, dests, groups, reads, block, truth, landed, blamed>>

\* ABORT: the runs of this attempt at this member, and no others, fail.
OnAbort(m, keep) ==
    LET n == m.member
        hit == {r \in Runs : Ours(r) /\ runs[n][r].attempt = m.attempt /\ PR!CanFail(runs[n][r])} IN
    /\ net' = Rest(m, keep)
    /\ runs' = [runs EXCEPT ![n] = [r \in Runs |-> IF r \in hit THEN PR!Fail(@[r]) ELSE @[r]]]
    /\ slots' = [slots EXCEPT ![n] = [i \in Gates |-> IF \E r \in hit : PB!CanLeave(@[i], r)
                                                      THEN SettleSlot(PB!Leave(@[i], @[i].owner)) ELSE @[i]]]
    /\ pool' = [o \in DOMAIN pool |-> IF o[1] \in hit THEN SpoilObject(pool[o]) ELSE pool[o]]
    /\ verdicts' = verdicts \cup {<<n, r, "failed">> : r \in hit}
    /\ UNCHANGED <<transfers, lane, attempts, bindings, dests, groups, reads, block, truth, replies, landed, blamed>>
===============================================================================
