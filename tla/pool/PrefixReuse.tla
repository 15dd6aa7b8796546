----------------------------- MODULE PrefixReuse ------------------------------
(***************************************************************************)
(* Prefix reuse between requests: what may happen next in PoolRuns, what   *)
(* must never be, what must happen at last, and what must be seen to occur. *)
(***************************************************************************)
EXTENDS PoolRuns

Next == \/ \E r \in Runs : Begin(r) \/ Fill(r) \/ Load(r) \/ Save(r) \/ End(r) \/ Fail(r)
        \/ \E x \in io, ok \in BOOLEAN : ReadEnd(x, ok) \/ SaveEnd(x, ok)
        \/ \E n \in Names : Evict(n) \/ Remove(n) \/ \E c \in Clients : Lapse(c, n)
        \/ \E c \in Clients : Die(c)
        \/ Recover
Spec == Init /\ [][Next]_vars

-------------------------------------------------------------------------------
(* What must never be.                                                      *)

\* A fill or a load that still counts reads the bytes of the content that it was asked for: never an object half written, spoilt, or
\* whose extent was given to another.
Bytes(x, l) == IF x \in Extents THEN mem[x][l] ELSE Junk
FillReadsStored == \A x \in io : (x.op # "save" /\ ~x.lapsed) => Bytes(x.extent, x.layer) = x.name[1]

\* Who finds an object finds all its layers.
StoredIsWhole == \A n \in Names : entries[n].state = "readable" => \A l \in Layers : Bytes(entries[n].extent, l) = n[1]

\* A save writes where its object lies, and nobody else writes that object.
OneWriter ==
    \A x \in io : x.op = "save" =>
        /\ entries[x.name].extent = x.extent
        /\ \A y \in io : (y.op = "save" /\ y.name = x.name) => y.run = x.run

\* An extent belongs to one object, from its beginning until nobody holds it any more.
OnePlace == \A n, m \in Names : (n # m /\ entries[n].state # "absent" /\ entries[m].state # "absent") => entries[n].extent # entries[m].extent

\* What a run holds stays where it is, and held, for as long as the run needs it, unless its pin lapses.
PinnedStays ==
    [][\A r \in Runs : LET c == ClientOf(r) IN \A n \in runs[r].pins \cap runs'[r].pins :
        (c \in entries[n].pins /\ ev'.op # "Lapse") =>
            /\ c \in entries'[n].pins
            /\ entries'[n].extent = entries[n].extent /\ entries'[n].state \in {"readable", "evicting"}]_vars

\* When no run of a living client is under way, it holds nothing.
Quiescence ==
    (\A r \in Runs : runs[r].phase \in {"idle", "ended", "dead"}) =>
        \A n \in Names : /\ entries[n].pins \subseteq dead
                         /\ entries[n].state = "allocated" => entries[n].owner \in dead
                         /\ entries[n].state = "evicting" => entries[n].pins # {}

-------------------------------------------------------------------------------
(* What must happen at last.  Nobody need give a run up that goes well, and nothing need be evicted; only that what the dead hold     *)
(* comes back rests on a recovery some day.                                                                                         *)

Fair == \A r \in Runs : /\ WF_vars(Begin(r)) /\ WF_vars(Fill(r)) /\ WF_vars(Load(r)) /\ WF_vars(Save(r)) /\ WF_vars(End(r))
                         /\ WF_vars(runs[r].phase = "failed" /\ Fail(r))
                         /\ WF_vars(\E x \in Copies(r, io) : ReadEnd(x, ~x.lapsed) \/ SaveEnd(x, TRUE))
FairSpec == Spec /\ Fair
RecoverSpec == FairSpec /\ WF_vars(Recover)

\* Every run comes to an end: nobody waits for somebody else.
EveryRunEnds == <>[](\A r \in Runs : runs[r].phase \in {"ended", "dead"})
\* When all runs are over nothing is pinned, whoever died.
PinsReturn == <>[](\A n \in Names : entries[n].pins = {})
\* And nothing is half written: no name is taken for ever by what nobody can read.
NoneHalfWritten == <>[](\A n \in Names : entries[n].state # "allocated")

-------------------------------------------------------------------------------
(* Each of these is false in some behaviour.                                *)

\* Two runs use one object at once.
NeverShared == \A x, y \in io : ~(x.op = "fill" /\ y.op = "fill" /\ x.run # y.run /\ x.name = y.name)
\* An object stays although its extent is wanted: whoever wanted it had to do without, because of its users.
NeverKeptForItsUsers == \A r \in Runs : ~(\E p \in runs[r].lost : runs[r].names[p] \notin runs[r].new
                                        /\ used["fail"] = 0 /\ used["lapse"] = 0 /\ \E n \in Names : entries[n].pins # {})
\* A run writes under a name of its own, for another one writes the same content; and both finish.
NeverPrivate == \A n, m \in Names : ~(n[1] = m[1] /\ n # m /\ entries[n].state = "readable" /\ entries[m].state = "readable")
\* A run fills from what another one left, and the object is on its way out.
NeverFilledFromTheLeaving == \A x \in io : x.op = "fill" => entries[x.name].state # "evicting"
\* What a dead process was writing is written anew by another one, under the same name.
NeverTakenOver == [][\A n \in Names : ~(/\ entries[n].state = "allocated" /\ entries[n].owner \in dead
                                        /\ entries'[n].state = "allocated" /\ entries'[n].owner \notin dead)]_vars
===============================================================================
