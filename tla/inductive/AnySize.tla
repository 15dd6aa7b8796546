------------------------------- MODULE AnySize --------------------------------
(***************************************************************************)
(* The system model without bounds, for induction.                         *)
(*                                                                         *)
(* System.tla is searched by TLC at small bounds.  This module is read by  *)
(* z3, which shows that Inv is inductive whatever the number of slots,     *)
(* layers, chunks, runs, attempts, block sets and Prefill ranks (members)  *)
(* that feed one Decode rank: it holds in Init, and no action leads out of *)
(* it.  TLC checks the same module at a small bound, so that Inv is known  *)
(* to hold of states that are really reached.                              *)
(*                                                                         *)
(* The machines are those of the sessions; an action has the name of the   *)
(* action of System, and asks and applies the same operators of the same   *)
(* machines (tests/conformance compares them).  What is simpler here:      *)
(*                                                                         *)
(*   - net only grows: every message that was ever sent may be delivered   *)
(*     now, again, or never.  So loss, duplication and any order need no   *)
(*     bound and no action.                                                *)
(*   - Faults are not counted: a copy fails, a lease runs out, a client    *)
(*     aborts, an object is evicted whenever the machines let it.          *)
(*   - Each member is a Prefill rank with slots, pool and a machine of the *)
(*     run of its own; nothing makes the ranks of a run keep step.         *)
(*   - Of contents only this is kept: whose rows lie in a slot, and of     *)
(*     which chunks.  Decode's blocks and the pool have none: ScheduleSafe *)
(*     and LoadBeforeCompute are left to TLC.                              *)
(*                                                                         *)
(* What z3 can read, and what is shown, is told in docs/any-size.md.       *)
(***************************************************************************)
EXTENDS Integers

CONSTANTS
    Runs, Attempts, Blocks, Slots,     \* any sets; 0 is in none of them
    Members,                           \* the Prefill ranks that feed the Decode rank
    NumLayers, NumChunks,
    SlotOf(_),                         \* the slot of a layer, the same for every member
    IsShared(_),                       \* does the layer share its slot?  The others own one
    ChunksOf(_),                       \* chunks of an attempt's prompt
    MaxEpoch                           \* for TLC: more epochs than it will see

Layers == 1..NumLayers
Chunks == 1..NumChunks
Steps == Chunks \X Layers
Transfers == Runs \X Chunks \X Layers \X Members
Ranks == {0}
Rank == 0

\* For configurations of TLC.
OneSlot(l) == 1
EachItsOwn(l) == l
All(x) == TRUE
None(x) == FALSE
Most(a) == NumChunks

Assumptions ==
    /\ NumLayers >= 1 /\ NumChunks >= 1
    /\ \A l \in Layers : SlotOf(l) \in Slots
    /\ \A l, k \in Layers : SlotOf(l) = SlotOf(k) => l = k \/ (IsShared(l) /\ IsShared(k))
    /\ \A a \in Attempts : ChunksOf(a) \in Chunks
ASSUME Assumptions

VARIABLES
    runs, slots, transfers, pool,                              \* Prefill, of each member
    attempts, bindings, dests, groups, reads, block,           \* Decode
    net,                                                       \* every message ever sent
    mem, io, registered, owner,                                \* physical truth
    replies, verdicts, landed                                  \* history, as in System

prefill == <<runs, slots, transfers, pool>>
decode == <<attempts, bindings, dests, groups, reads, block>>
history == <<replies, verdicts, landed>>
vars == <<prefill, decode, net, mem, io, registered, owner, history>>

PB == INSTANCE PhysicalBuffer WITH Works <- Transfers
TR == INSTANCE Transfer
PR == INSTANCE PrefillRun WITH MaxChunks <- NumChunks, MaxLayers <- NumLayers
PO == INSTANCE PoolObject WITH Pins <- Transfers
RD == INSTANCE Read
CG == INSTANCE ContributorGroup
BI == INSTANCE Binding
RC == INSTANCE RequestCompletion WITH MaxChunks <- NumChunks
FI == INSTANCE FailureInvalidation WITH Groups <- Steps

Messages ==
    [op : {"START", "ABORT"}, attempt : Attempts]
    \cup [op : {"READY"}, transfer : Transfers, attempt : Attempts, epoch : Int, final : BOOLEAN]
    \cup [op : {"READ_DONE", "READ_FAILED", "COMMITTED", "REVOKED"}, transfer : Transfers]
    \cup [op : {"RUN_FAILED"}, run : Runs, attempt : Attempts]
Copies ==
    [op : {"attend", "save"}, transfer : Transfers, right : BOOLEAN]
    \cup [op : {"load"}, transfer : Transfers]
    \cup [op : {"read"}, transfer : Transfers, attempt : Attempts, right : BOOLEAN]
    \cup [op : {"stray"}, transfer : Transfers, attempt : Attempts]

\* z3 takes the sorts of the variables from here; TLC checks it.
TypeOK ==
    /\ runs \in [Members \X Runs -> PR!State]
    /\ slots \in [Members \X Slots -> PB!State]
    /\ transfers \in [Transfers -> TR!State]
    /\ pool \in [Members \X Runs \X Chunks -> PO!State]
    /\ attempts \in [Attempts -> RC!State]
    /\ bindings \in [Attempts -> BI!State]
    /\ dests \in [Attempts -> FI!State]
    /\ groups \in [Attempts \X Chunks \X Layers -> CG!State]
    /\ reads \in [Transfers -> RD!State]
    /\ block \in [Attempts -> Blocks \cup {0}]
    /\ net \in SUBSET Messages
    /\ mem \in [Members \X Slots -> [run : Runs \cup {0}, layer : 0..NumLayers, chunks : SUBSET Chunks]]
    /\ io \in SUBSET Copies
    /\ registered \in SUBSET Attempts
    /\ owner \in [Blocks -> Attempts \cup {0}]
    /\ replies \in SUBSET (Transfers \X {"COMMITTED", "REVOKED"})
    /\ verdicts \in SUBSET (Members \X Runs \X {"done", "failed"})
    /\ landed \in SUBSET Transfers

Junk == [run |-> 0, layer |-> 0, chunks |-> {}]

Init ==
    /\ runs = [x \in Members \X Runs |-> PR!Initial]
    /\ slots = [x \in Members \X Slots |-> PB!Initial]
    /\ transfers = [t \in Transfers |-> TR!Initial]
    /\ pool = [o \in Members \X Runs \X Chunks |-> PO!Initial]
    /\ attempts = [a \in Attempts |-> RC!Initial]
    /\ bindings = [a \in Attempts |-> BI!Initial]
    /\ dests = [a \in Attempts |-> FI!Initial]
    /\ groups = [g \in Attempts \X Chunks \X Layers |-> CG!Initial(Members)]
    /\ reads = [t \in Transfers |-> RD!Initial]
    /\ block = [a \in Attempts |-> 0]
    /\ net = {}
    /\ mem = [x \in Members \X Slots |-> Junk]
    /\ io = {}
    /\ registered = {}
    /\ owner = [b \in Blocks |-> 0]
    /\ replies = {}
    /\ verdicts = {}
    /\ landed = {}

-------------------------------------------------------------------------------
(* What a session does by itself: as in System.                             *)

Started(m, r) == runs[<<m, r>>].phase # "idle"
Known(a) == attempts[a].phase # "idle"
SlotAt(t) == <<t[4], SlotOf(t[3])>>
RunAt(t) == <<t[4], t[1]>>
Holds(x, t) == x.run = t[1] /\ x.layer = t[3] /\ t[2] \in x.chunks

SettleSlot(s) == IF PB!CanRelease(s) THEN PB!Release(s) ELSE s
SettleObject(o) == IF PO!CanFinish(o) THEN PO!Finish(o) ELSE o
SettleRun(p) == IF PR!CanFinish(p) THEN PR!Finish(p) ELSE p

Said(m, r, old, new) == IF new.phase # old.phase /\ new.phase \in {"done", "failed"}
                        THEN verdicts \cup {<<m, r, new.phase>>} ELSE verdicts

LeaveSlot(s, r) == IF PB!CanLeave(s, r) THEN SettleSlot(PB!Leave(s, r)) ELSE s
FailRun(p) == IF PR!CanFail(p) THEN PR!Fail(p) ELSE p
SpoilObject(o) == IF PO!CanFail(o) THEN PO!Fail(o) ELSE o
Leave(sl, m, r) == [x \in Members \X Slots |-> IF x[1] = m THEN LeaveSlot(sl[x], r) ELSE sl[x]]
Spoil(pl, m, r) == [o \in Members \X Runs \X Chunks |-> IF o[1] = m /\ o[2] = r THEN SpoilObject(pl[o]) ELSE pl[o]]

FailAttempt(s) == IF RC!CanFail(s) THEN RC!Fail(s) ELSE s
Invalidate(s) == IF FI!CanPoison(s) THEN FI!Drain(FI!Poison(s)) ELSE s

SettleAttempt(s) ==
    LET s1 == IF RC!CanAdvertise(s) THEN RC!Advertise(s) ELSE s
    IN IF RC!CanComplete(s1) THEN RC!Complete(s1) ELSE s1

Open(a, gs) == {cl \in Steps : ~CG!CanQuiet(gs[<<a, cl[1], cl[2]>>])}
Emptied(s, open) ==
    LET s1 == IF FI!CanClose(s, Rank) THEN FI!Close(s, Rank) ELSE s
    IN IF FI!CanDrained(s1, Rank, open) THEN FI!Drained(s1, Rank) ELSE s1

Drain(a, d, open) ==
    LET d1 == Emptied(d, open) IN
    /\ dests' = [dests EXCEPT ![a] = IF FI!CanReclaim(d1) THEN FI!Reclaim(d1) ELSE d1]
    /\ owner' = IF FI!CanReclaim(d1) THEN [owner EXCEPT ![block[a]] = 0] ELSE owner
Settle(a, s, d, open) ==
    /\ attempts' = [attempts EXCEPT ![a] = SettleAttempt(s)]
    /\ Drain(a, d, open)

START(a) == [op |-> "START", attempt |-> a]
ABORT(a) == [op |-> "ABORT", attempt |-> a]
READY(t) == [op |-> "READY", transfer |-> t, attempt |-> runs[RunAt(t)].attempt,
             epoch |-> slots[SlotAt(t)].epoch, final |-> t[2] = runs[RunAt(t)].chunks]
Report(o, t) == [op |-> o, transfer |-> t]
RunFailed(m, r) == [op |-> "RUN_FAILED", run |-> r, attempt |-> runs[<<m, r>>].attempt]

-------------------------------------------------------------------------------
(* Decode: the life of an attempt.                                          *)

Admit(a, b) ==
    /\ RC!CanAllocate(attempts[a]) /\ FI!CanOwn(dests[a])
    /\ owner[b] = 0
    /\ attempts' = [attempts EXCEPT ![a] = SettleAttempt(RC!Allocate(@, Layers))]
    /\ dests' = [dests EXCEPT ![a] = Emptied(FI!Own(@, Ranks), {})]
    /\ owner' = [owner EXCEPT ![b] = a]
    /\ block' = [block EXCEPT ![a] = b]
    /\ net' = net \cup (IF attempts'[a].phase = "advertised" THEN {START(a)} ELSE {})
    /\ UNCHANGED <<prefill, bindings, groups, reads, mem, io, registered, history>>

