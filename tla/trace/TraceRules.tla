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
(***************************************************************************)
EXTENDS System, Sequences

VARIABLES seen, under, loaded

None == ""
Unseen == [epoch |-> 0, wrote |-> None, attended |-> FALSE, saved |-> None, began |-> FALSE, fetched |-> None]

\* A run is recorded of one Prefill rank, which is its own leader, and of one lane.
Run(r) == runs[Leader][r]
Gate(i) == slots[Leader][<<i, 1>>]
StepOf(r) == <<r, Run(r).chunk, Run(r).layer, Leader>>
Under(what, t) == {x \in under : x.what = what /\ x.transfer = t}
Is(what, line, k) == [what |-> what, transfer |-> line.transfer, slot |-> line.slot, epoch |-> line.epoch, chunk |-> k]

\* Does what is open still need slot i, of another epoch than e?  A read whose transfer was given up needs nothing.
Needing(i, e) == {x \in under : /\ x.slot = i
                                /\ x.epoch # e
                                /\ x.what = "read" => transfers[x.transfer].phase \in {"held", "done"}}

Place(line) ==
    <<<<"the slot is the one of this layer", line.slot = SlotOf(line.transfer[3])>>>>

Overwrites(line) == Place(line) \o
    <<<<"the slot is still in this epoch", Gate(line.slot).epoch = line.epoch>>,
      <<"nothing else of an earlier epoch reads or writes the slot", Needing(line.slot, line.epoch) = {}>>,
      <<"no computation into the slot is open", \A x \in under : x.slot = line.slot => x.what # "write">>>>

Began(line, what) == <<<<"it began, with this slot and epoch, and has not ended", Is(what, line, line.chunk) \in under>>>>

Written(line) == Place(line) \o
    <<<<"the rows were computed in this epoch", seen[line.transfer].wrote # None /\ seen[line.transfer].epoch = line.epoch>>>>
Same(line, what) == <<<<what, line.tag = seen[line.transfer].wrote>>>>

ReadTag(line, tag) == <<<<"what is read is what was computed", ReadLease \/ tag = seen[line.transfer].wrote>>>>
Ended(what, t) == <<<<"nothing of it is still open", Under(what, t) = {}>>>>

PhysicalNeeds(line) ==
    LET t == line.transfer  r == t[1]  k == line.kind IN
    CASE k = "write_begin" -> Overwrites(line) \o
             <<<<"this step is the run's next one", t = StepOf(r) \/ Run(r).phase = "forgotten">>,
               <<"the slot is claimed by this run and loaded (or the run has failed since)",
                 \/ Gate(line.slot).phase = "computing" /\ Gate(line.slot).owner = r
                 \/ Run(r).phase \in {"failed", "forgotten"}
                 >>,
               <<"no load into the slot is open", \A x \in under : x.slot = line.slot => x.what # "load">>>>
      [] k = "write_end" -> Began(line, "write")
      [] k = "attend_begin" -> Written(line) \o
             <<<<"its Write came before and its LayerDone has not come", IoOf("attend", t) # {}>>,
               <<"it attends once", ~seen[t].attended /\ Under("attend", t) = {}>>>>
      [] k = "attend_end" -> Began(line, "attend") \o Same(line, "its rows are still what was computed")
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
             <<<<"what was loaded is what was saved", line.ok => line.tag = seen[<<r, line.chunk, t[3], t[4]>>].saved>>>>
      [] k = "read_begin" -> Written(line) \o ReadTag(line, line.tag) \o
             <<<<"its READY was delivered and its ReadEnd has not come",
                 \E x \in io : x.op = "read" /\ x.transfer = t>>,
               <<"it is read once, or again where that failed and has ended", seen[t].fetched = None /\ Under("read", t) = {}>>>>
      [] k = "read_end" -> Began(line, "read") \o
             (IF line.ok THEN ReadTag(line, line.tag) \o ReadTag(line, line.landed) ELSE <<>>) \o
             <<<<"its ReadEnd has not come, or said unknown", \E x \in io : x.op \in {"read", "stray"} /\ x.transfer = t>>>>

\* What the guards of System ask, and what the bytes must have done.
ClaimNeeds(r) ==
    LET p == Run(r)  i == SlotOf(p.layer)  extend == p.layer \notin Shared /\ p.chunk > 1 IN
    <<<<"PrefillRun.CanAct: the run is running", PR!CanAct(p)>>,
      <<IF extend THEN "PhysicalBuffer.CanExtend: the run owns its layer's slot, and has written the chunk before"
                  ELSE "PhysicalBuffer.CanClaim: the gate of the slot is open (free)",
        IF extend THEN PB!CanExtend(Gate(i), r) ELSE PB!CanClaim(Gate(i))>>,
      <<"PoolObject.CanPin: every earlier chunk is readable",
        PR!CanAct(p) => \A o \in Needed(r, p.chunk, p.layer) : PO!CanPin(pool[o])>>>>

