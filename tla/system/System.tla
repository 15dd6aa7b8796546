-------------------------------- MODULE System --------------------------------
(***************************************************************************)
(* One Prefill rank, one Decode rank, and all that may go wrong between.   *)
(*                                                                         *)
(* Modelled: layers that share slots and layers that own one; runs in      *)
(* several chunks, each layer saved to a host pool and reloaded from it;   *)
(* attempts on Decode that own blocks, one after the other the same ones;  *)
(* a network that reorders always, and duplicates and loses up to a bound; *)
(* failed saves, evictions, failed loads; reads that fail quietly and reads *)
(* whose failure leaves unknown whether bytes still land; aborts (a client, *)
(* or Decode's own deadline); a proxy that retries (START twice); with     *)
(* ReadLease, revocation at any time (a lease is a clock; safety may not   *)
(* depend on it, so here it may run out whenever it likes).                *)
(*                                                                         *)
(* Every decision is a guard of a machine: the operators M!CanX.  The      *)
(* sessions in protocol/ are this module's actions, in Python, on the same *)
(* machines; an action here is one call there, and `ev` is its label.      *)
(* Settle* are the steps that a session takes by itself as soon as a       *)
(* machine allows them.                                                    *)
(*                                                                         *)
(* Physical truth is kept apart, in variables that no session sees: what   *)
(* is in each slot (mem), in the pool (pooled) and in Decode's blocks      *)
(* (dest), and which copies are under way (io).  Contents are tags.  A     *)
(* read, save or attention is right only if its source had the right tag   *)
(* at its beginning and still has it at its end.  Safety properties speak  *)
(* about this truth, not about the bookkeeping that should protect it.     *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Layers,        \* 1..n
    Shared,        \* the layers that share slots 0..SharedSlots-1, round robin; each of the others owns one
    SharedSlots,
    NumChunks,     \* the most chunks that a run may have
    ChunksOf(_),   \* chunks of an attempt's prompt
    Runs,          \* nonces that Prefill will use, 1..n in order
    Attempts,      \* nonces that Decode will use, 1..n in order
    Blocks,        \* destination block sets; an attempt owns one
    ReadLease,     \* may Prefill revoke?
    MaxLoss, MaxDup, MaxFail, MaxUnknown, MaxSaveFail, MaxLoadFail, MaxEvict, MaxAbort, MaxRevoke

VARIABLES
    \* Prefill: machine states
    runs, slots, transfers, pool,
    \* Decode: machine states
    attempts, bindings, dests, groups, reads,
    block,         \* the block set of each admitted attempt
    net,           \* messages in flight
    used,          \* faults used up
    \* physical truth
    mem, pooled, dest, io, registered,
    taken,         \* runs that have taken the slot of their next step, and have not written it
    owner,         \* the attempt to which the allocator has given each block set, or 0
    \* history that only properties look at
    replies,       \* what Prefill answered about each transfer
    verdicts,      \* what it said of each run
    landed,        \* transfers whose bytes landed, right, before anybody was told so
    blamed,        \* <<"attempt", a>> aborted; <<"run", r>> met a fault; <<"rival", a>> was started twice
    ev

sides == <<runs, slots, transfers, pool, attempts, bindings, dests, groups, reads, block>>
bytes == <<mem, pooled, dest, io, registered, taken>>
truth == <<bytes, owner>>
history == <<replies, verdicts, landed, blamed>>
vars == <<sides, net, used, truth, history, ev>>
View == <<sides, net, used, truth, history>>

PB == INSTANCE PhysicalBuffer WITH Works <- {}, Transfers <- {}, MaxEpoch <- 0
TR == INSTANCE Transfer
PR == INSTANCE PrefillRun WITH Transfers <- {}, MaxChunks <- 0, MaxLayers <- 0
PO == INSTANCE PoolObject WITH Pins <- {}
RD == INSTANCE Read
CG == INSTANCE ContributorGroup WITH Members <- {}
BI == INSTANCE Binding
RC == INSTANCE RequestCompletion WITH MaxChunks <- 0
FI == INSTANCE FailureInvalidation WITH Ranks <- {}, Groups <- {}

AllChunks(a) == NumChunks      \* for configurations: every prompt has the most
LongThenShort(a) == IF a = 1 THEN NumChunks ELSE 1      \* or only the first one
Chunks == 1..NumChunks
Steps == Chunks \X Layers
Transfers == Runs \X Chunks \X Layers       \* <<run, chunk, layer>>; one member, so it goes without saying
SlotOf(l) == IF l \in Shared THEN Cardinality({k \in Shared : k < l}) % SharedSlots
                            ELSE SharedSlots + Cardinality({k \in Layers \ Shared : k < l})
Slots == {SlotOf(l) : l \in Layers}
Member == 0
Rank == 0
Empty == <<0, 0, 0>>      \* nothing, or poison
Junk == <<0, 0, 1>>       \* bytes that belong to nobody

Count(f) == used[f]
Use(f) == used' = [used EXCEPT ![f] = @ + 1]

\* Nobody asks anything of a run or an attempt that does not exist.
Started(r) == runs[r].phase # "idle"
Known(a) == attempts[a].phase # "idle"

\* Does slot memory m hold chunk c of layer l of run r?
Holds(m, r, c, l) == m[1] = r /\ m[2] = l /\ m[3] >= c

Init ==
    /\ runs = [r \in Runs |-> PR!Initial]
    /\ slots = [i \in Slots |-> PB!Initial]
    /\ transfers = [t \in Transfers |-> TR!Initial]
    /\ pool = [o \in Runs \X Chunks |-> PO!Initial]
    /\ attempts = [a \in Attempts |-> RC!Initial]
    /\ bindings = [a \in Attempts |-> BI!Initial]
    /\ dests = [a \in Attempts |-> FI!Initial]
    /\ groups = [g \in Attempts \X Chunks \X Layers |-> CG!Initial({Member})]
    /\ reads = [t \in Transfers |-> RD!Initial]
    /\ block = [a \in Attempts |-> 0]
    /\ net = {}
    /\ used = [f \in {"loss", "dup", "fail", "unknown", "save", "load", "evict", "abort", "revoke"} |-> 0]
    /\ mem = [i \in Slots |-> Empty]
    /\ pooled = {}
    /\ dest = [b \in Blocks |-> [cl \in Steps |-> Empty]]
    /\ io = {}
    /\ registered = {}
    /\ taken = {}
    /\ owner = [b \in Blocks |-> 0]
    /\ replies = {}
    /\ verdicts = {}
    /\ landed = {}
    /\ blamed = {}
    /\ ev = [op |-> "Init"]

-------------------------------------------------------------------------------
(* What a session does by itself.                                           *)

SettleSlot(s) == IF PB!CanRelease(s) THEN PB!Release(s) ELSE s
SettleObject(o) == IF PO!CanFinish(o) THEN PO!Finish(o) ELSE o
SettleRun(p) == IF PR!CanFinish(p) THEN PR!Finish(p) ELSE p

\* A verdict is said when the phase becomes one.
Said(r, old, new) == IF new.phase # old.phase /\ new.phase \in {"done", "failed"}
                     THEN verdicts \cup {<<r, new.phase>>} ELSE verdicts

LeaveSlot(s, r) == IF PB!CanLeave(s, r) THEN SettleSlot(PB!Leave(s, r)) ELSE s
FailRun(p) == IF PR!CanFail(p) THEN PR!Fail(p) ELSE p
SpoilObject(o) == IF PO!CanFail(o) THEN PO!Fail(o) ELSE o
Spoil(pl, r) == [o \in DOMAIN pl |-> IF o[1] = r THEN SpoilObject(pl[o]) ELSE pl[o]]

\* Decode: a failed attempt is poisoned, then drained; blocks go back when nothing can land any more.
FailAttempt(s) == IF RC!CanFail(s) THEN RC!Fail(s) ELSE s
Invalidate(s) == IF FI!CanPoison(s) THEN FI!Drain(FI!Poison(s)) ELSE s

SettleAttempt(s) ==
    LET s1 == IF RC!CanAdvertise(s) THEN RC!Advertise(s) ELSE s
    IN IF RC!CanComplete(s1) THEN RC!Complete(s1) ELSE s1

Open(a, gs) == {cl \in Steps : ~CG!CanQuiet(gs[<<a, cl[1], cl[2]>>])}
Emptied(s, open) ==
    LET s1 == IF FI!CanClose(s, Rank) THEN FI!Close(s, Rank) ELSE s
    IN IF FI!CanDrained(s1, Rank, open) THEN FI!Drained(s1, Rank) ELSE s1

\* Attempt a is in state s, its destination in state d: both go on as far as they may, and when the destination is reclaimed
\* the allocator is told.
Settle(a, s, d, open) ==
    LET d1 == Emptied(d, open) IN
    /\ attempts' = [attempts EXCEPT ![a] = SettleAttempt(s)]
    /\ dests' = [dests EXCEPT ![a] = IF FI!CanReclaim(d1) THEN FI!Reclaim(d1) ELSE d1]
    /\ owner' = IF FI!CanReclaim(d1) THEN [owner EXCEPT ![block[a]] = 0] ELSE owner

READY(t, a) == [op |-> "READY", transfer |-> t, attempt |-> a,
                epoch |-> slots[SlotOf(t[3])].epoch, final |-> t[2] = runs[t[1]].chunks]
Report(o, t) == [op |-> o, transfer |-> t]

-------------------------------------------------------------------------------
(* Decode: the life of an attempt.                                          *)

\* Decode admits attempt a with block set b; the destination is not yet registered.
Admit(a, b) ==
    /\ RC!CanAllocate(attempts[a])
    /\ IF a = 1 THEN TRUE ELSE attempts[a - 1].phase # "idle"      \* nonces are used in order
    /\ owner[b] = 0
    /\ attempts' = [attempts EXCEPT ![a] = SettleAttempt(RC!Allocate(@, Layers))]
    /\ dests' = [dests EXCEPT ![a] = Emptied(FI!Own(@, {Rank}), {})]
    /\ owner' = [owner EXCEPT ![b] = a]
    /\ block' = [block EXCEPT ![a] = b]
    /\ dest' = [dest EXCEPT ![b] = [cl \in Steps |-> Empty]]
    /\ net' = net \cup (IF attempts'[a].phase = "advertised" THEN {[op |-> "START", attempt |-> a]} ELSE {})
    /\ ev' = [op |-> "Admit", attempt |-> a, block |-> b]
    /\ UNCHANGED <<runs, slots, transfers, pool, bindings, groups, reads, used, mem, pooled, io, registered, taken, history>>

\* The backend has registered the destination: now, not before, Prefill hears of it.
Registered(a) ==
    /\ Known(a) /\ a \notin registered
    /\ RC!CanRegister(attempts[a])
    /\ registered' = registered \cup {a}
    /\ attempts' = [attempts EXCEPT ![a] = SettleAttempt(RC!Register(@))]
    /\ net' = net \cup (IF attempts'[a].phase = "advertised" THEN {[op |-> "START", attempt |-> a]} ELSE {})
    /\ ev' = [op |-> "Registered", attempt |-> a]
    /\ UNCHANGED <<runs, slots, transfers, pool, bindings, dests, groups, reads, block, used, mem, pooled, dest, io, taken, owner, history>>

\* Everything has arrived: inference begins and reads the destination.
Schedule(a) ==
    /\ Known(a)
    /\ RC!CanSchedule(attempts[a])
    /\ attempts' = [attempts EXCEPT ![a] = RC!Schedule(@)]
    /\ ev' = [op |-> "Schedule", attempt |-> a]
    /\ UNCHANGED <<runs, slots, transfers, pool, bindings, dests, groups, reads, block, net, used, truth, history>>

\* Inference has ended; the blocks go back.
Finish(a) ==
    /\ Known(a)
    /\ RC!CanFinish(attempts[a])
    /\ Settle(a, RC!Finish(attempts[a]), IF FI!CanDrain(dests[a]) THEN FI!Drain(dests[a]) ELSE dests[a], Open(a, groups))
    /\ ev' = [op |-> "Finish", attempt |-> a]
    /\ UNCHANGED <<runs, slots, transfers, pool, bindings, groups, reads, block, net, used, bytes, history>>

\* The client gives up, or Decode's deadline passes: the attempt fails and Prefill is told, once.
Abort(a) ==
    /\ Known(a)
    /\ Count("abort") < MaxAbort
    /\ RC!CanFail(attempts[a])
    /\ Use("abort")
    /\ Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups))
    /\ net' = net \cup {[op |-> "ABORT", attempt |-> a]}
    /\ blamed' = blamed \cup {<<"attempt", a>>}
    /\ ev' = [op |-> "Abort", attempt |-> a]
    /\ UNCHANGED <<runs, slots, transfers, pool, bindings, groups, reads, block, bytes, replies, verdicts, landed>>

\* The remote copy of t ends: "ok", "quiet" (failed, and stopped), "unknown" (failed, perhaps still running).
ReadEnd(t, a, how) ==
    LET c == t[2]  l == t[3]  g == <<a, c, l>>
        good == [op |-> "read", transfer |-> t, attempt |-> a, right |-> TRUE]
        bad == [op |-> "read", transfer |-> t, attempt |-> a, right |-> FALSE]
        right == good \in io /\ Holds(mem[SlotOf(l)], t[1], c, l)
        failed == how # "ok"
    IN
    /\ good \in io \/ bad \in io
    /\ IF failed THEN RD!CanEndFailed(reads[t]) ELSE RD!CanEndOk(reads[t])
    /\ CASE how = "ok" -> UNCHANGED used
         [] how = "quiet" -> Count("fail") < MaxFail /\ Use("fail")
         [] how = "unknown" -> Count("unknown") < MaxUnknown /\ Use("unknown")
    /\ io' = (io \ {good, bad}) \cup (IF how = "unknown" THEN {[op |-> "stray", transfer |-> t, attempt |-> a]} ELSE {})
    /\ dest' = [dest EXCEPT ![block[a]][<<c, l>>] = IF ~failed /\ right /\ a \in registered THEN t ELSE Junk]
    /\ landed' = IF ~failed /\ right THEN landed \cup {t} ELSE landed
    /\ reads' = [reads EXCEPT ![t] = IF failed THEN RD!EndFailed(@, how = "quiet") ELSE RD!EndOk(@)]
    /\ groups' = [groups EXCEPT ![g] =
            LET g1 == IF how = "unknown" \/ ~CG!CanLanded(@, Member) THEN @ ELSE CG!Landed(@, Member)
            IN IF failed /\ CG!CanFail(g1, Member) THEN CG!Fail(g1, Member) ELSE g1]
    /\ IF failed THEN Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups'))
                 ELSE Settle(a, attempts[a], dests[a], Open(a, groups'))
    /\ net' = net \cup {Report(RD!Report(reads'[t]), t)}
    /\ blamed' = IF failed THEN blamed \cup {<<"run", t[1]>>} ELSE blamed
    /\ ev' = [op |-> "ReadEnd", transfer |-> t, attempt |-> a, how |-> how]
    /\ UNCHANGED <<runs, slots, transfers, pool, bindings, block, mem, pooled, registered, taken, replies, verdicts>>