Registered(a) ==
    /\ Known(a) /\ a \notin registered
    /\ RC!CanRegister(attempts[a])
    /\ registered' = registered \cup {a}
    /\ attempts' = [attempts EXCEPT ![a] = SettleAttempt(RC!Register(@))]
    /\ net' = net \cup (IF attempts'[a].phase = "advertised" THEN {START(a)} ELSE {})
    /\ UNCHANGED <<prefill, bindings, dests, groups, reads, block, mem, io, owner, history>>

Schedule(a) ==
    /\ Known(a)
    /\ RC!CanSchedule(attempts[a])
    /\ attempts' = [attempts EXCEPT ![a] = RC!Schedule(@)]
    /\ UNCHANGED <<prefill, bindings, dests, groups, reads, block, net, mem, io, registered, owner, history>>

Finish(a) ==
    /\ Known(a)
    /\ RC!CanFinish(attempts[a])
    /\ Settle(a, RC!Finish(attempts[a]), IF FI!CanDrain(dests[a]) THEN FI!Drain(dests[a]) ELSE dests[a], Open(a, groups))
    /\ UNCHANGED <<prefill, bindings, groups, reads, block, net, mem, io, registered, history>>

Abort(a) ==
    /\ Known(a)
    /\ RC!CanFail(attempts[a])
    /\ Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups))
    /\ net' = net \cup {ABORT(a)}
    /\ UNCHANGED <<prefill, bindings, groups, reads, block, mem, io, registered, history>>

