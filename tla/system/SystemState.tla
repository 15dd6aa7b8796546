----------------------------- MODULE SystemState ------------------------------
(***************************************************************************)
(* What System is made of: its constants, its variables, the machines on   *)
(* which it rests, how it begins, and the steps that a session takes by    *)
(* itself as soon as a machine allows them (Settle...).                    *)
(*                                                                         *)
(* Two kinds of variable.  What sessions remember are machine states.      *)
(* Physical truth is kept apart, in variables that no session sees: what   *)
(* is in each slot (mem), in the pool (pooled) and in Decode's blocks      *)
(* (dest), and which copies are under way (io).  Contents are tags.  A     *)
(* read, save or attention is right only if its source had the right tag   *)
(* at its beginning and still has it at its end.                           *)
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
    \* Prefill: machine states, of each member its own; the pool's objects are the group's
    runs, slots, transfers, pool,
    lane,          \* the lane of each run, from its start on
    \* Decode: machine states
    attempts, bindings, dests, groups, reads,
    block,         \* the block set of each admitted attempt
    net,           \* messages in flight
    used,          \* faults used up
    \* physical truth
    mem, pooled, dest, io, registered,
    taken,         \* steps whose slot has been taken, and not yet written
    owner,         \* the attempt to which the allocator has given each block set, or 0
    \* history that only properties look at
    replies,       \* what Prefill answered about each transfer
    verdicts,      \* what each member said of each run
    landed,        \* transfers whose bytes landed, right, before anybody was told so
    blamed,        \* <<"attempt", a>> aborted; <<"run", r>> met a fault; <<"rival", a>> was started twice
    lives,         \* which lives of the two sides there are, and who knows of which (SystemCrash); no part of vars: see Born
    ev

sides == <<runs, slots, transfers, pool, lane, attempts, bindings, dests, groups, reads, block>>
bytes == <<mem, pooled, dest, io, registered, taken>>
truth == <<bytes, owner>>
history == <<replies, verdicts, landed, blamed>>
vars == <<sides, net, used, truth, history, ev>>
View == <<sides, net, used, truth, history, lives>>

PB == INSTANCE PhysicalBuffer WITH Works <- {}, Transfers <- {}, MaxEpoch <- 0
TR == INSTANCE Transfer
PR == INSTANCE PrefillRun WITH Transfers <- {}, MaxChunks <- 0, MaxLayers <- 0
PO == INSTANCE PoolObject WITH Pins <- {}
SA == INSTANCE StepAgreement WITH Members <- {}
RD == INSTANCE Read
CG == INSTANCE ContributorGroup WITH Members <- {}
BI == INSTANCE Binding
PE == INSTANCE Peer
RC == INSTANCE RequestCompletion WITH MaxChunks <- 0
FI == INSTANCE FailureInvalidation WITH Ranks <- {}, Groups <- {}

\* The width of the system.  A configuration may say more: Members = {0, 1}, Lanes = {1, 2}, IndexerBlocks = 3.
Members == {0}           \* 0..n-1, the Prefill ranks; 0 is their leader
DecodeRanks == {0}       \* 0..n-1, the Decode ranks, a divisor of the Members in number; 0 speaks for all (SystemRanks)
Lanes == {1}             \* 1..n; each slot has the blocks of every lane, so runs of different lanes are in flight side by side
IndexerBlocks == 1       \* indexer blocks of a step; the members that feed one Decode rank share them out
Retiring == FALSE        \* do sessions forget what is over?  A configuration says TRUE
MaxCrashDecode == 0
MaxCrashPrefill == 0
GivingWay == FALSE       \* may a run give its room to others between two chunks?  A configuration says TRUE

AllChunks(a) == NumChunks      \* for configurations: every prompt has the most
LongThenShort(a) == IF a = 1 THEN NumChunks ELSE 1      \* or only the first one
Chunks == 1..NumChunks
Steps == Chunks \X Layers
Transfers == Runs \X Chunks \X Layers \X Members       \* <<run, chunk, layer, member>>
SlotOf(l) == IF l \in Shared THEN Cardinality({k \in Shared : k < l}) % SharedSlots
                            ELSE SharedSlots + Cardinality({k \in Layers \ Shared : k < l})
Slots == {SlotOf(l) : l \in Layers}
Gates == Slots \X Lanes
GateOf(r, l) == <<SlotOf(l), lane[r]>>
\* What a load for chunk c of run r reads.
Earlier(r, c) == {<<r, k>> : k \in 1..(c - 1)}
\* A slot of its own that the run still has is extended: its earlier chunks are there.
Extends(m, r, c, l) == l \notin Shared /\ c > 1 /\ slots[m][GateOf(r, l)].owner = r
\* What step (c, l) of run r needs from the pool at member m.
Needed(m, r, c, l) == IF Extends(m, r, c, l) THEN {} ELSE Earlier(r, c)
Leader == 0
Rank == 0

\* The members that feed one Decode rank are a contributor group: each member feeds one rank, and has a place among those of that rank.
Ratio == Cardinality(Members) \div Cardinality(DecodeRanks)
RankOf(m) == m \div Ratio
PlaceOf(m) == m % Ratio

\* What lies at one (chunk, layer) of a destination: of each Decode rank k its share of the main K/V, which is one memory, and its own
\* copy of all the indexer's blocks.  Part(k, 0) is that share, Part(k, b) is block b.  Prefill ranks hold all of the main K/V each, so
\* of a group the first one sends the share of its rank; the members of a group divide the indexer's blocks among them.  A member with
\* no part at all publishes and is answered like the others.
Part(k, b) == k * (IndexerBlocks + 1) + b
Parts == 0..Part(Cardinality(DecodeRanks) - 1, IndexerBlocks)
MainParts == {Part(k, 0) : k \in DecodeRanks}
Share(m) == LET n == Ratio  i == PlaceOf(m) IN
            {b \in 1..IndexerBlocks : IndexerBlocks * i < b * n /\ b * n <= IndexerBlocks * (i + 1)}
Sends(m) == {Part(RankOf(m), b) : b \in Share(m) \cup (IF PlaceOf(m) = 0 THEN {0} ELSE {})}

\* Has Decode rank k yet to register the destination of attempt a?  Does a rank still compute a forward of it?
Registering(a, k) == [op |-> "own", attempt |-> a, rank |-> k] \in io
Computing(a) == \E k \in DecodeRanks : [op |-> "forward", attempt |-> a, rank |-> k] \in io

\* What a pool object is made of: of every layer each member's share.
Piece(l, m) == m * Cardinality(Layers) + l
Pieces == {Piece(l, m) : l \in Layers, m \in Members}
Empty == <<0, 0, 0>>      \* nothing, or poison
Junk == <<0, 0, 1>>       \* bytes that belong to nobody

Count(f) == used[f]
Use(f) == used' = [used EXCEPT ![f] = @ + 1]

\* Nobody asks anything of a run or an attempt that does not exist, or not any more.
Started(m, r) == runs[m][r].phase # "idle"
Known(a) == attempts[a].phase # "idle"

\* Was run r begun by the life of Prefill that is there now?  What a dead one has begun is forgotten.
Ours(r) == lives.began[r] = lives.prefill

\* The steps of run r at member m whose attention, save or load is under way, as the sessions know it.
HeldBy(m, r) == {t \in Transfers : /\ t[1] = r /\ t[4] = m
                                   /\ \/ \E i \in Gates : t \in slots[m][i].attending \cup slots[m][i].saves
                                      \/ \E c \in Chunks : t \in pool[<<r, c>>].pins}

\* Does slot memory m hold chunk c of layer l of run r?
Holds(m, r, c, l) == m[1] = r /\ m[2] = l /\ m[3] >= c

InitialWork ==
    /\ runs = [m \in Members |-> [r \in Runs |-> PR!Initial]]
    /\ slots = [m \in Members |-> [i \in Gates |-> PB!Initial]]
    /\ transfers = [t \in Transfers |-> TR!Initial]
    /\ pool = [o \in Runs \X Chunks |-> PO!Initial]
    /\ lane = [r \in Runs |-> 0]
    /\ attempts = [a \in Attempts |-> RC!Initial]
    /\ bindings = [a \in Attempts |-> BI!Initial]
    /\ dests = [a \in Attempts |-> FI!Initial]
    /\ groups = [g \in Attempts \X Chunks \X Layers |-> CG!Initial(Members)]
    /\ reads = [t \in Transfers |-> RD!Initial]
    /\ block = [a \in Attempts |-> 0]
    /\ net = {}
    /\ used = [f \in {"loss", "dup", "fail", "unknown", "save", "load", "evict", "abort", "revoke",
                       "crash_decode", "crash_prefill"} |-> 0]
    /\ mem = [m \in Members |-> [i \in Gates |-> Empty]]
    /\ pooled = {}
    /\ dest = [b \in Blocks |-> [cl \in Steps |-> [p \in Parts |-> Empty]]]
    /\ io = {}
    /\ registered = {}
    /\ taken = {}
    /\ owner = [b \in Blocks |-> 0]
    /\ replies = {}
    /\ verdicts = {}
    /\ landed = {}
    /\ blamed = {}
    /\ ev = [op |-> "Init"]
Init ==
    /\ InitialWork
    /\ lives = [decode |-> 1, prefill |-> 1, born |-> [a \in Attempts |-> 0], began |-> [r \in Runs |-> 0],
                peers |-> [i \in 1..(MaxCrashDecode + 1) |-> PE!Initial], met |-> 1]

-------------------------------------------------------------------------------
(* What a session does by itself.                                           *)

\* What is forgotten: a session knows only that the nonce was used; for whom the run was begun stays true.
Forgotten(p) == [PR!Forget(p) EXCEPT !.attempt = p.attempt]

SettleSlot(s) == IF PB!CanRelease(s) THEN PB!Release(s) ELSE s
SettleObject(o) == IF PO!CanFinish(o) THEN PO!Finish(o) ELSE o
SettleRun(p) == IF PR!CanFinish(p) THEN PR!Finish(p) ELSE p

\* A verdict is said when the phase becomes one.
Said(m, r, old, new) == IF new.phase # old.phase /\ new.phase \in {"done", "failed"}
                     THEN verdicts \cup {<<m, r, new.phase>>} ELSE verdicts

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

\* The destination of attempt a is in state d: it goes on as far as it may, and when it is reclaimed the allocator is told.
Drain(a, d, open) ==
    LET d1 == Emptied(d, open) IN
    /\ dests' = [dests EXCEPT ![a] = IF FI!CanReclaim(d1) THEN FI!Reclaim(d1) ELSE d1]
    /\ owner' = IF FI!CanReclaim(d1) THEN [owner EXCEPT ![block[a]] = 0] ELSE owner
\* And the attempt itself is in state s.  The end of a copy lets the destination go on alone: nothing is complete that was not so before.
Settle(a, s, d, open) ==
    /\ attempts' = [attempts EXCEPT ![a] = SettleAttempt(s)]
    /\ Drain(a, d, open)

-------------------------------------------------------------------------------
(* Messages.                                                                *)

READY(t, a) == [op |-> "READY", transfer |-> t, attempt |-> a,
                epoch |-> slots[t[4]][GateOf(t[1], t[3])].epoch, final |-> t[2] = runs[t[4]][t[1]].chunks]
Report(o, t) == [op |-> o, transfer |-> t, reader |-> lives.decode]
Answer(o, t) == [op |-> o, transfer |-> t]

Rest(m, keep) == IF keep THEN net ELSE net \ {m}
===============================================================================