\* The backend's end event for a copy whose failure was unknown; until now it may have written.
Landed(t, a) ==
    LET op == [op |-> "stray", transfer |-> t, attempt |-> a]
        g == <<a, t[2], t[3]>>
    IN
    /\ op \in io
    /\ RD!CanLanded(reads[t])
    /\ io' = io \ {op}
    /\ dest' = [dest EXCEPT ![block[a]][<<t[2], t[3]>>] = Junk]
    /\ reads' = [reads EXCEPT ![t] = RD!Landed(@)]
    /\ groups' = [groups EXCEPT ![g] = IF CG!CanLanded(@, Member) THEN CG!Landed(@, Member) ELSE @]
    /\ Settle(a, attempts[a], dests[a], Open(a, groups'))
    /\ ev' = [op |-> "Landed", transfer |-> t, attempt |-> a]
    /\ UNCHANGED <<runs, slots, transfers, pool, bindings, block, net, used, mem, pooled, registered, taken, history>>

\* A report that nobody has answered is sent again.
ResendReport(t) ==
    /\ RD!Unanswered(reads[t])
    /\ Report(RD!Report(reads[t]), t) \notin net
    /\ net' = net \cup {Report(RD!Report(reads[t]), t)}
    /\ ev' = [op |-> "ResendReport", transfer |-> t]
    /\ UNCHANGED <<sides, used, truth, history>>

-------------------------------------------------------------------------------
(* Prefill: the worker's steps.                                             *)

\* What the load of step (c, l) of run r needs from the pool.
Needed(r, c, l) == IF l \in Shared THEN {<<r, k>> : k \in 1..(c - 1)} ELSE {}

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
(* The network, and what each message does.                                 *)

Rest(m, keep) == IF keep THEN net ELSE net \ {m}

\* START: Prefill begins a run for the attempt.  A second START makes a second run.
OnStart(m, keep) ==
    \E r \in Runs :
    /\ PR!CanStart(runs[r])
    /\ IF r = 1 THEN TRUE ELSE runs[r - 1].phase # "idle"
    /\ runs' = [runs EXCEPT ![r] = PR!Start(@, m.attempt, ChunksOf(m.attempt), Cardinality(Layers))]
    /\ net' = Rest(m, keep)
    /\ blamed' = IF \E q \in Runs : runs[q].attempt = m.attempt THEN blamed \cup {<<"rival", m.attempt>>} ELSE blamed
    /\ UNCHANGED <<slots, transfers, pool, attempts, bindings, dests, groups, reads, block, truth, replies, verdicts, landed>>

\* READY: begin the read, or repeat the report that is owed, or refuse.
OnReady(m, keep) ==
    LET t == m.transfer  a == m.attempt  r == t[1]  c == t[2]  l == t[3]  g == <<a, c, l>>
        bound == IF BI!CanBind(bindings[a]) THEN BI!Bind(bindings[a], r) ELSE bindings[a]
        accept == FI!CanRead(dests[a], Rank) /\ BI!CanAccept(bound, r)
        right == Holds(mem[SlotOf(l)], r, c, l)
        s1 == IF RC!CanReceive(attempts[a]) THEN RC!Receive(attempts[a]) ELSE attempts[a]
        s2 == IF m.final /\ RC!CanCount(s1) THEN RC!Count(s1, c) ELSE s1
    IN
    IF ~RD!CanBegin(reads[t])
    THEN /\ net' = Rest(m, keep) \cup (IF RD!Unanswered(reads[t]) THEN {Report(RD!Report(reads[t]), t)} ELSE {})
         /\ UNCHANGED <<sides, truth, history>>
    ELSE IF accept
    THEN /\ bindings' = [bindings EXCEPT ![a] = bound]
         /\ reads' = [reads EXCEPT ![t] = RD!Begin(@)]
         /\ groups' = [groups EXCEPT ![g] = IF CG!CanBegin(@, Member) THEN CG!Begin(@, Member) ELSE @]
         /\ attempts' = [attempts EXCEPT ![a] = SettleAttempt(s2)]
         /\ io' = io \cup {[op |-> "read", transfer |-> t, attempt |-> a, right |-> right]}
         /\ net' = Rest(m, keep)
         /\ UNCHANGED <<runs, slots, transfers, pool, dests, block, mem, pooled, dest, registered, taken, owner, history>>
    ELSE /\ net' = Rest(m, keep) \cup {Report("READ_FAILED", t)}
         /\ UNCHANGED <<sides, truth, history>>

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

\* COMMITTED: what was read is believed.
OnCommitted(m, keep) ==
    LET t == m.transfer  c == t[2]  l == t[3]  a == runs[t[1]].attempt  g == <<a, c, l>>
        new == IF CG!CanDone(groups[g], Member) THEN CG!Done(groups[g], Member) ELSE groups[g]
        s == IF CG!CanSucceed(new) /\ RC!CanGot(attempts[a]) THEN SettleAttempt(RC!Got(attempts[a], c, l)) ELSE attempts[a]
    IN
    /\ net' = Rest(m, keep)
    /\ IF RD!CanCommit(reads[t])
       THEN /\ reads' = [reads EXCEPT ![t] = RD!Commit(@)]
            /\ groups' = [groups EXCEPT ![g] = new]
            /\ attempts' = [attempts EXCEPT ![a] = s]
            /\ dests' = [dests EXCEPT ![a] = IF s.phase = "complete" /\ FI!CanValidate(@) THEN FI!Validate(@) ELSE @]
       ELSE UNCHANGED <<reads, groups, attempts, dests>>
    /\ UNCHANGED <<runs, slots, transfers, pool, bindings, block, truth, history>>

\* REVOKED: what was read is not believed, and the attempt fails; or a failed report is answered.
OnRevoked(m, keep) ==
    LET t == m.transfer  a == runs[t[1]].attempt  g == <<a, t[2], t[3]>> IN
    /\ net' = Rest(m, keep)
    /\ IF RD!CanRevoke(reads[t])
       THEN /\ reads' = [reads EXCEPT ![t] = RD!Revoke(@)]
            /\ groups' = [groups EXCEPT ![g] = IF CG!CanFail(@, Member) THEN CG!Fail(@, Member) ELSE @]
            /\ Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups'))
       ELSE UNCHANGED <<reads, groups, attempts, dests, owner>>
    /\ UNCHANGED <<runs, slots, transfers, pool, bindings, block, bytes, history>>

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

\* RUN_FAILED: the attempt fails if it listens to this run.
OnRunFailed(m, keep) ==
    LET a == m.attempt
        bound == IF BI!CanBind(bindings[a]) THEN BI!Bind(bindings[a], m.run) ELSE bindings[a]
    IN
    /\ net' = Rest(m, keep)
    /\ IF BI!CanAccept(bound, m.run)
       THEN /\ bindings' = [bindings EXCEPT ![a] = bound]
            /\ Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups))
       ELSE UNCHANGED <<bindings, attempts, dests, owner>>
    /\ UNCHANGED <<runs, slots, transfers, pool, groups, reads, block, bytes, history>>

\* keep: the network delivers a copy and holds on to another.
Deliver(m, keep) ==
    /\ m \in net
    /\ IF keep THEN Count("dup") < MaxDup /\ Use("dup") ELSE UNCHANGED used
    /\ ev' = [op |-> "Deliver", message |-> m, keep |-> keep]
    /\ CASE m.op = "START"                         -> OnStart(m, keep)
         [] m.op = "READY"                         -> OnReady(m, keep)
         [] m.op \in {"READ_DONE", "READ_FAILED"}  -> OnReport(m, keep)
         [] m.op = "COMMITTED"                     -> OnCommitted(m, keep)
         [] m.op = "REVOKED"                       -> OnRevoked(m, keep)
         [] m.op = "ABORT"                         -> OnAbort(m, keep)
         [] m.op = "RUN_FAILED"                    -> OnRunFailed(m, keep)

Lose(m) ==
    /\ m \in net
    /\ Count("loss") < MaxLoss
    /\ Use("loss")
    /\ net' = net \ {m}
    /\ ev' = [op |-> "Lose", message |-> m]
    /\ UNCHANGED <<sides, truth, history>>

-------------------------------------------------------------------------------
Worker == \E r \in Runs : Claim(r) \/ Write(r) \/ Miss(r)
Device == \E t \in Transfers : LayerDone(t) \/ (\E ok \in BOOLEAN : SaveEnd(t, ok) \/ LoadEnd(t, ok))
Remote == \E t \in Transfers, a \in Attempts : Landed(t, a) \/ \E how \in {"ok", "quiet", "unknown"} : ReadEnd(t, a, how)
Resend == \E t \in Transfers : ResendReady(t) \/ ResendReport(t)
Client == \E a \in Attempts : \/ \E b \in Blocks : Admit(a, b)
                              \/ Registered(a) \/ Schedule(a) \/ Finish(a) \/ Abort(a)
Faults == (\E t \in Transfers : Revoke(t)) \/ (\E o \in Runs \X Chunks : Evict(o))
Network == \E m \in net : Lose(m) \/ \E keep \in BOOLEAN : Deliver(m, keep)

Next == Worker \/ Device \/ Remote \/ Resend \/ Client \/ Faults \/ Network
Spec == Init /\ [][Next]_vars

-------------------------------------------------------------------------------
(* Safety.  The names are those of the design.                              *)

\* I1: nobody who reads a slot, and whose reading still counts, ever sees it overwritten.
ReuseSafe ==
    \A x \in io :
        (\/ x.op \in {"attend", "save"} /\ x.right
         \/ x.op = "read" /\ x.right /\ transfers[x.transfer].phase = "held")
        => Holds(mem[SlotOf(x.transfer[3])], x.transfer[1], x.transfer[2], x.transfer[3])

\* I2: a transfer that Decode may hear of, and that has no verdict, keeps its slot shut, in the epoch that it names.
GateBeforePublish ==
    \A m \in net : (m.op = "READY" /\ transfers[m.transfer].phase = "held") =>
        LET s == slots[SlotOf(m.transfer[3])] IN s.phase # "free" /\ s.epoch = m.epoch

\* I3 and I14: what is computed rests on what the earlier chunks saved.
LoadBeforeCompute == \A x \in io : x.op \in {"attend", "save"} => x.right

\* I4: a readable object has all its layers.
PublishAfterComplete ==
    \A o \in DOMAIN pool : pool[o].phase = "readable" => \A l \in Layers : <<o[1], o[2], l>> \in pooled

\* I4, the other way: memory of the pool is given away only when no save still writes it and no load still reads it,
\* what is readable stays so until it is evicted, and what is failed or gone stays as it is.
PoolLifetime ==
    \A x \in io :
        /\ x.op = "save" => pool[<<x.transfer[1], x.transfer[2]>>].phase # "gone"
        /\ x.op = "load" => \A o \in Needed(x.transfer[1], x.transfer[2], x.transfer[3]) : pool[o].phase # "gone"
PoolStays ==
    [][\A o \in DOMAIN pool :
        /\ pool[o].phase = "readable" => pool'[o].phase \in {"readable", "gone"}
        /\ pool[o].phase \in {"failed", "gone"} => pool'[o] = pool[o]]_vars

\* I5: Prefill counts a transfer as done only when its own bytes have landed.
AckIdentity == \A t \in Transfers : transfers[t].phase = "done" => t \in landed

\* I6, I16: no copy is under way into blocks that its attempt does not own, or that are not registered; no inference runs on
\* blocks of another.
DestinationLifetime ==
    /\ \A x \in io : x.op \in {"read", "stray"} =>
        /\ owner[block[x.attempt]] = x.attempt
        /\ x.attempt \in registered
    /\ \A a \in Attempts : attempts[a].phase = "scheduled" => owner[block[a]] = a

\* I7: inference runs on the right contents, all of them.
ScheduleSafe ==
    \A a \in Attempts : attempts[a].phase = "scheduled" =>
        \A cl \in (1..ChunksOf(a)) \X Layers : dest[block[a]][cl] = <<bindings[a].run, cl[1], cl[2]>>

\* I8: an attempt whose bound run failed, or whose memory is poisoned, yields no tokens.
FailClosed ==
    \A a \in Attempts : attempts[a].phase = "scheduled" =>
        /\ dests[a].phase = "valid"
        /\ \A t \in Transfers : t[1] = bindings[a].run => transfers[t].phase \notin {"failed", "revoked"}

\* I13: no waiter gets two verdicts.
OneVerdict ==
    /\ \A t \in Transfers : ~(<<t, "COMMITTED">> \in replies /\ <<t, "REVOKED">> \in replies)
    /\ \A r \in Runs : ~(<<r, "done">> \in verdicts /\ <<r, "failed">> \in verdicts)
    /\ \A r \in Runs : <<r, "done">> \in verdicts =>
          \A t \in Transfers : (t[1] = r /\ t[2] <= runs[r].chunks) => transfers[t].phase = "done"

\* The same for attempts: what is scheduled ends well; and a verdict and what belongs to it stay as they were, whatever comes late.
EndsStay ==
    [][/\ \A a \in Attempts :
           /\ attempts[a].phase = "scheduled" => attempts'[a].phase \in {"scheduled", "released"}
           /\ attempts[a].phase \in {"failed", "released"} => attempts'[a] = attempts[a]
       /\ \A t \in Transfers : transfers[t].phase \in {"done", "failed", "revoked"} => transfers'[t] = transfers[t]
       /\ \A r \in Runs : runs[r].phase \in {"done", "failed"} => runs'[r].phase = runs[r].phase]_vars

\* A run that has taken the slot of its next step, and writes it, is never sent to take one again.
ClaimOnce == [][ev'.op = "Claim" => ev'.run \notin taken]_vars

\* I15: an attempt fails only if something happened to it; a run only if its attempt did.
BlastRadius ==
    /\ \A a \in Attempts : attempts[a].phase = "failed" =>
           <<"attempt", a>> \in blamed \/ <<"run", bindings[a].run>> \in blamed
    /\ \A r \in Runs : runs[r].phase = "failed" =>
           <<"run", r>> \in blamed \/ <<"attempt", runs[r].attempt>> \in blamed \/ <<"rival", runs[r].attempt>> \in blamed

\* L2 as a state property: when nothing is under way, nothing is held.
Rests == /\ \A m \in net : m.op = "START"
         /\ io = {}
         /\ \A t \in Transfers : ~RD!Unanswered(reads[t]) /\ transfers[t].phase # "held"
         /\ \A r \in Runs : runs[r].phase \notin {"running", "computed"}
         /\ \A a \in Attempts : attempts[a].phase \in {"idle", "failed", "released"}
NoLeak == Rests => /\ \A i \in Slots : slots[i].phase = "free"
                   /\ \A a \in Attempts : dests[a].phase \in {"idle", "reclaimed"}
                   /\ \A b \in Blocks : owner[b] = 0
                   /\ \A o \in DOMAIN pool : pool[o].pins = {} /\ pool[o].phase # "writing"

\* Machines are moved only into their own states (TypeOK of each machine is checked alone).
-------------------------------------------------------------------------------
(* Liveness.                                                                *)

Messages == [op : {"START", "ABORT"}, attempt : Attempts]
            \cup [op : {"READY"}, transfer : Transfers, attempt : Attempts, epoch : 1..Cardinality(Runs \X Steps), final : BOOLEAN]
            \cup [op : {"READ_DONE", "READ_FAILED", "COMMITTED", "REVOKED"}, transfer : Transfers]
            \cup [op : {"RUN_FAILED"}, run : Runs, attempt : Attempts]
Fair == /\ \A r \in Runs : WF_vars(Claim(r)) /\ WF_vars(Write(r)) /\ WF_vars(Miss(r))
        /\ \A t \in Transfers : WF_vars(LayerDone(t)) /\ WF_vars(SaveEnd(t, TRUE)) /\ WF_vars(LoadEnd(t, TRUE))
        /\ \A t \in Transfers : WF_vars(ResendReady(t)) /\ WF_vars(ResendReport(t))
        /\ \A t \in Transfers, a \in Attempts : WF_vars(ReadEnd(t, a, "ok")) /\ WF_vars(Landed(t, a))
        /\ \A a \in Attempts : WF_vars(Registered(a)) /\ WF_vars(Schedule(a)) /\ WF_vars(Finish(a))
        /\ \A m \in Messages : WF_vars(Deliver(m, FALSE))
FairSpec == Spec /\ Fair
\* Decode's deadline: whoever may be aborted is, some day, unless it is complete by then.
DeadlineSpec == FairSpec /\ \A a \in Attempts : WF_vars(Abort(a))
\* Only Prefill is alive, and its leases run out: nothing is expected of Decode or the network.
LeaseSpec == /\ Spec
             /\ \A r \in Runs : WF_vars(Claim(r)) /\ WF_vars(Write(r)) /\ WF_vars(Miss(r))
             /\ \A t \in Transfers : WF_vars(LayerDone(t)) /\ WF_vars(SaveEnd(t, TRUE)) /\ WF_vars(LoadEnd(t, TRUE))
             /\ \A t \in Transfers : WF_vars(Revoke(t))

\* L1: every run gets its verdict, every gate opens again, every attempt ends.
EveryRunEnds == \A r \in Runs : runs[r].phase \in {"running", "computed"} ~> runs[r].phase \in {"done", "failed"}
EveryGateOpens == \A i \in Slots : slots[i].phase # "free" ~> slots[i].phase = "free"
EveryAttemptEnds == \A a \in Attempts : attempts[a].phase # "idle" ~> attempts[a].phase \in {"failed", "released"}
\* L2: whatever happened, the blocks come back.
BlocksReturn == \A a \in Attempts : dests[a].phase \in {"draining", "poisoned"} ~> dests[a].phase = "reclaimed"

-------------------------------------------------------------------------------
(* Witnesses: each is false in some behaviour, and a configuration shows    *)
(* which, so that we know that the interesting situations do occur.         *)

\* With read_lease a revoked buffer is overwritten while Decode still reads it; only COMMITTED keeps that harmless.
NeverTornByRevoke == \A x \in io : (x.op = "read" /\ x.right) =>
                        Holds(mem[SlotOf(x.transfer[3])], x.transfer[1], x.transfer[2], x.transfer[3])
\* A copy of unknown fate outlives its attempt.
NeverStrayAfterFailure == \A x \in io : x.op = "stray" => attempts[x.attempt].phase # "failed" \/ dests[x.attempt].phase # "draining"
\* A second run of an attempt is refused while the first one succeeds.
NeverRivalRefused == \A r, q \in Runs : ~(r # q /\ runs[r].phase = "failed" /\ runs[q].phase = "done" /\ runs[r].attempt = runs[q].attempt)
\* A run fails because what it needs was evicted, or its save failed.
NeverMiss == \A r \in Runs : ~(runs[r].phase = "failed" /\ \E c \in Chunks : PO!Missing(pool[<<r, c>>]) /\ runs[r].chunk > c)
\* An answer is lost, and the report is answered again.
NeverAnsweredTwice == \A t \in Transfers : ~(used["loss"] = 1 /\ reads[t].phase = "committed" /\ net = {})
\* Two attempts use the same blocks one after the other, both with success.
NeverReusedBlocks == \A a, b \in Attempts : ~(a # b /\ attempts[a].phase = "released" /\ attempts[b].phase = "scheduled")
===============================================================================
