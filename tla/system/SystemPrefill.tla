---------------------------- MODULE SystemPrefill -----------------------------
(***************************************************************************)
(* What Prefill does: the worker's steps, the pool, and what each message  *)
(* to it does.  An action is one call of PrefillSession                    *)
(* (protocol/prefill.py), under the same name.                             *)
(***************************************************************************)
EXTENDS SystemState

-------------------------------------------------------------------------------
(* Prefill: the worker's steps.                                             *)

\* Run r takes the slot for its next layer; the load, if one is due, begins.
Claim(r) ==
    LET p == runs[r]  c == p.chunk  l == p.layer  i == SlotOf(l)  needed == Needed(r, c, l)  w == <<r, c, l>>
        extend == l \notin Shared /\ c > 1
    IN
    /\ Started(r)
    /\ PR!CanAct(p)
    /\ IF extend THEN PB!CanExtend(slots[i], r) ELSE PB!CanClaim(slots[i])
    /\ \A o \in needed : PO!CanPin(pool[o])
    /\ slots' = [slots EXCEPT ![i] = IF extend THEN PB!Extend(@, r) ELSE PB!Claim(@, r, needed # {})]
    /\ pool' = [o \in DOMAIN pool |-> IF o \in needed THEN PO!Pin(pool[o], w) ELSE pool[o]]
    /\ mem' = IF extend THEN mem ELSE [mem EXCEPT ![i] = IF needed = {} THEN <<r, l, 0>> ELSE Junk]
    /\ io' = io \cup (IF needed = {} THEN {} ELSE {[op |-> "load", transfer |-> w]})
    /\ taken' = taken \cup {r}
    /\ ev' = [op |-> "Claim", run |-> r]
    /\ UNCHANGED <<runs, transfers, attempts, bindings, dests, groups, reads, block, net, used, pooled, dest, registered, owner, history>>

\* Prefill fails run r: the gates and the pool hear of it, Decode is told once.
Failing(r, sl, pl) ==
    /\ runs' = [runs EXCEPT ![r] = FailRun(@)]
    /\ pool' = Spoil(pl, r)
    /\ slots' = [i \in Slots |-> LeaveSlot(sl[i], r)]
    /\ verdicts' = Said(r, runs[r], runs'[r])

RunFailed(r) == [op |-> "RUN_FAILED", run |-> r, attempt |-> runs[r].attempt]

\* The load ends.  A pool error is a miss: the run fails.
LoadEnd(w, ok) ==
    LET r == w[1]  c == w[2]  l == w[3]  i == SlotOf(l)  op == [op |-> "load", transfer |-> w]
        ended == IF PB!CanLoadEnded(slots[i]) THEN SettleSlot(PB!LoadEnded(slots[i])) ELSE slots[i]
        sl == [slots EXCEPT ![i] = ended]
        pl == [o \in DOMAIN pool |-> IF o \in Needed(r, c, l) /\ PO!CanUnpin(pool[o], w)
                                     THEN PO!Unpin(pool[o], w) ELSE pool[o]]
        right == \A k \in 1..(c - 1) : <<r, k, l>> \in pooled
    IN
    /\ op \in io
    /\ ok \/ (Count("load") < MaxLoadFail)
    /\ IF ok THEN UNCHANGED used ELSE Use("load")
    /\ io' = io \ {op}
    /\ mem' = [mem EXCEPT ![i] = IF ok /\ right THEN <<r, l, c - 1>> ELSE Junk]
    /\ IF ok THEN slots' = sl /\ pool' = pl /\ UNCHANGED <<runs, verdicts, net, blamed>>
             ELSE /\ Failing(r, sl, pl)
                  /\ net' = IF PR!CanFail(runs[r]) THEN net \cup {RunFailed(r)} ELSE net
                  /\ blamed' = blamed \cup {<<"run", r>>}
    /\ ev' = [op |-> "LoadEnd", transfer |-> w, ok |-> ok]
    /\ UNCHANGED <<transfers, attempts, bindings, dests, groups, reads, block, pooled, dest, registered, taken, owner, replies, landed>>

\* What the next load needs will never be readable: the run fails instead of waiting.
Miss(r) ==
    LET p == runs[r] IN
    /\ Started(r)
    /\ PR!CanAct(p)
    /\ \E o \in Needed(r, p.chunk, p.layer) : PO!Missing(pool[o])
    /\ Failing(r, slots, pool)
    /\ net' = net \cup {RunFailed(r)}
    /\ ev' = [op |-> "Miss", run |-> r]
    /\ UNCHANGED <<transfers, attempts, bindings, dests, groups, reads, block, used, truth, replies, landed, blamed>>

\* kv_written: the gate is closed for attention, save and transfer; then the save begins and READY goes out.
Write(r) ==
    LET p == runs[r]  c == p.chunk  l == p.layer  i == SlotOf(l)  t == <<r, c, l>>  o == <<r, c>>
        after == IF mem[i] = <<r, l, c - 1>> THEN <<r, l, c>> ELSE Junk
        right == after # Junk
    IN
    /\ Started(r)
    /\ PR!CanAct(p)
    /\ PB!CanWrite(slots[i], r)
    /\ TR!CanPublish(transfers[t])
    /\ mem' = [mem EXCEPT ![i] = after]
    /\ slots' = [slots EXCEPT ![i] = PB!Write(@, t, {t}, l \notin Shared /\ c < p.chunks)]
    /\ transfers' = [transfers EXCEPT ![t] = TR!Publish(@)]
    /\ pool' = [pool EXCEPT ![o] = IF PO!CanAllocate(@) THEN PO!Allocate(@, Layers) ELSE @]
    /\ runs' = [runs EXCEPT ![r] = SettleRun(PR!Advance(@, {t}))]
    /\ verdicts' = Said(r, p, runs'[r])
    /\ io' = io \cup {[op |-> "attend", transfer |-> t, right |-> right], [op |-> "save", transfer |-> t, right |-> right]}
    /\ net' = net \cup {READY(t, p.attempt)}
    /\ taken' = taken \ {r}
    /\ ev' = [op |-> "Write", run |-> r]
    /\ UNCHANGED <<attempts, bindings, dests, groups, reads, block, used, pooled, dest, registered, owner, replies, landed, blamed>>

