------------------------------ MODULE TraceRules ------------------------------
(***************************************************************************)
(* What a line of a recorded run asks of the state before it.              *)
(*                                                                         *)
(* A line is a machine event, which names an action of System, or a        *)
(* physical one: the data path began or ended to write, attend, save, load *)
(* or read the rows of one step.  Physical lines leave System's variables  *)
(* alone; they are claims about the bytes, and the bytes must agree with    *)
(* what the machines believed.  Three variables remember them:             *)
(*   seen[t]  what was last seen of the rows of step t: the epoch and tag  *)
(*            of their computation, that attention used them, the tag that *)
(*            was saved, the tag that Decode fetched;                      *)
(*   under    what has begun and not ended;                                *)
(*   loaded   <<t, k>>: for step t chunk k has been loaded.                *)
(*                                                                         *)
(* Needs(line) lists <<rule, holds?>>: a line fits only if all hold, and   *)
(* those that do not are the explanation.  For events the list repeats the *)
(* guards of the action and adds what the bytes must have done before.     *)
(*                                                                         *)
(* Members are the ranks of Prefill.  Each has memory of its own, so what  *)
(* is said of a slot is said of a member's slot, in the lane of a run.     *)
(* A tag is that of all rows of a step; a member that saved or sent a      *)
(* share of them, right in each byte, goes by the tag of them all, and one *)
(* whose share is empty has no physical line (empty).                      *)
(***************************************************************************)
EXTENDS TraceLives

VARIABLES seen, loaded

None == ""
Unseen == [epoch |-> 0, wrote |-> None, attended |-> FALSE, saved |-> None, began |-> FALSE, fetched |-> None]

Run(m, r) == runs[m][r]
Gate(t) == IF lane[t[1]] = 0 THEN PB!Initial ELSE slots[t[4]][GateOf(t[1], t[3])]      \* 0: the run has not begun
StepOf(m, r) == <<r, Run(m, r).chunk, Run(m, r).layer, m>>
SameGate(t, u) == t[4] = u[4] /\ SlotOf(t[3]) = SlotOf(u[3]) /\ lane[t[1]] = lane[u[1]]
Under(what, t) == {x \in under : x.what = what /\ x.transfer = t}
Is(what, line, k) == [what |-> what, transfer |-> line.transfer, slot |-> line.slot, epoch |-> line.epoch, chunk |-> k]

\* What is open and still needs the gate of t, in another epoch than e.  A read whose transfer was given up needs nothing, nor does
\* the attention of a step that was never published: its run had failed when a rank wrote it.
Needing(t, e) == {x \in under : /\ SameGate(x.transfer, t)
                                /\ x.epoch # e
                                /\ x.what = "read" => transfers[x.transfer].phase \in {"held", "done"}
                                /\ x.what = "attend" => transfers[x.transfer].phase # "idle"}
InGate(what, t) == {x \in under : x.what = what /\ SameGate(x.transfer, t)}

\* Run r has failed at member m, which may have forgotten it since: the rank hears of that when its step ends.
Over(m, r) == Run(m, r).phase \in {"failed", "forgotten"}

\* A step that its member has written and will not publish, for its run has failed.
Vain(t) == transfers[t].phase = "idle" /\ Over(t[4], t[1])

Place(line) ==
    <<<<"the slot is the one of this layer", line.slot = SlotOf(line.transfer[3])>>>>

Overwrites(line) == Place(line) \o
    <<<<"the slot is still in this epoch", Gate(line.transfer).epoch = line.epoch>>,
      <<"nothing else of an earlier epoch reads or writes the slot", Needing(line.transfer, line.epoch) = {}>>,
      <<"no computation into the slot is open", InGate("write", line.transfer) = {}>>>>

Began(line, what) == <<<<"it began, with this slot and epoch, and has not ended", Is(what, line, line.chunk) \in under>>>>

Written(line) == Place(line) \o
    <<<<"the rows were computed in this epoch", seen[line.transfer].wrote # None /\ seen[line.transfer].epoch = line.epoch>>>>
Same(line, what) == <<<<what, line.tag = seen[line.transfer].wrote>>>>

ReadTag(line, tag) == <<<<"what is read is what was computed", ReadLease \/ tag = seen[line.transfer].wrote>>>>
Ended(what, t) == <<<<"nothing of it is still open", Under(what, t) = {}>>>>

PhysicalNeeds(line) ==
    LET t == line.transfer  r == t[1]  m == t[4]  k == line.kind IN
    CASE k = "write_begin" -> Overwrites(line) \o
             <<<<"this step is the run's next one", t = StepOf(m, r) \/ Run(m, r).phase = "forgotten">>,
               <<"the slot is claimed by this run and loaded (or the run has failed since)",
                 \/ Gate(t).phase = "computing" /\ Gate(t).owner = r
                 \/ Over(m, r)
                 >>,
               <<"StepAgreement.CanEnter: every rank has the slot and what must be in it, or has begun (or the run has failed since)",
                 Members = {Leader} \/ Over(m, r) \/ SA!CanEnter(Agreement(r, t[2], t[3]))>>,
               <<"no load into the slot is open", InGate("load", t) = {}>>>>
      [] k = "write_end" -> Began(line, "write") \o
             <<<<"every rank computes the same rows",
                 line.ok => \A n \in Members : seen[<<r, t[2], t[3], n>>].wrote \in {None, line.tag}>>>>
      [] k = "attend_begin" -> Written(line) \o
             <<<<"its Write came before and its LayerDone has not come", IoOf("attend", t) # {} \/ Vain(t)>>,
               <<"it attends once", ~seen[t].attended /\ Under("attend", t) = {}>>>>
      [] k = "attend_end" -> Began(line, "attend") \o
             <<<<"its rows are still what was computed", line.tag = seen[t].wrote \/ transfers[t].phase = "idle">>>>
      [] k = "save_begin" -> Written(line) \o Same(line, "what is saved is what was computed") \o
             <<<<"its Write came before and its SaveEnd has not come", IoOf("save", t) # {}>>,
               <<"it is saved into its own chunk", line.chunk = t[2]>>,
               <<"it is saved once", seen[t].saved = None /\ Under("save", t) = {}>>>>
      [] k = "save_end" -> Began(line, "save") \o Same(line, "what was saved is still what was computed")
      [] k = "load_begin" -> Overwrites(line) \o
             <<<<"its Claim came before and its LoadEnd has not come", [op |-> "load", transfer |-> t] \in io>>,
               <<"it loads an earlier chunk, once", /\ line.chunk \in 1..(t[2] - 1) /\ <<t, line.chunk>> \notin loaded
                                                    /\ Is("load", line, line.chunk) \notin under>>>>
      [] k = "load_end" -> Began(line, "load") \o
             <<<<"what was loaded is what was saved", line.ok => \A n \in Members : line.tag = seen[<<r, line.chunk, t[3], n>>].saved>>>>
      [] k = "read_begin" -> Written(line) \o ReadTag(line, line.tag) \o
             <<<<"its READY was delivered and its ReadEnd has not come",
                 \E x \in io : x.op = "read" /\ x.transfer = t>>,
               <<"it is read once, or again where that failed and has ended", seen[t].fetched = None /\ Under("read", t) = {}>>>>
      [] k = "read_end" -> Began(line, "read") \o
             (IF line.ok THEN ReadTag(line, line.tag) \o ReadTag(line, line.landed) ELSE <<>>) \o
             <<<<"its ReadEnd has not come, or said unknown", \E x \in io : x.op \in {"read", "stray"} /\ x.transfer = t>>>>

\* What the guards of System ask, and what the bytes must have done.
ClaimNeeds(m, r) ==
    LET p == Run(m, r)  t == StepOf(m, r)  extend == Extends(m, r, p.chunk, p.layer) IN
    <<<<"PrefillRun.CanAct: the run is running", PR!CanAct(p)>>>> \o
    IF ~PR!CanAct(p) THEN <<>> ELSE
    <<<<IF extend THEN "PhysicalBuffer.CanExtend: the run owns its layer's slot, and has written the chunk before"
                  ELSE "PhysicalBuffer.CanClaim: the gate of the slot is open (free)",
        IF extend THEN PB!CanExtend(Gate(t), r) ELSE PB!CanClaim(Gate(t))>>,
      <<"the leader takes each gate first, so all take it for one run", Follows(m, r, p.chunk, p.layer)>>,
      <<"PoolObject.CanPin: every earlier chunk is readable", \A o \in Needed(m, r, p.chunk, p.layer) : PO!CanPin(pool[o])>>>>

GiveWayNeeds(m, r) ==
    LET p == Run(m, r)  own == {i \in Gates : slots[m][i].owner = r} IN
    <<<<"PrefillRun.CanAct: the run is running", PR!CanAct(p)>>>> \o
    IF ~PR!CanAct(p) THEN <<>> ELSE
    <<<<"it is between two chunks, and has its slots of its own, if there are any", p.layer = 1 /\ (Shared = Layers \/ own # {})>>,
      <<"PhysicalBuffer.CanExtend: it has taken none for the next chunk", \A i \in own : PB!CanExtend(slots[m][i], r)>>,
      <<"PoolObject.CanPin: every earlier chunk is readable", \A o \in Earlier(r, p.chunk) : PO!CanPin(pool[o])>>>>

WriteNeeds(m, r) ==
    LET p == Run(m, r)  t == StepOf(m, r) IN
    <<<<"PrefillRun.CanAct: the run is running", PR!CanAct(p)>>>> \o
    IF ~PR!CanAct(p) THEN <<>> ELSE
    <<<<"PhysicalBuffer.CanWrite: the slot is claimed by this run, and loaded", PB!CanWrite(Gate(t), r)>>,
      <<"StepAgreement.CanEnter: all members have agreed on this step, or have entered it",
        Members = {Leader} \/ SA!CanEnter(Agreement(r, p.chunk, p.layer))>>,
      <<"Transfer.CanPublish: this step was not published before", TR!CanPublish(transfers[t])>>,
      <<"its rows were written: a write_end with ok", seen[t].wrote # None /\ Under("write", t) = {}>>,
      <<"they were written in the epoch that the slot is in", seen[t].epoch = Gate(t).epoch>>>>

CommittedNeeds(m) ==
    LET t == m.transfer IN
    <<<<"what is believed is what was computed (the tag that landed)",
        RD!CanCommit(reads[t]) => seen[t].fetched = seen[t].wrote>>>>

DeliverNeeds(line) ==
    LET m == line.message IN
    <<<<"this message, with this epoch and final, was sent and is in flight", m \in net>>>> \o
    IF m.op = "COMMITTED" THEN CommittedNeeds(m) ELSE <<>>

ReadEndNeeds(t, a, how, empty) ==
    <<<<"its READY was delivered and accepted, and it has not ended",
        \E x \in io : x.op = "read" /\ x.transfer = t /\ x.attempt = a>>,
      <<"Read: the read is under way", IF how = "ok" THEN RD!CanEndOk(reads[t]) ELSE RD!CanEndFailed(reads[t])>>>> \o
    CASE how = "ok"      -> <<<<"its bytes landed: a read_end with ok", empty \/ seen[t].fetched # None>>>>
      [] how = "quiet"   -> Ended("read", t)
      [] how = "unknown" -> <<<<"it began: a read_begin", seen[t].began>>>>

EventNeeds(line) ==
    LET op == line.op IN
    CASE op = "Admit" -> <<<<"RequestCompletion.CanAllocate: the attempt is new", RC!CanAllocate(attempts[line.attempt])>>>>
      [] op = "Registered" -> <<<<"RequestCompletion.CanRegister: it is allocated, and registered once",
                                  RC!CanRegister(attempts[line.attempt])>>>>
      [] op = "Schedule" -> <<<<"RequestCompletion.CanSchedule: every layer of every chunk is committed",
                                RC!CanSchedule(attempts[line.attempt])>>>>
      [] op = "Finish" -> <<<<"RequestCompletion.CanFinish: the attempt is scheduled", RC!CanFinish(attempts[line.attempt])>>>>
      [] op = "Abort" -> <<<<"RequestCompletion.CanFail: the attempt waits still", RC!CanFail(attempts[line.attempt])>>>>
      [] op = "ReadEnd" -> ReadEndNeeds(line.transfer, line.attempt, line.how, line.empty)
      [] op = "Landed" ->
             <<<<"Read.CanLanded: its failure was unknown and it has not ended", RD!CanLanded(reads[line.transfer])>>,
               <<"its copy has ended: a read_end", seen[line.transfer].began>>>> \o Ended("read", line.transfer)
      [] op = "ResendReport" -> <<<<"Read.Unanswered: its report is not answered", RD!Unanswered(reads[line.transfer])>>>>
      [] op = "Claim" -> ClaimNeeds(line.member, line.run)
      [] op = "Write" -> WriteNeeds(line.member, line.run)
      [] op = "Miss" -> <<<<"PrefillRun.CanAct: the run is running", PR!CanAct(Run(line.member, line.run))>>,
                          <<"PoolObject.Missing: something that its next step needs is lost",
                            LET p == Run(line.member, line.run) IN
                            PR!CanAct(p) => \E o \in Needed(line.member, line.run, p.chunk, p.layer) : PO!Missing(pool[o])>>>>
      [] op = "GiveWay" -> GiveWayNeeds(line.member, line.run)
      [] op = "Join" -> <<<<"the leader has begun the run", Started(Leader, line.run)>>,
                          <<"PrefillRun.CanStart: this member joins it once", PR!CanStart(Run(line.member, line.run))>>>>
      [] op = "Stop" -> <<<<"the run has failed at another member",
                            \E n \in Members \ {line.member} : Run(n, line.run).phase = "failed">>,
                          <<"PrefillRun.CanFail: it has no verdict here", PR!CanFail(Run(line.member, line.run))>>>>
      [] op = "LayerDone" ->
             <<<<"its attention is under way: Write came before, LayerDone not", IoOf("attend", line.transfer) # {}>>,
               <<"the bytes were attended to: an attend_end", seen[line.transfer].attended>>>>
      [] op = "SaveEnd" ->
             <<<<"its save is under way: Write came before, SaveEnd not", IoOf("save", line.transfer) # {}>>,
               <<"its bytes were saved: a save_end with ok", line.ok => line.empty \/ seen[line.transfer].saved # None>>>>
             \o Ended("save", line.transfer)
      [] op = "LoadEnd" ->
             <<<<"its load is under way: Claim came before, LoadEnd not", [op |-> "load", transfer |-> line.transfer] \in io>>,
               <<"the bytes of every earlier chunk were loaded: load_end with ok",
                 line.ok => \A k \in 1..(line.transfer[2] - 1) : <<line.transfer, k>> \in loaded>>>>
             \o Ended("load", line.transfer)
      [] op = "Evict" -> <<<<"PoolObject.CanEvict: it is readable and nobody pinned it", PO!CanEvict(pool[line.object])>>>>
      [] op = "Revoke" -> <<<<"the run's Prefill may revoke (read_lease)", ReadLease>>,
                            <<"Transfer.CanRevoke: the transfer is held", TR!CanRevoke(transfers[line.transfer])>>>>
      [] op = "ResendReady" -> <<<<"the transfer is held", transfers[line.transfer].phase = "held">>>>
      [] op = "Retire" -> <<<<"FailureInvalidation.CanForget: the attempt is over and its blocks are reclaimed",
                              FI!CanForget(dests[line.attempt])>>>>
      [] op = "Heed" -> <<<<"the leader has heard RETIRE of the run", Run(Leader, line.run).retired>>,
                          <<"PrefillRun.CanRetire: this member has begun the run, and not heeded yet",
                            PR!CanRetire(Run(line.member, line.run)) /\ ~Run(line.member, line.run).retired>>>>
      [] op = "Forget" -> <<<<"PrefillRun.CanForget: the run is retired and over, its transfers have their verdicts, no copy is under way",
                              PR!CanForget(Run(line.member, line.run), HeldBy(line.member, line.run))>>,
                            <<"the leader forgets a run last, and the others once it is over at the leader", LetForget(line.member, line.run)>>>>
      [] op = "ResendFailed" -> <<<<"the run has failed, and is not retired", PR!Untold(Run(Leader, line.run))>>>>
      [] op = "Deliver" -> DeliverNeeds(line)
      [] op = "Rest" ->
             <<<<"every copy has ended", under = {}>>,
               <<"every copy that a session began was reported to it", {x \in io : x.op # "orphan"} = {}>>,      \* but of a dead one
               <<"every attempt was scheduled or has failed",
                 \A a \in Attempts : attempts[a].phase \in {"idle", "scheduled", "released", "failed"}>>>>      \* idle: another run's, or forgotten
      [] op = "Show" -> <<<<"Show", FALSE>>>>      \* refused elsewhere: only the state is asked for

Needs(line) == IF line.op = "physical" THEN PhysicalNeeds(line) ELSE IF line.op \in LifeEvents THEN LifeNeeds(line)
               ELSE IF line.op = "Same" THEN <<>> ELSE EventNeeds(line)

\* Nothing was moved, and all of it right.
Nothing(line) ==
    LET t == line.transfer IN
    CASE line.op = "SaveEnd" /\ line.empty -> seen' = [seen EXCEPT ![t].saved = seen[t].wrote]
      [] line.op = "ReadEnd" /\ line.empty -> seen' = [seen EXCEPT ![t].fetched = seen[t].wrote]
      [] OTHER -> UNCHANGED seen

\* How physical lines are remembered.
Remember(line) ==
    LET t == line.transfer  k == line.kind
        begins(what) == under' = under \cup {Is(what, line, line.chunk)}
        ends(what) == under' = under \ {Is(what, line, line.chunk)}
        keep == UNCHANGED seen
    IN
    /\ loaded' = IF k = "load_end" /\ line.ok THEN loaded \cup {<<t, line.chunk>>} ELSE loaded
    /\ CASE k = "write_begin"  -> begins("write") /\ keep
         [] k = "write_end"    -> ends("write") /\ seen' = IF line.ok
                                    THEN [seen EXCEPT ![t].wrote = line.tag, ![t].epoch = line.epoch] ELSE seen
         [] k = "attend_begin" -> begins("attend") /\ keep
         [] k = "attend_end"   -> ends("attend") /\ seen' = [seen EXCEPT ![t].attended = TRUE]
         [] k = "save_begin"   -> begins("save") /\ keep
         [] k = "save_end"     -> ends("save") /\ seen' = IF line.ok THEN [seen EXCEPT ![t].saved = line.tag] ELSE seen
         [] k = "load_begin"   -> begins("load") /\ keep
         [] k = "load_end"     -> ends("load") /\ keep
         [] k = "read_begin"   -> begins("read") /\ seen' = [seen EXCEPT ![t].began = TRUE]
         [] k = "read_end"     -> ends("read") /\ seen' = IF line.ok THEN [seen EXCEPT ![t].fetched = line.landed] ELSE seen
===============================================================================
