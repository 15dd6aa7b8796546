------------------------------ MODULE TraceLives ------------------------------
(***************************************************************************)
(* Whose line is it?  A recorded run has the files of several lives: of    *)
(* each Prefill and each Decode, and of those that came back after a crash *)
(* (a life is what one process, or one group of ranks, was from its start  *)
(* to its end).  System has one Prefill and one Decode at a time.  That    *)
(* they are several changes little: attempts of different Decodes have     *)
(* nothing in common, nor have the runs of different Prefills, if each     *)
(* Prefill has gates of its own; so each has lanes of its own (LanesOf).   *)
(* What differs from life to life is what it knows of the others, which    *)
(* System keeps in lives: here it is kept for each (missed, peerstate),    *)
(* and before each line lives becomes what the line's life knows.          *)
(*                                                                         *)
(*   dead       the lives that have died, or ended and been missed;        *)
(*   missed     <<d, p>>: Decode d knows that Prefill p is dead;           *)
(*   peerstate  of each Prefill and each Decode, the machine Peer.         *)
(*                                                                         *)
(* Lives are numbered, Decodes first.  Over is where a life has ended: it  *)
(* is no line, but stands after the last one of a life that died, or that  *)
(* somebody says is gone.                                                  *)
(***************************************************************************)
EXTENDS System, Sequences, TLC, TraceData

VARIABLES which, dead, missed, peerstate, under      \* which: of the traces that are judged together; under: see TraceRules

Of == Lineage[which]
IsDecode(i) == i <= Of.decodes
Decodes == 1..Of.decodes
Prefills == (Of.decodes + 1)..Len(Of.lanes)
BornOf(a) == IF a <= Len(Of.born) THEN Of.born[a] ELSE 0
BeganOf(r) == IF r <= Len(Of.began) THEN Of.began[r] ELSE 0
AttemptsOf(i) == {a \in Attempts : BornOf(a) = i}
RunsOf(i) == {r \in Runs : BeganOf(r) = i}
GatesOf(i) == {k \in Gates : k[2] \in Of.lanes[i]}
AskedOf(p, d) == {r \in RunsOf(p) : Started(Leader, r) /\ BornOf(runs[Leader][r].attempt) = d}

NoLives == dead = {} /\ missed = {} /\ peerstate = [p \in Prefills |-> [d \in Decodes |-> PE!Initial]]

\* What life i knows: of the runs, which it may hear of (1), if it is a Decode, or has begun, if a Prefill.
Ear(i, g, k) ==
    [decode |-> i, prefill |-> 1, met |-> 1,
     born   |-> TLCEval([a \in Attempts |-> BornOf(a)]),
     began  |-> TLCEval([r \in Runs |-> IF IF IsDecode(i) THEN <<i, BeganOf(r)>> \notin g ELSE BeganOf(r) = i THEN 1 ELSE 0]),
     peers  |-> IF IsDecode(i) THEN TLCEval([d \in Decodes |-> PE!Initial]) ELSE k[i]]

\* Whoever lives knows of everybody who does not.
AllHeard(o, g, k) == /\ \A d \in Decodes \ o, p \in Prefills \cap o : <<d, p>> \in g
                     /\ \A p \in Prefills \ o, d \in Decodes \cap o : k[p][d].phase = "lost"
\* At the end of all (life 0): runs of the dead need no verdict.
AtRest(o, g, k) ==
    [decode |-> 1, prefill |-> 1, met |-> IF AllHeard(o, g, k) THEN 1 ELSE 0, born |-> [a \in Attempts |-> BornOf(a)],
     began |-> [r \in Runs |-> IF BeganOf(r) \in o THEN 0 ELSE 1], peers |-> [d \in Decodes |-> PE!Initial]]
Knows(i, o, g, k) == IF i = 0 THEN AtRest(o, g, k) ELSE Ear(i, g, k)

-------------------------------------------------------------------------------
(* What happens to lives.                                                   *)

\* What life i has under way, as far as the data path goes, and as its session knows it.
Mine(i, x) == IF IsDecode(i) THEN x.what = "read" /\ x.transfer \in {t \in Transfers : BornOf(runs[Leader][t[1]].attempt) = i}
                             ELSE x.what # "read" /\ x.transfer[1] \in RunsOf(i)
IoOfLife(i) == {x \in io : IF IsDecode(i) THEN x.op \in {"read", "stray"} /\ BornOf(x.attempt) = i
                                          ELSE x.op \in {"attend", "save", "load"} /\ x.transfer[1] \in RunsOf(i)}

IsOver(i) ==
    /\ IF IsDecode(i) THEN DecodeDies(i, AttemptsOf(i)) ELSE PrefillDies(RunsOf(i), GatesOf(i))
    /\ under' = {x \in under : ~Mine(i, x)}
    /\ dead' = dead \cup {i}
    /\ ev' = [op |-> "Over", life |-> i]
    /\ UNCHANGED <<used, missed, peerstate>>

\* Decode d has found that these lives of Prefill are over.
IsGone(d, ps) ==
    /\ Deserted({a \in AttemptsOf(d) : RC!Depends(attempts[a]) /\ BeganOf(bindings[a].run) \in ps})
    /\ missed' = missed \cup {<<d, p>> : p \in ps}
    /\ ev' = [op |-> "PrefillGone", lives |-> ps]
    /\ UNCHANGED <<under, dead, peerstate>>

\* And Prefill p, that life d of Decode is: gone, fenced, lost.
Peer(p, d, op, new) ==
    /\ peerstate' = [peerstate EXCEPT ![p][d] = new]
    /\ ev' = [op |-> op, life |-> d]
    /\ UNCHANGED <<under, dead, missed>>
IsPeerGone(p, d) == Peer(p, d, "PeerGone", PE!Go(peerstate[p][d])) /\ UNCHANGED <<sides, net, used, truth, history>>
IsPeerFenced(p, d) ==
    /\ Peer(p, d, "PeerFenced", PE!Fence(peerstate[p][d]))
    /\ io' = {x \in io : ~(x.op = "orphan" /\ x.life = d /\ x.transfer[1] \in RunsOf(p))}
    /\ UNCHANGED <<sides, net, used, mem, pooled, dest, registered, taken, owner, history>>
IsPeerLost(p, d) == Peer(p, d, "PeerLost", PE!Lose(peerstate[p][d])) /\ RunsLost(AskedOf(p, d))

LifeEvents == {"Over", "PrefillGone", "PeerGone", "PeerFenced", "PeerLost"}
Lived(line) ==
    CASE line.op = "Over"        -> IsOver(line.about)
      [] line.op = "PrefillGone" -> IsGone(line.life, line.about)
      [] line.op = "PeerGone"    -> IsPeerGone(line.life, line.about)
      [] line.op = "PeerFenced"  -> IsPeerFenced(line.life, line.about)
      [] line.op = "PeerLost"    -> IsPeerLost(line.life, line.about)

LifeNeeds(line) ==
    CASE line.op = "Over" ->
             IF line.killed THEN <<>> ELSE
             <<<<"it has ended, and every copy of it before", \A x \in under : ~Mine(line.about, x)>>,
               <<"every copy that its session began was reported to it", IoOfLife(line.about) = {}>>>>
      [] line.op = "PrefillGone" -> <<<<"they are over, and it did not know", \A p \in line.about : p \in dead /\ <<line.life, p>> \notin missed>>>>
      [] line.op = "PeerGone" -> <<<<"that life is over", line.about \in dead>>,
                                   <<"Peer.CanGo: its end was not known", PE!CanGo(peerstate[line.life][line.about])>>>>
      [] line.op = "PeerFenced" -> <<<<"Peer.CanFence: it is known to be gone, and is fenced once", PE!CanFence(peerstate[line.life][line.about])>>>>
      [] line.op = "PeerLost" -> <<<<"Peer.CanLose: it is fenced, so that none of its copies can run; with read_lease it is enough that it is gone",
                                    PE!CanLose(peerstate[line.life][line.about], ReadLease)>>>>

AboutLife(line) ==
    CASE line.op = "Over" -> [open |-> {x \in under : Mine(line.about, x)}, io |-> IoOfLife(line.about)]
      [] line.op = "PrefillGone" -> [missed |-> {x[2] : x \in {y \in missed : y[1] = line.life}}, dead |-> dead]
      [] OTHER -> [peer |-> peerstate[line.life][line.about], dead |-> dead, orphans |-> {x \in io : x.op = "orphan" /\ x.life = line.about},
                   held |-> {t \in Transfers : transfers[t].phase = "held" /\ t[1] \in AskedOf(line.life, line.about)}]
===============================================================================