IoOf(o, t) == {x \in io : x.op = o /\ x.transfer = t}

\* layer_done: the attention of step t no longer needs the slot.
LayerDone(t) ==
    LET i == SlotOf(t[3]) IN
    /\ IoOf("attend", t) # {}
    /\ io' = io \ IoOf("attend", t)
    /\ slots' = [slots EXCEPT ![i] = IF PB!CanAttended(@, t) THEN SettleSlot(PB!Attended(@, t)) ELSE @]
    /\ ev' = [op |-> "LayerDone", transfer |-> t]
    /\ UNCHANGED <<runs, transfers, pool, attempts, bindings, dests, groups, reads, block, net, used, mem, pooled, dest, registered, taken, owner, history>>

SaveEnd(t, ok) ==
    LET i == SlotOf(t[3])  o == <<t[1], t[2]>>
        right == (\A x \in IoOf("save", t) : x.right) /\ Holds(mem[i], t[1], t[2], t[3])
    IN
    /\ IoOf("save", t) # {}
    /\ ok \/ Count("save") < MaxSaveFail
    /\ IF ok THEN UNCHANGED <<used, blamed>> ELSE Use("save") /\ blamed' = blamed \cup {<<"run", t[1]>>}
    /\ io' = io \ IoOf("save", t)
    /\ pooled' = IF ok /\ right THEN pooled \cup {t} ELSE pooled
    /\ pool' = [pool EXCEPT ![o] =
            IF ok THEN IF PO!CanLayerSaved(@, t[3]) THEN SettleObject(PO!LayerSaved(@, t[3])) ELSE @
                  ELSE SpoilObject(@)]
    /\ slots' = [slots EXCEPT ![i] = IF PB!CanSaveEnded(@, t) THEN SettleSlot(PB!SaveEnded(@, t)) ELSE @]
    /\ ev' = [op |-> "SaveEnd", transfer |-> t, ok |-> ok]
    /\ UNCHANGED <<runs, transfers, attempts, bindings, dests, groups, reads, block, net, mem, dest, registered, taken, owner, replies, verdicts, landed>>

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
    /\ UNCHANGED <<runs, slots, transfers, attempts, bindings, dests, groups, reads, block, net, mem, dest, io, registered, taken, owner, replies, verdicts, landed>>