ReadEnd(t, a, how) ==
    LET m == t[4]  g == <<a, t[2], t[3]>>
        good == [op |-> "read", transfer |-> t, attempt |-> a, right |-> TRUE]
        bad == [op |-> "read", transfer |-> t, attempt |-> a, right |-> FALSE]
        right == good \in io /\ Holds(mem[SlotAt(t)], t)
        failed == how # "ok"
    IN
    /\ good \in io \/ bad \in io
    /\ IF failed THEN RD!CanEndFailed(reads[t]) ELSE RD!CanEndOk(reads[t])
    /\ io' = (io \ {good, bad}) \cup (IF how = "unknown" THEN {[op |-> "stray", transfer |-> t, attempt |-> a]} ELSE {})
    /\ landed' = IF ~failed /\ right THEN landed \cup {t} ELSE landed
    /\ reads' = [reads EXCEPT ![t] = IF failed THEN RD!EndFailed(@, how = "quiet") ELSE RD!EndOk(@)]
    /\ groups' = [groups EXCEPT ![g] =
            LET g1 == IF how = "unknown" \/ ~CG!CanLanded(@, m) THEN @ ELSE CG!Landed(@, m)
            IN IF failed /\ CG!CanFail(g1, m) THEN CG!Fail(g1, m) ELSE g1]
    /\ IF failed THEN Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups'))
                 ELSE UNCHANGED attempts /\ Drain(a, dests[a], Open(a, groups'))
    /\ net' = net \cup {Report(RD!Report(reads'[t]), t)}
    /\ UNCHANGED <<prefill, bindings, block, mem, registered, replies, verdicts>>

