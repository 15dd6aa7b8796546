------------------------------ MODULE PoolIndex -------------------------------
(***************************************************************************)
(* The index of a pool that several processes (clients) share: what may be *)
(* done to an entry, which is an object under its name.  engine/           *)
(* pool_change.py does the same, an operator here is a method there.       *)
(*                                                                         *)
(* absent -> allocated -> readable -> (evicting ->) absent                 *)
(* allocated -> absent                                                     *)
(*                                                                         *)
(* Only a client that allocated an object makes it readable; who reads it  *)
(* holds a pin, and what is pinned keeps its extent.  A dead client's holds *)
(* are taken back when room is short, when an object is wanted that it was *)
(* writing, or when somebody asks.                                         *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets
CONSTANTS Extents

Absent == [state |-> "absent", extent |-> 0, owner |-> 0, pins |-> {}]
Taken(es) == {es[n].extent : n \in {m \in DOMAIN es : es[m].state # "absent"}}
Free(es) == Extents \ Taken(es)

CanPin(e) == e.state = "readable"
Pinned(e, c) == [e EXCEPT !.pins = @ \cup {c}]

CanFinish(e, c) == e.state = "allocated" /\ e.owner = c
Finished(e) == [e EXCEPT !.state = "readable", !.owner = 0]

CanEvict(e) == e.state = "readable" /\ e.pins = {}

\* Give up what one is writing; nothing where one is not.
Dropped(e, c) == IF e.state = "allocated" /\ e.owner = c THEN Absent ELSE e

\* A pin ends; with the last one goes what was removed meanwhile.  Nothing where there is none any more.
Unpinned(e, c) == IF c \notin e.pins THEN e
                  ELSE IF e.pins = {c} /\ e.state = "evicting" THEN Absent
                  ELSE [e EXCEPT !.pins = @ \ {c}]

\* An operator's wish: nobody finds it any more, and it goes with its last pin.
CanRemove(e) == e.state = "readable"
Removed(e) == IF CanEvict(e) THEN Absent ELSE [e EXCEPT !.state = "evicting"]

\* Forget clients and all that they held.
Left(es, cs) == [n \in DOMAIN es |->
    IF es[n].state = "allocated" /\ es[n].owner \in cs THEN Absent
    ELSE IF es[n].state = "evicting" /\ es[n].pins \subseteq cs THEN Absent
    ELSE [es[n] EXCEPT !.pins = @ \ cs]]

\* What is allocated by somebody dead is no obstacle.
Wanted(es, n, dead) == IF es[n].state = "allocated" /\ es[n].owner \in dead THEN Left(es, {es[n].owner}) ELSE es

Answer(e) == CASE e.state = "absent"   -> "new"
               [] e.state = "readable" -> "stored"
               [] OTHER                -> "busy"

\* Every way to have a free extent: one that is free, else one of an object that nobody holds, and the dead give back theirs only
\* where there is neither.  None: the pool is full.
Evictions(es) == IF Free(es) # {} THEN {es} ELSE {[es EXCEPT ![v] = Absent] : v \in {n \in DOMAIN es : CanEvict(es[n])}}
Room(es, dead) == IF Evictions(es) # {} THEN Evictions(es) ELSE Evictions(Left(es, dead))

Lowest(xs) == CHOOSE x \in xs : \A y \in xs : x <= y
Begun(es, n, c) == [es EXCEPT ![n] = [state |-> "allocated", extent |-> Lowest(Free(es)), owner |-> c, pins |-> {}]]
===============================================================================
