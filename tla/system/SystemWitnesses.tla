--------------------------- MODULE SystemWitnesses ----------------------------
(***************************************************************************)
(* Each of these is false in some behaviour, and a configuration shows     *)
(* which, so that we know that the interesting situations do occur.        *)
(***************************************************************************)
EXTENDS SystemState

\* With read_lease a revoked buffer is overwritten while Decode still reads it; only COMMITTED keeps that harmless.
NeverTornByRevoke == \A x \in io : (x.op = "read" /\ x.right) =>
                        LET t == x.transfer IN Holds(mem[t[4]][GateOf(t[1], t[3])], t[1], t[2], t[3])
\* A copy of unknown fate outlives its attempt.
NeverStrayAfterFailure == \A x \in io : x.op = "stray" => attempts[x.attempt].phase # "failed" \/ dests[x.attempt].phase # "draining"
\* A second run of an attempt is refused while the first one succeeds.
NeverRivalRefused == \A r, q \in Runs : LET p == runs[Leader] IN
                        ~(r # q /\ p[r].phase = "failed" /\ p[q].phase = "done" /\ p[r].attempt = p[q].attempt)
\* A run fails because what it needs was evicted, or its save failed.
NeverMiss == \A r \in Runs : LET p == runs[Leader][r] IN
                ~(p.phase = "failed" /\ \E c \in Chunks : PO!Missing(pool[<<r, c>>]) /\ p.chunk > c)
\* A run that gave way between two chunks finds another in the slot that was its own.
NeverOvertaken == \A r, q \in Runs, i \in Gates : ~(/\ r # q /\ i[1] >= SharedSlots /\ slots[Leader][i].owner = q
                                                     /\ runs[Leader][r].phase = "running" /\ runs[Leader][r].chunk > 1)
\* An answer is lost, and the report is answered again.
NeverAnsweredTwice == \A t \in Transfers : ~(used["loss"] = 1 /\ reads[t].phase = "committed" /\ net = {})
\* Two attempts use the same blocks one after the other, both with success.
NeverReusedBlocks == \A a, b \in Attempts : ~(a # b /\ attempts[a].phase = "released" /\ attempts[b].phase = "scheduled")
\* A report comes about a run that is forgotten: it was doubled, and its first copy was answered.
NeverLateReport == \A m \in net : m.op = "READ_DONE" => runs[m.transfer[4]][m.transfer[1]].phase # "forgotten"
\* A late START makes a run for an attempt that is forgotten, and that run is forgotten too.
NeverForNobody == \A r, q \in Runs : LET p == runs[Leader] IN
                        ~(/\ r # q /\ p[r].attempt = p[q].attempt /\ p[q].phase = "forgotten"
                          /\ <<Leader, r, "done">> \in verdicts /\ <<Leader, q, "failed">> \in verdicts
                          /\ net = {} /\ dests[p[q].attempt].phase = "forgotten")
\* With read_lease the copy of a dead Decode still reads a slot that somebody else has overwritten.
NeverOrphanTorn == \A x \in io : (x.op = "orphan" /\ x.right) =>
                        LET t == x.transfer IN Holds(mem[t[4]][GateOf(t[1], t[3])], t[1], t[2], t[3])
\* A Decode that has come back is served, and what its predecessor left is gone.
NeverServedAgain == \A a \in Attempts : ~(/\ lives.born[a] = 2 /\ attempts[a].phase = "scheduled"
                                          /\ \E r \in Runs : LET p == runs[Leader][r] IN p.phase = "forgotten" /\ lives.born[p.attempt] = 1)
\* A Prefill that has come back serves the same Decode.
NeverServesAgain == \A a \in Attempts : ~(attempts[a].phase = "scheduled" /\ lives.began[bindings[a].run] = 2)
\* Two ranks' reads of one step end in another order than the ranks have: one has all of the step, and the first one still reads.
NeverLaterRankFirst == \A t, u \in Transfers : ~(/\ t[1] = u[1] /\ t[2] = u[2] /\ t[3] = u[3] /\ RankOf(t[4]) < RankOf(u[4])
                                                 /\ reads[t].phase = "reading" /\ reads[u].phase = "committed")
\* The slot of the Prefill rank that feeds one Decode rank belongs to the next layer, and another Decode rank reads the layer before it.
NeverRanksDriftApart == \A x \in io : x.op = "read" => LET t == x.transfer IN
                            \A m \in Members : RankOf(m) # RankOf(t[4]) => mem[m][GateOf(t[1], t[3])][2] <= t[3]
\* Rank 0 has ended its part of a forward and another rank computes it still.
NeverComputesLonger == \A a \in Attempts, k \in DecodeRanks : [op |-> "forward", attempt |-> a, rank |-> k] \in io =>
                            [op |-> "forward", attempt |-> a, rank |-> Rank] \in io
===============================================================================