Landed(t, a) ==
    LET op == [op |-> "stray", transfer |-> t, attempt |-> a]
        g == <<a, t[2], t[3]>>
    IN
    /\ op \in io
    /\ RD!CanLanded(reads[t])
    /\ io' = io \ {op}
    /\ reads' = [reads EXCEPT ![t] = RD!Landed(@)]
    /\ groups' = [groups EXCEPT ![g] = IF CG!CanLanded(@, t[4]) THEN CG!Landed(@, t[4]) ELSE @]
    /\ Drain(a, dests[a], Open(a, groups'))
    /\ UNCHANGED <<prefill, attempts, bindings, block, net, mem, registered, history>>

ResendReport(t) ==
    /\ RD!Unanswered(reads[t])
    /\ net' = net \cup {Report(RD!Report(reads[t]), t)}
    /\ UNCHANGED <<prefill, decode, mem, io, registered, owner, history>>

-------------------------------------------------------------------------------
(* Prefill: the worker's steps, each of one member.                         *)

Claim(m, r) ==
    LET p == runs[<<m, r>>]  c == p.chunk  l == p.layer  x == <<m, SlotOf(l)>>  w == <<r, c, l, m>>
        extend == ~IsShared(l) /\ c > 1
        load == IsShared(l) /\ c > 1
    IN
    /\ Started(m, r)
    /\ PR!CanAct(p)
    /\ IF extend THEN PB!CanExtend(slots[x], r) ELSE PB!CanClaim(slots[x])
    /\ \A k \in Chunks : load /\ k < c => PO!CanPin(pool[<<m, r, k>>])
    /\ slots' = [slots EXCEPT ![x] = IF extend THEN PB!Extend(@, r) ELSE PB!Claim(@, r, load)]
    /\ pool' = [o \in Members \X Runs \X Chunks |->
                    IF load /\ o[1] = m /\ o[2] = r /\ o[3] < c THEN PO!Pin(pool[o], w) ELSE pool[o]]
    /\ mem' = IF extend THEN mem
              ELSE [mem EXCEPT ![x] = IF load THEN Junk ELSE [run |-> r, layer |-> l, chunks |-> {}]]
    /\ io' = io \cup (IF load THEN {[op |-> "load", transfer |-> w]} ELSE {})
    /\ UNCHANGED <<runs, transfers, decode, net, registered, owner, history>>

\* Member m fails run r: the gates and the pool hear of it.
Failing(m, r, p, sl, pl) ==
    /\ runs' = [runs EXCEPT ![<<m, r>>] = FailRun(p)]
    /\ pool' = Spoil(pl, m, r)
    /\ slots' = Leave(sl, m, r)
    /\ verdicts' = Said(m, r, runs[<<m, r>>], FailRun(p))

LoadEnd(w, ok) ==
    LET m == w[4]  r == w[1]  c == w[2]  l == w[3]  x == SlotAt(w)
        sl == [slots EXCEPT ![x] = IF PB!CanLoadEnded(@) THEN SettleSlot(PB!LoadEnded(@)) ELSE @]
        pl == [o \in Members \X Runs \X Chunks |->
                  IF o[1] = m /\ o[2] = r /\ o[3] < c /\ PO!CanUnpin(pool[o], w) THEN PO!Unpin(pool[o], w) ELSE pool[o]]
    IN
    /\ [op |-> "load", transfer |-> w] \in io
    /\ io' = io \ {[op |-> "load", transfer |-> w]}
    /\ mem' = [mem EXCEPT ![x] = IF ok THEN [run |-> r, layer |-> l, chunks |-> {k \in Chunks : k < c}] ELSE Junk]
    /\ IF ok THEN slots' = sl /\ pool' = pl /\ UNCHANGED <<runs, verdicts, net>>
             ELSE /\ Failing(m, r, runs[<<m, r>>], sl, pl)
                  /\ net' = IF PR!CanFail(runs[<<m, r>>]) THEN net \cup {RunFailed(m, r)} ELSE net
    /\ UNCHANGED <<transfers, decode, registered, owner, replies, landed>>

Miss(m, r) ==
    LET p == runs[<<m, r>>] IN
    /\ Started(m, r)
    /\ PR!CanAct(p)
    /\ \E k \in Chunks : IsShared(p.layer) /\ k < p.chunk /\ PO!Missing(pool[<<m, r, k>>])
    /\ Failing(m, r, p, slots, pool)
    /\ net' = net \cup {RunFailed(m, r)}
    /\ UNCHANGED <<transfers, decode, mem, io, registered, owner, replies, landed>>

\* Run r has failed at another member, and m hears of it.
Stop(m, r) ==
    LET p == runs[<<m, r>>] IN
    /\ \E n \in Members : n # m /\ runs[<<n, r>>].phase = "failed"
    /\ PR!CanFail(p)
    /\ Failing(m, r, p, slots, pool)
    /\ UNCHANGED <<transfers, decode, net, mem, io, registered, owner, replies, landed>>

\* System also asks for the members' agreement: what is shown here does not rest on it.
Write(m, r) ==
    LET p == runs[<<m, r>>]  c == p.chunk  l == p.layer  x == <<m, SlotOf(l)>>  t == <<r, c, l, m>>  o == <<m, r, c>>
        right == mem[x].run = r /\ mem[x].layer = l
        new == SettleRun(PR!Advance(p, {t}))
    IN
    /\ Started(m, r)
    /\ PR!CanAct(p)
    /\ PB!CanWrite(slots[x], r)
    /\ TR!CanPublish(transfers[t])
    /\ mem' = [mem EXCEPT ![x] = IF right THEN [@ EXCEPT !.chunks = @ \cup {c}] ELSE Junk]
    /\ slots' = [slots EXCEPT ![x] = PB!Write(@, t, {t}, ~IsShared(l) /\ c < p.chunks)]
    /\ transfers' = [transfers EXCEPT ![t] = TR!Publish(@)]
    /\ pool' = [pool EXCEPT ![o] = IF PO!CanAllocate(@) THEN PO!Allocate(@, Layers) ELSE @]
    /\ runs' = [runs EXCEPT ![<<m, r>>] = new]
    /\ verdicts' = Said(m, r, p, new)
    /\ io' = io \cup {[op |-> "attend", transfer |-> t, right |-> right], [op |-> "save", transfer |-> t, right |-> right]}
    /\ net' = net \cup {READY(t)}
    /\ UNCHANGED <<decode, registered, owner, replies, landed>>

IoOf(o, t) == {x \in io : x.op = o /\ x.transfer = t}

LayerDone(t) ==
    LET x == SlotAt(t) IN
    /\ IoOf("attend", t) # {}
    /\ io' = io \ IoOf("attend", t)
    /\ slots' = [slots EXCEPT ![x] = IF PB!CanAttended(@, t) THEN SettleSlot(PB!Attended(@, t)) ELSE @]
    /\ UNCHANGED <<runs, transfers, pool, decode, net, mem, registered, owner, history>>

SaveEnd(t, ok) ==
    LET x == SlotAt(t)  o == <<t[4], t[1], t[2]>> IN
    /\ IoOf("save", t) # {}
    /\ io' = io \ IoOf("save", t)
    /\ pool' = [pool EXCEPT ![o] =
            IF ok THEN IF PO!CanLayerSaved(@, t[3]) THEN SettleObject(PO!LayerSaved(@, t[3])) ELSE @
                  ELSE SpoilObject(@)]
    /\ slots' = [slots EXCEPT ![x] = IF PB!CanSaveEnded(@, t) THEN SettleSlot(PB!SaveEnded(@, t)) ELSE @]
    /\ UNCHANGED <<runs, transfers, decode, net, mem, registered, owner, history>>

Evict(o) ==
    /\ pool[o].phase # "absent"
    /\ PO!CanEvict(pool[o])
    /\ pool' = [pool EXCEPT ![o] = PO!Evict(@)]
    /\ UNCHANGED <<runs, slots, transfers, decode, net, mem, io, registered, owner, history>>

\* Transfer t has a verdict: the gate and the run hear of it.
EndTransfer(t, new, failed) ==
    LET m == t[4]  r == t[1]  x == SlotAt(t)  old == runs[<<m, r>>]
        sl == [slots EXCEPT ![x] = IF PB!CanTransferEnded(@, t) THEN SettleSlot(PB!TransferEnded(@, t)) ELSE @]
        p == IF PR!CanClose(old, t) THEN PR!Close(old, t) ELSE old
    IN
    /\ transfers' = [transfers EXCEPT ![t] = new]
    /\ IF failed THEN Failing(m, r, p, sl, pool)
                 ELSE /\ runs' = [runs EXCEPT ![<<m, r>>] = SettleRun(p)]
                      /\ slots' = sl
                      /\ verdicts' = Said(m, r, old, SettleRun(p))
                      /\ UNCHANGED pool

Revoke(t) ==
    /\ TR!CanRevoke(transfers[t])
    /\ EndTransfer(t, TR!Revoke(transfers[t]), TRUE)
    /\ net' = IF PR!CanFail(runs[RunAt(t)]) THEN net \cup {RunFailed(t[4], t[1])} ELSE net
    /\ UNCHANGED <<decode, mem, io, registered, owner, replies, landed>>

ResendReady(t) ==
    /\ transfers[t].phase = "held"
    /\ net' = net \cup {READY(t)}
    /\ UNCHANGED <<prefill, decode, mem, io, registered, owner, history>>

-------------------------------------------------------------------------------
(* What each message does.                                                  *)

\* Nothing makes the members agree on what a nonce stands for: each may begin with START by itself (System's Join, and more).
OnStart(a, m, r) ==
    /\ START(a) \in net
    /\ PR!CanStart(runs[<<m, r>>])
    /\ runs' = [runs EXCEPT ![<<m, r>>] = PR!Start(@, a, ChunksOf(a), NumLayers)]
    /\ UNCHANGED <<slots, transfers, pool, decode, net, mem, io, registered, owner, history>>

OnReady(x) ==
    LET t == x.transfer  a == x.attempt  r == t[1]  c == t[2]  l == t[3]  m == t[4]  g == <<a, c, l>>
        bound == IF BI!CanBind(bindings[a]) THEN BI!Bind(bindings[a], r) ELSE bindings[a]
        accept == FI!CanRead(dests[a], Rank) /\ BI!CanAccept(bound, r)
        right == Holds(mem[SlotAt(t)], t)
        s1 == IF RC!CanReceive(attempts[a]) THEN RC!Receive(attempts[a]) ELSE attempts[a]
        s2 == IF x.final /\ RC!CanCount(s1) THEN RC!Count(s1, c) ELSE s1
    IN
    /\ x.op = "READY"
    /\ IF ~RD!CanBegin(reads[t])
       THEN /\ net' = net \cup (IF RD!Unanswered(reads[t]) THEN {Report(RD!Report(reads[t]), t)} ELSE {})
            /\ UNCHANGED <<bindings, reads, groups, attempts, io>>
       ELSE IF accept
       THEN /\ bindings' = [bindings EXCEPT ![a] = bound]
            /\ reads' = [reads EXCEPT ![t] = RD!Begin(@)]
            /\ groups' = [groups EXCEPT ![g] = IF CG!CanBegin(@, m) THEN CG!Begin(@, m) ELSE @]
            /\ attempts' = [attempts EXCEPT ![a] = s2]
            /\ io' = io \cup {[op |-> "read", transfer |-> t, attempt |-> a, right |-> right]}
            /\ UNCHANGED net
       ELSE /\ net' = net \cup {Report("READ_FAILED", t)}
            /\ UNCHANGED <<bindings, reads, groups, attempts, io>>
    /\ UNCHANGED <<prefill, dests, block, mem, registered, owner, history>>

OnReport(x) ==
    LET t == x.transfer
        good == x.op = "READ_DONE" /\ TR!CanDone(transfers[t])
        bad == x.op = "READ_FAILED" /\ TR!CanFail(transfers[t])
        new == IF good THEN TR!Done(transfers[t]) ELSE IF bad THEN TR!Fail(transfers[t]) ELSE transfers[t]
        reply == TR!Reply(new)
    IN
    /\ x.op \in {"READ_DONE", "READ_FAILED"}
    /\ IF good \/ bad THEN EndTransfer(t, new, bad) ELSE UNCHANGED <<prefill, verdicts>>
    /\ net' = net \cup {Report(reply, t)}
    /\ replies' = replies \cup {<<t, reply>>}
    /\ UNCHANGED <<decode, mem, io, registered, owner, landed>>

OnCommitted(t) ==
    LET c == t[2]  l == t[3]  m == t[4]  a == runs[RunAt(t)].attempt  g == <<a, c, l>>
        new == IF CG!CanDone(groups[g], m) THEN CG!Done(groups[g], m) ELSE groups[g]
        s == IF CG!CanSucceed(new) /\ RC!CanGot(attempts[a]) THEN SettleAttempt(RC!Got(attempts[a], c, l)) ELSE attempts[a]
    IN
    /\ Report("COMMITTED", t) \in net
    /\ RD!CanCommit(reads[t])
    /\ reads' = [reads EXCEPT ![t] = RD!Commit(@)]
    /\ groups' = [groups EXCEPT ![g] = new]
    /\ attempts' = [attempts EXCEPT ![a] = s]
    /\ dests' = [dests EXCEPT ![a] = IF s.phase = "complete" /\ FI!CanValidate(@) THEN FI!Validate(@) ELSE @]
    /\ UNCHANGED <<prefill, bindings, block, net, mem, io, registered, owner, history>>

OnRevoked(t) ==
    LET a == runs[RunAt(t)].attempt  g == <<a, t[2], t[3]>> IN
    /\ Report("REVOKED", t) \in net
    /\ RD!CanRevoke(reads[t])
    /\ reads' = [reads EXCEPT ![t] = RD!Revoke(@)]
    /\ groups' = [groups EXCEPT ![g] = IF CG!CanFail(@, t[4]) THEN CG!Fail(@, t[4]) ELSE @]
    /\ Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups'))
    /\ UNCHANGED <<prefill, bindings, block, net, mem, io, registered, history>>

\* ABORT reaches member m: its runs of this attempt, and no others, fail.
OnAbort(a, m) ==
    LET hit(r) == runs[<<m, r>>].attempt = a /\ PR!CanFail(runs[<<m, r>>]) IN
    /\ ABORT(a) \in net
    /\ runs' = [x \in Members \X Runs |-> IF x[1] = m /\ hit(x[2]) THEN PR!Fail(runs[x]) ELSE runs[x]]
    /\ slots' = [x \in Members \X Slots |-> IF x[1] = m /\ \E r \in Runs : hit(r) /\ PB!CanLeave(slots[x], r)
                                            THEN SettleSlot(PB!Leave(slots[x], slots[x].owner)) ELSE slots[x]]
    /\ pool' = [o \in Members \X Runs \X Chunks |-> IF o[1] = m /\ hit(o[2]) THEN SpoilObject(pool[o]) ELSE pool[o]]
    /\ verdicts' = {v \in Members \X Runs \X {"done", "failed"} : v \in verdicts \/ (v[1] = m /\ hit(v[2]) /\ v[3] = "failed")}
    /\ UNCHANGED <<transfers, decode, net, mem, io, registered, owner, replies, landed>>

OnRunFailed(r, a) ==
    LET bound == IF BI!CanBind(bindings[a]) THEN BI!Bind(bindings[a], r) ELSE bindings[a] IN
    /\ [op |-> "RUN_FAILED", run |-> r, attempt |-> a] \in net
    /\ BI!CanAccept(bound, r)
    /\ bindings' = [bindings EXCEPT ![a] = bound]
    /\ Settle(a, FailAttempt(attempts[a]), Invalidate(dests[a]), Open(a, groups))
    /\ UNCHANGED <<prefill, groups, reads, block, net, mem, io, registered, history>>

Next ==
    \/ \E a \in Attempts, b \in Blocks : Admit(a, b)
    \/ \E a \in Attempts : Registered(a)
    \/ \E a \in Attempts : Schedule(a)
    \/ \E a \in Attempts : Finish(a)
    \/ \E a \in Attempts : Abort(a)
    \/ \E t \in Transfers, a \in Attempts, how \in {"ok", "quiet", "unknown"} : ReadEnd(t, a, how)
    \/ \E t \in Transfers, a \in Attempts : Landed(t, a)
    \/ \E t \in Transfers : ResendReport(t)
    \/ \E m \in Members, r \in Runs : Claim(m, r)
    \/ \E w \in Transfers, ok \in BOOLEAN : LoadEnd(w, ok)
    \/ \E m \in Members, r \in Runs : Miss(m, r)
    \/ \E m \in Members, r \in Runs : Stop(m, r)
    \/ \E m \in Members, r \in Runs : Write(m, r)
    \/ \E t \in Transfers : LayerDone(t)
    \/ \E t \in Transfers, ok \in BOOLEAN : SaveEnd(t, ok)
    \/ \E o \in Members \X Runs \X Chunks : Evict(o)
    \/ \E t \in Transfers : Revoke(t)
    \/ \E t \in Transfers : ResendReady(t)
    \/ \E a \in Attempts, m \in Members, r \in Runs : OnStart(a, m, r)
    \/ \E x \in net : OnReady(x)
    \/ \E x \in net : OnReport(x)
    \/ \E t \in Transfers : OnCommitted(t)
    \/ \E t \in Transfers : OnRevoked(t)
    \/ \E a \in Attempts, m \in Members : OnAbort(a, m)
    \/ \E r \in Runs, a \in Attempts : OnRunFailed(r, a)
Spec == Init /\ [][Next]_vars

-------------------------------------------------------------------------------
(* Safety, as in System.                                                    *)

\* I1: nobody who reads a slot, and whose reading still counts, ever sees it overwritten.
ReuseSafe ==
    \A x \in io :
        (\/ x.op \in {"attend", "save"} /\ x.right
         \/ x.op = "read" /\ x.right /\ transfers[x.transfer].phase = "held")
        => Holds(mem[SlotAt(x.transfer)], x.transfer)

\* I5: Prefill counts a transfer as done only when its own bytes have landed.
AckIdentity == \A t \in Transfers : transfers[t].phase = "done" => t \in landed

\* I13: no waiter gets two verdicts, and a run is done only when all its transfers are.
OneVerdict ==
    /\ \A t \in Transfers : ~(<<t, "COMMITTED">> \in replies /\ <<t, "REVOKED">> \in replies)
    /\ \A m \in Members, r \in Runs : ~(<<m, r, "done">> \in verdicts /\ <<m, r, "failed">> \in verdicts)
    /\ \A t \in Transfers : (<<t[4], t[1], "done">> \in verdicts /\ t[2] <= runs[RunAt(t)].chunks)
                            => transfers[t].phase = "done"

\* I6, I16: no copy, not even one that was said to have failed, is under way into blocks that its attempt does not own.
Quiescence ==
    \A x \in io : x.op \in {"read", "stray"} =>
        /\ owner[block[x.attempt]] = x.attempt
        /\ x.attempt \in registered

\* What Decode believes, of a member or of them all, has landed, and Prefill has not taken it back.
RevokedNotBelieved ==
    \A t \in Transfers :
        (\/ reads[t].phase = "committed"
         \/ \E a \in Attempts : bindings[a].run = t[1] /\ <<t[2], t[3]>> \in attempts[a].got)
        => t \in landed /\ transfers[t].phase \notin {"failed", "revoked", "lost"}

-------------------------------------------------------------------------------
(* The inductive invariant.                                                 *)

\* -- the gate of a slot
NamesShut ==
    \A m \in Members, i \in Slots : slots[<<m, i>>].phase \in {"free", "loading"} =>
        slots[<<m, i>>].attending = {} /\ slots[<<m, i>>].saves = {} /\ slots[<<m, i>>].transfers = {}
AttendNamed == \A x \in io : x.op = "attend" => x.transfer \in slots[SlotAt(x.transfer)].attending
SaveNamed == \A x \in io : x.op = "save" => x.transfer \in slots[SlotAt(x.transfer)].saves
HeldNamed == \A t \in Transfers : transfers[t].phase = "held" => t \in slots[SlotAt(t)].transfers
NamesHold ==
    \A t \in Transfers :
        (t \in slots[SlotAt(t)].attending \/ t \in slots[SlotAt(t)].saves \/ t \in slots[SlotAt(t)].transfers)
        => Holds(mem[SlotAt(t)], t)

\* -- who may write into a slot, and what is there
OwnerWrites ==
    \A m \in Members, i \in Slots, r \in Runs :
        (slots[<<m, i>>].owner = r /\ slots[<<m, i>>].phase \in {"loading", "computing"}) =>
            /\ SlotOf(runs[<<m, r>>].layer) = i
            /\ slots[<<m, i>>].phase = "computing" => mem[<<m, i>>].run = r /\ mem[<<m, i>>].layer = runs[<<m, r>>].layer
OwnerKeeps ==
    \A m \in Members, i \in Slots, r \in Runs :
        (slots[<<m, i>>].owner = r /\ slots[<<m, i>>].phase = "draining") =>
            /\ mem[<<m, i>>].run = r
            /\ mem[<<m, i>>].layer \in Layers
            /\ SlotOf(mem[<<m, i>>].layer) = i
LoadInto ==
    \A x \in io : x.op = "load" =>
        /\ slots[SlotAt(x.transfer)].phase = "loading"
        /\ \A r \in Runs : slots[SlotAt(x.transfer)].owner = r =>
               x.transfer[1] = r /\ x.transfer[3] = runs[RunAt(x.transfer)].layer
LoadAlone == \A x, y \in io : (x.op = "load" /\ y.op = "load" /\ SlotAt(x.transfer) = SlotAt(y.transfer)) => x.transfer = y.transfer

\* -- where a run is
Behind(t) == LET p == runs[RunAt(t)] IN t[2] < p.chunk \/ (t[2] = p.chunk /\ t[3] < p.layer)
Cursor ==
    \A m \in Members, r \in Runs : LET p == runs[<<m, r>>] IN
        /\ p.layer \in Layers /\ p.chunk >= 1
        /\ p.phase = "idle" => p.chunk = 1 /\ p.layer = 1
        /\ p.phase # "idle" => p.layers = NumLayers
        /\ p.phase = "computed" => p.chunk > p.chunks
        /\ p.phase = "running" => p.chunk <= p.chunks /\ p.chunks <= NumChunks
BehindPublished ==
    \A t \in Transfers : (runs[RunAt(t)].phase \in {"running", "computed"} /\ Behind(t)) => transfers[t].phase \in {"held", "done"}
HeldOpen ==
    \A t \in Transfers : (runs[RunAt(t)].phase \in {"running", "computed"} /\ transfers[t].phase = "held") => t \in runs[RunAt(t)].open
VerdictSaid ==
    \A m \in Members, r \in Runs :
        /\ <<m, r, "done">> \in verdicts => runs[<<m, r>>].phase = "done"
        /\ <<m, r, "failed">> \in verdicts => runs[<<m, r>>].phase = "failed"

\* -- a transfer and its messages
PublishedStarted == \A t \in Transfers : transfers[t].phase # "idle" => Started(t[4], t[1])
HeardPublished ==
    /\ \A x \in net : x.op \in {"READY", "READ_DONE", "READ_FAILED"} => transfers[x.transfer].phase # "idle"
    /\ \A t \in Transfers : reads[t].phase # "idle" => transfers[t].phase # "idle"
ReadRight == \A x \in io : (x.op = "read" /\ transfers[x.transfer].phase = "held") => x.right
ReportedLanded ==
    \A t \in Transfers : (transfers[t].phase = "held" /\ (Report("READ_DONE", t) \in net \/ reads[t].phase = "done")) => t \in landed
Answers ==
    \A t \in Transfers :
        /\ (Report("COMMITTED", t) \in net \/ <<t, "COMMITTED">> \in replies \/ reads[t].phase = "committed") => transfers[t].phase = "done"
        /\ <<t, "REVOKED">> \in replies => transfers[t].phase \in {"failed", "revoked", "lost"}

\* -- whom a run works for
StartRegistered == \A x \in net : x.op = "START" => x.attempt \in registered
RunRegistered == \A m \in Members, r \in Runs : Started(m, r) => runs[<<m, r>>].attempt \in registered
Typed == net \subseteq Messages /\ io \subseteq Copies /\ registered \subseteq Attempts
ReadyNames == \A x \in net : x.op = "READY" => x.attempt = runs[RunAt(x.transfer)].attempt

\* -- copies on Decode
ReadBound == \A t \in Transfers : reads[t].phase # "idle" => bindings[runs[RunAt(t)].attempt].run = t[1]
CopyPhase ==
    \A x \in io : /\ x.op = "read" => reads[x.transfer].phase = "reading"
                  /\ x.op = "stray" => reads[x.transfer].phase \notin {"idle", "reading"}
CopyNamed ==
    \A x \in io : x.op \in {"read", "stray"} =>
        /\ x.attempt = runs[RunAt(x.transfer)].attempt
        /\ x.transfer[4] \in groups[<<x.attempt, x.transfer[2], x.transfer[3]>>].reading
GroupWhole == \A a \in Attempts, c \in Chunks, l \in Layers, m \in Members : m \in groups[<<a, c, l>>].members
GroupDone ==
    \A a \in Attempts, t \in Transfers :
        (t[4] \in groups[<<a, t[2], t[3]>>].done /\ bindings[a].run = t[1]) => reads[t].phase = "committed"
GotDone ==
    \A a \in Attempts, t \in Transfers :
        (<<t[2], t[3]>> \in attempts[a].got /\ bindings[a].run = t[1]) => reads[t].phase = "committed"
Unbound ==
    /\ \A a \in Attempts, c \in Chunks, l \in Layers : bindings[a].run = 0 => <<c, l>> \notin attempts[a].got
    /\ \A a \in Attempts, c \in Chunks, l \in Layers, m \in Members : bindings[a].run = 0 => m \notin groups[<<a, c, l>>].done

\* -- blocks
DestFresh ==
    \A a \in Attempts :
        /\ attempts[a].phase = "idle" <=> dests[a].phase = "idle"
        /\ dests[a].phase = "idle" => Rank \notin dests[a].closed /\ a \notin registered
        /\ dests[a].phase # "idle" => Rank \in dests[a].ranks
DestOwned == \A a \in Attempts : dests[a].phase \notin {"idle", "reclaimed"} => owner[block[a]] = a
DrainedClosed == \A a \in Attempts : Rank \in dests[a].drained => Rank \in dests[a].closed
DrainedQuiet ==
    \A a \in Attempts, c \in Chunks, l \in Layers, m \in Members :
        Rank \in dests[a].drained => m \notin groups[<<a, c, l>>].reading
ReclaimedDrained == \A a \in Attempts : dests[a].phase = "reclaimed" => Rank \in dests[a].drained

Safety == ReuseSafe /\ AckIdentity /\ OneVerdict /\ Quiescence /\ RevokedNotBelieved

\* The properties, and what keeps them.
Inv ==
    /\ Safety
    /\ NamesShut /\ AttendNamed /\ SaveNamed /\ HeldNamed /\ NamesHold
    /\ OwnerWrites /\ OwnerKeeps /\ LoadInto /\ LoadAlone
    /\ Cursor /\ BehindPublished /\ HeldOpen /\ VerdictSaid
    /\ PublishedStarted /\ HeardPublished /\ ReadRight /\ ReportedLanded /\ Answers
    /\ Typed /\ StartRegistered /\ RunRegistered /\ ReadyNames
    /\ ReadBound /\ CopyPhase /\ CopyNamed /\ GroupWhole /\ GroupDone /\ GotDone /\ Unbound
    /\ DestFresh /\ DestOwned /\ DrainedClosed /\ DrainedQuiet /\ ReclaimedDrained

\* For configurations of TLC that would be too large: nothing fails.
Smooth == \A a \in Attempts : attempts[a].phase # "failed"
===============================================================================
