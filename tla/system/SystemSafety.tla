----------------------------- MODULE SystemSafety -----------------------------
(***************************************************************************)
(* What must never be.  A property speaks of the dangerous state itself,   *)
(* of the physical truth, and not of the bookkeeping that should protect   *)
(* it.  The names are those of the design.                                 *)
(***************************************************************************)
EXTENDS SystemState

\* I1: nobody who reads a slot, and whose reading still counts, ever sees it overwritten.
ReuseSafe ==
    \A x \in io :
        (\/ x.op \in {"attend", "save"} /\ x.right
         \/ x.op = "read" /\ x.right /\ transfers[x.transfer].phase = "held"
         \/ x.op = "orphan" /\ x.right /\ ~ReadLease)      \* in seed mode nothing is taken back while anybody may read it
        => LET t == x.transfer IN Holds(mem[t[4]][GateOf(t[1], t[3])], t[1], t[2], t[3])

\* I2: a transfer that Decode may hear of, and that has no verdict, keeps its slot shut, in the epoch that it names.
GateBeforePublish ==
    \A m \in net : (m.op = "READY" /\ transfers[m.transfer].phase = "held") =>
        LET t == m.transfer  s == slots[t[4]][GateOf(t[1], t[3])] IN s.phase # "free" /\ s.epoch = m.epoch

\* I3 and I14: what is computed rests on what the earlier chunks saved.
LoadBeforeCompute == \A x \in io : x.op \in {"attend", "save"} => x.right