WriteNeeds(r) ==
    LET p == Run(r)  t == StepOf(r)  i == SlotOf(p.layer) IN
    <<<<"PrefillRun.CanAct: the run is running", PR!CanAct(p)>>,
      <<"PhysicalBuffer.CanWrite: the slot is claimed by this run, and loaded", PB!CanWrite(Gate(i), r)>>>> \o
    IF ~PR!CanAct(p) THEN <<>> ELSE
    <<<<"Transfer.CanPublish: this step was not published before", TR!CanPublish(transfers[t])>>,
      <<"its rows were written: a write_end with ok", seen[t].wrote # None /\ Under("write", t) = {}>>,
      <<"they were written in the epoch that the slot is in", seen[t].epoch = Gate(i).epoch>>>>

CommittedNeeds(m) ==
    LET t == m.transfer IN
    <<<<"what is believed is what was computed (the tag that landed)",
        RD!CanCommit(reads[t]) => seen[t].fetched = seen[t].wrote>>>>

DeliverNeeds(line) ==
    LET m == line.message IN
    <<<<"this message, with this epoch and final, was sent and is in flight", m \in net>>>> \o
    IF m.op = "COMMITTED" THEN CommittedNeeds(m) ELSE <<>>

ReadEndNeeds(t, a, how) ==
    <<<<"its READY was delivered and accepted, and it has not ended",
        \E x \in io : x.op = "read" /\ x.transfer = t /\ x.attempt = a>>,
      <<"Read: the read is under way", IF how = "ok" THEN RD!CanEndOk(reads[t]) ELSE RD!CanEndFailed(reads[t])>>>> \o
    CASE how = "ok"      -> <<<<"its bytes landed: a read_end with ok", seen[t].fetched # None>>>>
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
      [] op = "ReadEnd" -> ReadEndNeeds(line.transfer, line.attempt, line.how)
      [] op = "Landed" ->
             <<<<"Read.CanLanded: its failure was unknown and it has not ended", RD!CanLanded(reads[line.transfer])>>,
               <<"its copy has ended: a read_end", seen[line.transfer].began>>>> \o Ended("read", line.transfer)
      [] op = "ResendReport" -> <<<<"Read.Unanswered: its report is not answered", RD!Unanswered(reads[line.transfer])>>>>
      [] op = "Claim" -> ClaimNeeds(line.run)
      [] op = "Write" -> WriteNeeds(line.run)
      [] op = "Miss" -> <<<<"PrefillRun.CanAct: the run is running", PR!CanAct(Run(line.run))>>,
                          <<"PoolObject.Missing: something that its next step needs is lost",
                            LET p == Run(line.run) IN
                            PR!CanAct(p) => \E o \in Needed(line.run, p.chunk, p.layer) : PO!Missing(pool[o])>>>>
      [] op = "LayerDone" ->
             <<<<"its attention is under way: Write came before, LayerDone not", IoOf("attend", line.transfer) # {}>>,
               <<"the bytes were attended to: an attend_end", seen[line.transfer].attended>>>>
      [] op = "SaveEnd" ->
             <<<<"its save is under way: Write came before, SaveEnd not", IoOf("save", line.transfer) # {}>>,
               <<"its bytes were saved: a save_end with ok", line.ok => seen[line.transfer].saved # None>>>>
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
      [] op = "Forget" -> <<<<"PrefillRun.CanForget: the run is retired and over, its transfers have their verdicts, no copy is under way",
                              PR!CanForget(Run(line.run), HeldBy(Leader, line.run))>>>>
      [] op = "ResendFailed" -> <<<<"the run has failed, and is not retired", PR!Untold(Run(line.run))>>>>
      [] op = "Deliver" -> DeliverNeeds(line)
      [] op = "Rest" ->
             <<<<"every copy has ended", under = {}>>,
               <<"every copy that a session began was reported to it", io = {}>>,
               <<"every attempt was scheduled or has failed",
                 \A a \in Attempts : attempts[a].phase \in {"idle", "scheduled", "released", "failed"}>>>>      \* idle: another run's, or forgotten
      [] op = "Show" -> <<<<"Show", FALSE>>>>      \* refused elsewhere: only the state is asked for

Needs(line) == IF line.op = "physical" THEN PhysicalNeeds(line) ELSE EventNeeds(line)

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
