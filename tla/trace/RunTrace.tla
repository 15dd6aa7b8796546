----------------------------- MODULE RunTrace ------------------------------
(***************************************************************************)
(* Are recorded runs behaviours of System?  Logs (module TraceData, written *)
(* from the runs' files, merged) are their lines; which is the run, Log its *)
(* lines, at the next one.  Each line takes the one step that it names,    *)
(* with its arguments, so a run costs no search: one state for each line,  *)
(* and VIEW which and at tell them apart.  Runs judged together differ in  *)
(* nothing but their lines and how many chunks their attempts have.        *)
(*                                                                         *)
(* A run fits if at passes the last line: ENDED is printed.  Where it does *)
(* not, the line, the rules that do not hold, the state that they speak of *)
(* and the steps that were enabled are printed.  Judge does the same for a *)
(* safety property of System that the line broke.                          *)
(***************************************************************************)
EXTENDS TraceRules

VARIABLES at     \* not l, nor open: System has parameters and definitions of these names, and TLC confuses them

Log == Logs[which]
TraceChunks(a) == ChunkCounts[which][a]

TraceInit == /\ which \in 1..Len(Logs)
             /\ InitialWork
             /\ NoLives
             /\ lives = Knows(Log[1].life, dead, missed, peerstate)
             /\ seen = [t \in Transfers |-> Unseen]
             /\ under = {}
             /\ loaded = {}
             /\ at = 1

\* A timer sends again whether or not an earlier copy is still in flight; if it is, nothing changes.
Again(action, message, op, t) ==
    \/ action
    \/ message \in net /\ ev' = [op |-> op, transfer |-> t] /\ UNCHANGED <<sides, net, used, truth, history>>

\* The step that a machine event names.
Told(line) ==
    CASE line.op = "Admit"        -> Admit(line.attempt, line.attempt)
      [] line.op = "Registered"   -> Registered(line.attempt)
      [] line.op = "Schedule"     -> Schedule(line.attempt)
      [] line.op = "Finish"       -> Finish(line.attempt)
      [] line.op = "Abort"        -> Abort(line.attempt)
      [] line.op = "ReadEnd"      -> ReadEnd(line.transfer, line.attempt, line.how)
      [] line.op = "Landed"       -> Landed(line.transfer, line.attempt)
      [] line.op = "ResendReport" -> Again(ResendReport(line.transfer),
                                           Report(RD!Report(reads[line.transfer]), line.transfer), line.op, line.transfer)
      [] line.op = "Claim"        -> Claim(line.member, line.run)
      [] line.op = "Write"        -> Write(line.member, line.run)
      [] line.op = "Miss"         -> Miss(line.member, line.run)
      [] line.op = "GiveWay"      -> GiveWay(line.member, line.run)
      [] line.op = "Join"         -> Join(line.member, line.run)
      [] line.op = "Stop"         -> Stop(line.member, line.run)
      [] line.op = "LayerDone"    -> LayerDone(line.transfer)
      [] line.op = "SaveEnd"      -> SaveEnd(line.transfer, line.ok)
      [] line.op = "LoadEnd"      -> LoadEnd(line.transfer, line.ok)
      [] line.op = "Evict"        -> Evict(line.object)
      [] line.op = "Revoke"       -> Revoke(line.transfer)
      [] line.op = "ResendReady"  -> Again(ResendReady(line.transfer),
                                           READY(line.transfer, Run(line.transfer[4], line.transfer[1]).attempt), line.op, line.transfer)
      [] line.op = "Retire"       -> \/ Retire(line.attempt)
                                     \/ /\ RETIRE(line.attempt) \in net /\ ev' = [op |-> "Retire", attempt |-> line.attempt]
                                        /\ UNCHANGED <<sides, net, used, truth, history>>
      [] line.op = "Heed"         -> Heed(line.member, line.run)
      [] line.op = "Forget"       -> Forget(line.member, line.run)
      [] line.op = "ResendFailed" -> \/ ResendFailed(line.run)
                                     \/ /\ RunFailed(Leader, line.run) \in net /\ ev' = [op |-> "ResendFailed", run |-> line.run]
                                        /\ UNCHANGED <<sides, net, used, truth, history>>
      [] line.op = "Deliver"      -> Deliver(line.message, line.keep) /\ (line.message.op = "START" => ev'.lane = line.lane)
      [] line.op \in {"Rest", "Same"} -> UNCHANGED vars      \* Same: each member says what all do at once

\* What a line is about, for the explanation.
AboutTransfer(t) ==
    LET r == t[1]  m == t[4] IN
    [run |-> Run(m, r), transfer |-> transfers[t], read |-> reads[t], object |-> pool[<<r, t[2]>>],
     seen |-> seen[t], open |-> {x \in under : SameGate(x.transfer, t)}, io |-> {x \in io : x.transfer = t}] @@
    IF Members = {Leader} THEN [slot |-> Gate(t)]
    ELSE [slot |-> Gate(t), members |-> [n \in Members |-> <<Run(n, r).chunk, Run(n, r).layer, Gate(<<r, t[2], t[3], n>>).phase>>]]
AboutAttempt(a) == [attempt |-> attempts[a], binding |-> bindings[a], destination |-> dests[a]]
About(line) ==
    CASE line.op \in LifeEvents -> AboutLife(line)
      [] line.op \in {"Claim", "Write", "Miss", "GiveWay"} ->
             IF PR!CanAct(Run(line.member, line.run)) THEN AboutTransfer(StepOf(line.member, line.run))
                                                      ELSE [run |-> Run(line.member, line.run)]
      [] line.op \in {"Join", "Stop", "Heed"} -> [runs |-> [n \in Members |-> Run(n, line.run)]]
      [] line.op = "Deliver" ->
             (IF "transfer" \in DOMAIN line.message THEN AboutTransfer(line.message.transfer) ELSE [op |-> line.message.op]) @@
             (IF "attempt" \in DOMAIN line.message THEN AboutAttempt(line.message.attempt) ELSE [op |-> line.message.op]) @@
             [net |-> {m \in net : m.op = line.message.op}]
      [] line.op = "Evict" -> [object |-> pool[line.object]]
      [] line.op = "Forget" -> [runs |-> [n \in Members |-> Run(n, line.run)], held |-> HeldBy(line.member, line.run)]
      [] line.op = "ResendFailed" -> [run |-> Run(Leader, line.run), held |-> HeldBy(Leader, line.run)]
      [] line.op = "Rest" -> [open |-> under, io |-> io, attempts |-> [a \in {x \in Attempts : Known(x)} |-> attempts[a].phase],
                              held |-> {t \in Transfers : transfers[t].phase = "held"}, net |-> net]
      [] "attempt" \in DOMAIN line /\ "transfer" \notin DOMAIN line -> AboutAttempt(line.attempt)
      [] OTHER -> AboutTransfer(line.transfer)
AboutLine(line) == IF line.op # "Show" THEN About(line)
                   ELSE IF "transfer" \in DOMAIN line THEN AboutTransfer(line.transfer) ELSE About([op |-> "Rest"])

\* What the data path could have done instead: begin a copy that a session has begun, end one that is open.
Path(what, when, ts) == {<<what, when, t>> : t \in ts}
DataPath ==
    {<<x.what, "end", x.transfer>> : x \in under} \cup
    Path("attend", "begin", {x.transfer : x \in {y \in io : /\ y.op = "attend" /\ ~seen[y.transfer].attended
                                                           /\ Under("attend", y.transfer) = {}}}) \cup
    Path("save", "begin", {x.transfer : x \in {y \in io : /\ y.op = "save" /\ seen[y.transfer].saved = None
                                                         /\ Under("save", y.transfer) = {}}}) \cup
    Path("read", "begin", {x.transfer : x \in {y \in io : /\ y.op = "read" /\ seen[y.transfer].fetched = None
                                                         /\ Under("read", y.transfer) = {}}}) \cup
    Path("load", "begin", {x.transfer : x \in {y \in io : y.op = "load" /\ Under("load", y.transfer) = {}}})

False(line) == LET needs == Needs(line) IN {needs[i][1] : i \in {k \in 1..Len(needs) : ~needs[k][2]}}
Fits(line) == LET needs == Needs(line) IN \A i \in 1..Len(needs) : needs[i][2]

Possible == Worker \/ Group \/ Device \/ Remote \/ Resend \/ Client \/ Faults \/ Forgetting \/ Network

Explain(line) ==
    /\ PrintT(<<"REFUSED", which, ToString(<<at, False(line), AboutLine(line)>>)>>)
    /\ PrintT(<<"DATAPATH", which, ToString(DataPath)>>)
    /\ Possible
    /\ PrintT(<<"ENABLED", which, ToString(ev')>>)
    /\ FALSE
    /\ UNCHANGED <<lives, seen, under, loaded, dead, missed, peerstate, which, at>>

Unload(line) == IF line.op = "LoadEnd" THEN loaded' = {x \in loaded : x[1] # line.transfer} ELSE UNCHANGED loaded

TraceNext ==
    /\ at <= Len(Log)
    /\ LET line == Log[at] IN
       IF ~Fits(line) THEN Explain(line)
       ELSE /\ IF line.op \in LifeEvents THEN Lived(line) /\ UNCHANGED <<seen, loaded>>
               ELSE /\ IF line.op = "physical" THEN Remember(line) /\ UNCHANGED vars
                                               ELSE Told(line) /\ Unload(line) /\ Nothing(line) /\ UNCHANGED under
                    /\ UNCHANGED <<dead, missed, peerstate>>
            /\ lives' = IF at = Len(Log) \/ (Log[at + 1].life = line.life /\ line.op \notin LifeEvents) THEN lives
                        ELSE Knows(Log[at + 1].life, dead', missed', peerstate')
            /\ at' = at + 1
            /\ UNCHANGED which

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, lives, seen, under, loaded, dead, missed, peerstate, which, at>>

\* The safety of System, by name, after each machine event.  What only grows slowly is asked about the work that the line
\* names, and in full at the end: AckIdentity and OneVerdict of every transfer would cost more than all the rest.
Named(line) == IF line.op \in {"Revoke", "LoadEnd"} THEN {line.transfer}
               ELSE IF line.op # "Deliver" THEN {}
               ELSE IF "transfer" \in DOMAIN line.message THEN {line.message.transfer} ELSE {}
AckIdentityOf(t) == transfers[t].phase = "done" => t \in landed
OneVerdictOf(t) ==
    /\ ~(<<t, "COMMITTED">> \in replies /\ <<t, "REVOKED">> \in replies)
    /\ <<t[4], t[1], "done">> \in verdicts =>
           /\ <<t[4], t[1], "failed">> \notin verdicts
           /\ Run(t[4], t[1]).phase # "forgotten" =>
                  \A x \in (1..Run(t[4], t[1]).chunks) \X Layers : transfers[<<t[1], x[1], x[2], t[4]>>].phase = "done"
Safety(line) ==
    <<<<"ReuseSafe", ReuseSafe>>, <<"GateBeforePublish", GateBeforePublish>>, <<"LoadBeforeCompute", LoadBeforeCompute>>,
      <<"PublishAfterComplete", line.op \in {"SaveEnd", "Evict", "Rest"} => PublishAfterComplete>>,
      <<"AckIdentity", IF line.op = "Rest" THEN AckIdentity ELSE \A t \in Named(line) : AckIdentityOf(t)>>,
      <<"DestinationLifetime", DestinationLifetime>>, <<"ScheduleSafe", ScheduleSafe>>, <<"FailClosed", FailClosed>>,
      <<"OneVerdict", IF line.op = "Rest" THEN OneVerdict ELSE \A t \in Named(line) : OneVerdictOf(t)>>,
      <<"BlastRadius", BlastRadius>>, <<"NoLeak", NoLeak>>, <<"NothingKept", line.op = "Rest" => NothingKept>>>>
Broken(line) == LET safety == Safety(line) IN {safety[i][1] : i \in {k \in 1..Len(safety) : ~safety[k][2]}}
Judge == IF at = 1 \/ Log[at - 1].op = "physical" THEN TRUE
         ELSE LET line == Log[at - 1]  broken == Broken(line) IN
              IF broken = {} THEN IF line.op = "Rest" THEN PrintT(<<"ENDED", which, "">>) ELSE TRUE
                             ELSE PrintT(<<"BROKEN", which, ToString(<<at - 1, broken, About(line)>>)>>) /\ FALSE
\* which and at alone tell states apart.  What else stands here is for speed: TLC leaves a function [x \in S |-> e] unevaluated until
\* somebody looks at all of it, and each would drag along the states before it.
TraceView == IF at = 1 THEN <<which, at, vars, seen>> ELSE <<which, at, pool, slots, runs>>
===============================================================================