\* I3, the other way: rows that a run needs for a later chunk are never nowhere.  They go from the slot of an independent layer when
\* the pool has them; where the run has left the slot, the pool may have given them away since.
Lacks(p, l) == p.phase = "running" /\ (p.chunk < p.chunks \/ p.layer <= l)      \* has it a chunk of layer l to compute yet?
RowsStay ==
    [][\A m \in Members, i \in Gates :
        LET rows == mem[m][i]  r == rows[1]  l == rows[2] IN
        (rows # mem'[m][i] /\ r # 0 /\ l \in Layers \ Shared /\ Lacks(runs'[m][r], l)) =>
            \A c \in 1..rows[3] : \/ Holds(mem'[m][i], r, c, l)
                                  \/ <<r, c, l, m>> \in pooled
                                  \/ slots[m][i].owner # r /\ pool[<<r, c>>].phase = "gone"]_vars

\* I4: a readable object has all its layers, of each the share of every member.
PublishAfterComplete ==
    \A o \in DOMAIN pool : pool[o].phase = "readable" => \A l \in Layers, m \in Members : <<o[1], o[2], l, m>> \in pooled

\* I4, the other way: memory of the pool is given away only when no save still writes it and no load still reads it, and no run is
\* forgotten of which a copy is under way; what is readable stays so until it is evicted, and what is failed or gone stays as it is.
PoolLifetime ==
    \A x \in io :
        /\ x.op = "save" => pool[<<x.transfer[1], x.transfer[2]>>].phase # "gone"
        /\ x.op = "load" => \A o \in Earlier(x.transfer[1], x.transfer[2]) : pool[o].phase # "gone"
        /\ x.op \in {"attend", "save", "load"} => runs[x.transfer[4]][x.transfer[1]].phase # "forgotten"
PoolStays ==
    [][\A o \in DOMAIN pool : runs'[Leader][o[1]].phase # "forgotten" =>
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

\* I6, for each Decode rank: nothing is read for a rank that has not registered the destination, and no rank computes on blocks that
\* have been given back.
RankLifetime ==
    \A x \in io :
        /\ x.op = "read" => ~Registering(x.attempt, RankOf(x.transfer[4]))
        /\ x.op = "forward" => owner[block[x.attempt]] = x.attempt

\* I7: inference runs on the right contents, all of them.
ScheduleSafe ==
    \A a \in Attempts : attempts[a].phase = "scheduled" =>
        \A cl \in (1..ChunksOf(a)) \X Layers : 
            \A m \in Members : \A p \in Sends(m) : dest[block[a]][cl][p] = <<bindings[a].run, cl[1], cl[2], m>>

\* I8: an attempt whose bound run failed, or whose memory is poisoned, yields no tokens.
FailClosed ==
    \A a \in Attempts : attempts[a].phase = "scheduled" =>
        /\ dests[a].phase = "valid"
        /\ \A t \in Transfers : t[1] = bindings[a].run => transfers[t].phase \notin {"failed", "revoked", "lost"}

\* I13: no waiter gets two verdicts.
OneVerdict ==
    /\ \A t \in Transfers : ~(<<t, "COMMITTED">> \in replies /\ <<t, "REVOKED">> \in replies)
    /\ \A m \in Members, r \in Runs : ~(<<m, r, "done">> \in verdicts /\ <<m, r, "failed">> \in verdicts)
    /\ \A m \in Members, r \in Runs : <<m, r, "done">> \in verdicts =>
          \A t \in Transfers : (t[1] = r /\ t[4] = m /\ t[2] <= ChunksOf(runs[m][r].attempt)) =>
              IF runs[m][r].phase = "forgotten" THEN <<t, "COMMITTED">> \in replies ELSE transfers[t].phase = "done"
    /\ \A m \in Members, r \in Runs : runs[m][r].phase = "forgotten" /\ lives.began[r] = lives.prefill =>
          <<m, r, "done">> \in verdicts \/ <<m, r, "failed">> \in verdicts

\* What is scheduled ends well, and a verdict and what belongs to it stay as they were, whatever comes late, until they are forgotten.
EndsStay ==
    [][/\ \A a \in Attempts : dests'[a].phase # "forgotten" =>
           /\ attempts[a].phase = "scheduled" => attempts'[a].phase \in {"scheduled", "released"}
           /\ attempts[a].phase \in {"failed", "released"} => attempts'[a] = attempts[a]
       /\ \A t \in Transfers : transfers[t].phase \in {"done", "failed", "revoked", "lost"} =>
           transfers'[t] = transfers[t] \/ runs'[t[4]][t[1]].phase = "forgotten"
       /\ \A m \in Members, r \in Runs :
           runs[m][r].phase \in {"done", "failed"} => runs'[m][r].phase \in {runs[m][r].phase, "forgotten"}
       /\ \A i \in DOMAIN lives.peers : lives.peers[i].phase = "lost" => lives'.peers[i].phase = "lost" \/ ev'.op = "CrashPrefill"]_vars

\* Nobody waits for the answer of somebody who has forgotten the question, unless it is on its way, or he may forget it himself.
AnswerDue ==
    \A t \in Transfers : (RD!Unanswered(reads[t]) /\ runs[t[4]][t[1]].phase = "forgotten") =>
        \/ dests[runs[t[4]][t[1]].attempt].phase = "reclaimed"
        \/ lives.began[t[1]] < lives.prefill      \* that life is over, and the attempt fails when Decode hears of it
        \/ \E m \in net : m.op \in {"COMMITTED", "REVOKED"} /\ m.transfer = t

\* A run that has taken the slot of its next step, and writes it, is never sent to take one again.
ClaimOnce == [][ev'.op = "Claim" => \A t \in taken : <<t[1], t[4]>> # <<ev'.run, ev'.member>>]_vars

\* No rank begins to compute a step, and so to wait for the others inside it, before each has taken its slot for that step, has
\* loaded, and has not given the run up.
AgreeBeforeStep ==
    [][ev'.op = "Write" =>
        LET m == ev'.member  r == ev'.run  c == runs[m][r].chunk  l == runs[m][r].layer IN
        (\A n \in Members : transfers[<<r, c, l, n>>].phase = "idle") =>
            \A n \in Members : /\ <<r, c, l, n>> \in taken
                               /\ [op |-> "load", transfer |-> <<r, c, l, n>>] \notin io
                               /\ <<n, r, "failed">> \notin verdicts]_vars

\* I9: what the members bring is all of it (main K/V, and every block of the indexer), and nothing of it comes twice.
IndexerCover ==
    \A a \in Attempts : attempts[a].phase = "complete" =>
        \A cl \in (1..ChunksOf(a)) \X Layers : \A p \in Parts \ MainParts : dest[block[a]][cl][p] # Empty
Once(ps) ==
    \A b \in Blocks : \A cl \in Steps : \A p \in ps :
        LET old == dest[b][cl][p]  new == dest'[b][cl][p] IN old = Empty \/ new \in {old, Empty, Junk}
IndexerApart == [][Once(Parts \ MainParts)]_vars
MainOnce == [][Once(MainParts)]_vars

\* I15: an attempt fails only if something happened to it; a run only if its attempt did.
BlastRadius ==
    /\ \A a \in Attempts : attempts[a].phase = "failed" =>
           <<"attempt", a>> \in blamed \/ <<"run", bindings[a].run>> \in blamed
    /\ \A m \in Members, r \in Runs : runs[m][r].phase = "failed" =>
           <<"run", r>> \in blamed \/ <<"attempt", runs[m][r].attempt>> \in blamed \/ <<"rival", runs[m][r].attempt>> \in blamed

\* Nobody computes for a life of Decode that is lost, or waits for it.
LostIsOver ==
    \A r \in Runs : PR!CanFail(runs[Leader][r]) => lives.peers[lives.born[runs[Leader][r].attempt]].phase # "lost"

\* L2 as a state property: when nothing is under way, nothing is held.
Rests == /\ \A m \in net : m.op = "START"
         /\ io = {}
         /\ \A t \in Transfers : ~RD!Unanswered(reads[t]) /\ transfers[t].phase # "held"
         /\ \A m \in Members, r \in Runs : runs[m][r].phase \notin {"running", "computed"}
         /\ \A a \in Attempts : attempts[a].phase \in {"idle", "failed", "released"}
NoLeak == Rests => /\ \A m \in Members, i \in Gates : slots[m][i].phase = "free"
                   /\ \A a \in Attempts : dests[a].phase \in {"idle", "reclaimed", "forgotten"}
                   /\ \A b \in Blocks : owner[b] = 0
                   /\ \A o \in DOMAIN pool : pool[o].pins = {} /\ pool[o].phase # "writing"

\* And when besides nobody has anything to retire or to forget, nothing is remembered of any request.
NothingKept ==
    (/\ Retiring /\ Rests
     /\ \A a \in Attempts : dests[a].phase # "reclaimed"
     /\ \A m \in Members, r \in Runs : ~PR!CanForget(runs[m][r], HeldBy(m, r)) /\ ~PR!Untold(runs[m][r])
     /\ lives.met = lives.prefill /\ \A i \in 1..(lives.decode - 1) : lives.peers[i].phase = "lost")      \* and all has been heard
    => /\ \A a \in Attempts : attempts[a] = RC!Initial /\ bindings[a] = BI!Initial /\ dests[a] \in {FI!Initial, FI!Forgotten}
       /\ \A g \in DOMAIN groups : groups[g] = CG!Initial(Members)
       /\ \A t \in Transfers : reads[t] = RD!Initial /\ transfers[t] = TR!Initial
       /\ \A o \in DOMAIN pool : pool[o] = PO!Initial

\* Machines are moved only into their own states (TypeOK of each machine is checked alone).
===============================================================================