\* Transfer t has a verdict: the gate and the run hear of it.
EndTransfer(t, new, failed) ==
    LET i == SlotOf(t[3])  r == t[1]
        sl == [slots EXCEPT ![i] = IF PB!CanTransferEnded(@, t) THEN SettleSlot(PB!TransferEnded(@, t)) ELSE @]
        p == IF PR!CanClose(runs[r], t) THEN PR!Close(runs[r], t) ELSE runs[r]
    IN
    /\ transfers' = [transfers EXCEPT ![t] = new]
    /\ runs' = [runs EXCEPT ![r] = IF failed THEN FailRun(p) ELSE SettleRun(p)]
    /\ slots' = IF failed THEN [k \in Slots |-> LeaveSlot(sl[k], r)] ELSE sl
    /\ pool' = IF failed THEN Spoil(pool, r) ELSE pool
    /\ verdicts' = Said(r, runs[r], runs'[r])

\* With read_lease, Prefill takes a buffer back although no word came.
Revoke(t) ==
    /\ ReadLease
    /\ Count("revoke") < MaxRevoke
    /\ TR!CanRevoke(transfers[t])
    /\ Use("revoke")
    /\ EndTransfer(t, TR!Revoke(transfers[t]), TRUE)
    /\ net' = IF PR!CanFail(runs[t[1]]) THEN net \cup {RunFailed(t[1])} ELSE net
    /\ blamed' = blamed \cup {<<"run", t[1]>>}
    /\ ev' = [op |-> "Revoke", transfer |-> t]
    /\ UNCHANGED <<attempts, bindings, dests, groups, reads, block, truth, replies, landed>>

\* READY is sent again while the transfer is held.
ResendReady(t) ==
    /\ transfers[t].phase = "held"
    /\ READY(t, runs[t[1]].attempt) \notin net
    /\ net' = net \cup {READY(t, runs[t[1]].attempt)}
    /\ ev' = [op |-> "ResendReady", transfer |-> t]
    /\ UNCHANGED <<sides, used, truth, history>>

-------------------------------------------------------------------------------
(* What each message does.                                                  *)

\* START: Prefill begins a run for the attempt.  A second START makes a second run.
OnStart(m, keep) ==
    \E r \in Runs :
    /\ PR!CanStart(runs[r])
    /\ IF r = 1 THEN TRUE ELSE runs[r - 1].phase # "idle"
    /\ runs' = [runs EXCEPT ![r] = PR!Start(@, m.attempt, ChunksOf(m.attempt), Cardinality(Layers))]
    /\ net' = Rest(m, keep)
    /\ blamed' = IF \E q \in Runs : runs[q].attempt = m.attempt THEN blamed \cup {<<"rival", m.attempt>>} ELSE blamed
    /\ UNCHANGED <<slots, transfers, pool, attempts, bindings, dests, groups, reads, block, truth, replies, verdicts, landed>>

\* READ_DONE and READ_FAILED: the first one to find the transfer held decides; every one is answered.
OnReport(m, keep) ==
    LET t == m.transfer
        good == m.op = "READ_DONE" /\ TR!CanDone(transfers[t])
        bad == m.op = "READ_FAILED" /\ TR!CanFail(transfers[t])
        new == IF good THEN TR!Done(transfers[t]) ELSE IF bad THEN TR!Fail(transfers[t]) ELSE transfers[t]
        reply == TR!Reply(new)
    IN
    /\ IF good \/ bad THEN EndTransfer(t, new, bad)
                      ELSE UNCHANGED <<transfers, runs, slots, pool, verdicts>>
    /\ net' = Rest(m, keep) \cup {Report(reply, t)}
    /\ replies' = replies \cup {<<t, reply>>}
    /\ UNCHANGED <<attempts, bindings, dests, groups, reads, block, truth, landed, blamed>>

\* ABORT: the runs of this attempt, and no others, fail.
OnAbort(m, keep) ==
    LET hit == {r \in Runs : runs[r].attempt = m.attempt /\ PR!CanFail(runs[r])} IN
    /\ net' = Rest(m, keep)
    /\ runs' = [r \in Runs |-> IF r \in hit THEN PR!Fail(runs[r]) ELSE runs[r]]
    /\ slots' = [i \in Slots |-> IF \E r \in hit : PB!CanLeave(slots[i], r)
                                THEN SettleSlot(PB!Leave(slots[i], slots[i].owner)) ELSE slots[i]]
    /\ pool' = [o \in DOMAIN pool |-> IF o[1] \in hit THEN SpoilObject(pool[o]) ELSE pool[o]]
    /\ verdicts' = verdicts \cup {<<r, "failed">> : r \in hit}
    /\ UNCHANGED <<transfers, attempts, bindings, dests, groups, reads, block, truth, replies, landed, blamed>>
===============================================================================
