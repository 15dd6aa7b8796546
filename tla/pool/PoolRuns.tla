------------------------------- MODULE PoolRuns -------------------------------
(***************************************************************************)
(* Runs that share prefixes through the pool: what one of them left there, *)
(* another takes for its own.  An object holds the rows of one part of a   *)
(* prompt, all layers; its name is the content, <<key, 0>>, or, where      *)
(* somebody else writes that just now, a name of the run's own, <<key, r>>. *)
(*                                                                         *)
(* A run begins and pins the longest stored part of its prompt, but for the *)
(* last, which is always computed.  Layer by layer it fills what is stored *)
(* and saves what is not, which the first layer allocates; what a later    *)
(* part rests on it loads.  The run ends, or is given up, at any time; its *)
(* pins stay until its copies have stopped.  A client is a process: it dies *)
(* with its runs and copies.  A pin may lapse at any time (a clock), any   *)
(* object may be evicted or removed that the index lets go.                *)
(*                                                                         *)
(* An action is one call, or the end of one copy, of engine/               *)
(* prefill_copies.py.  `mem` is the truth that nobody sees: of each extent *)
(* and layer the key whose bytes lie there, or Junk.                       *)
(***************************************************************************)
EXTENDS PoolIndex, Sequences
CONSTANTS Runs, Clients, Layers, Keys, Prompt(_), ClientOf(_),      \* a prompt: a sequence of keys
          MaxFail, MaxLapse, MaxRemove, MaxDeath, MaxEvict
VARIABLES entries, mem, runs, io, dead, used, ev
vars == <<entries, mem, runs, io, dead, used, ev>>
View == <<entries, mem, runs, io, dead, used>>

SamePrompt(r) == <<1, 2>>
ForkedPrompt(r) == <<1, IF r < 3 THEN 2 ELSE 3>>
OwnClient(r) == r
OneClient(r) == 1
TwoAndOne(r) == IF r < 3 THEN 1 ELSE 2

Junk == 0
Names == Keys \X (Runs \cup {0})
Length(r) == Len(Prompt(r))
Shared(r, p) == <<Prompt(r)[p], 0>>
Private(r, p) == <<Prompt(r)[p], r>>
Last == Cardinality(Layers)

\* at, layer: the next step; does: nothing yet, "fill" or "load" under way, or "loaded"; new: what it writes; saved: of that, layers that
\* are there; lost: parts whose objects will never be readable.
Idle(r) == [phase |-> "idle", names |-> [p \in 1..Length(r) |-> Shared(r, p)], backed |-> 0, at |-> 1, layer |-> 1, does |-> "none",
            pins |-> {}, new |-> {}, saved |-> {}, lost |-> {}]

Init == /\ entries = [n \in Names |-> Absent]
        /\ mem = [x \in Extents |-> [l \in Layers |-> Junk]]
        /\ runs = [r \in Runs |-> Idle(r)]
        /\ io = {} /\ dead = {}
        /\ used = [fail |-> 0, lapse |-> 0, remove |-> 0, death |-> 0, evict |-> 0]
        /\ ev = [op |-> "Init"]

Use(what) == used' = [used EXCEPT ![what] = @ + 1]
Max(what) == CASE what = "fail" -> MaxFail [] what = "lapse" -> MaxLapse [] what = "remove" -> MaxRemove
               [] what = "death" -> MaxDeath [] what = "evict" -> MaxEvict
May(what) == used[what] < Max(what)

Running(r) == runs[r].phase = "running"
Copies(r, xs) == {x \in xs : x.run = r}
Holders(rs, c, n) == {q \in Runs : ClientOf(q) = c /\ n \in rs[q].pins}

\* The index lets go of a client's pins that no run of it needs any more.
Unneeded(es, rs, c, ns) == [n \in DOMAIN es |-> IF n \in ns /\ Holders(rs, c, n) = {} THEN Unpinned(es[n], c) ELSE es[n]]

\* A run that is over gives back, once its copies have stopped, what it has not finished and its pins.
Release(es, rs, xs, r) ==
    IF rs[r].phase = "over" /\ Copies(r, xs) = {}
    THEN LET c == ClientOf(r)
             after == [rs EXCEPT ![r] = [Idle(r) EXCEPT !.phase = "ended"]]
             given == [n \in DOMAIN es |-> IF n \in rs[r].new THEN Dropped(es[n], c) ELSE es[n]]
         IN /\ entries' = Unneeded(given, after, c, rs[r].pins)
            /\ runs' = after
    ELSE entries' = es /\ runs' = rs

\* What will never be readable goes as soon as no copy writes it.
WithoutSpoilt(es, rs, xs, r) ==
    LET gone == {n \in rs[r].new : (\E p \in rs[r].lost : rs[r].names[p] = n) /\ \A x \in Copies(r, xs) : x.op # "save" \/ x.name # n}
    IN <<[n \in DOMAIN es |-> IF n \in gone THEN Dropped(es[n], ClientOf(r)) ELSE es[n]], [rs EXCEPT ![r].new = @ \ gone]>>

Settle(es, rs, xs, r) == LET left == WithoutSpoilt(es, rs, xs, r) IN Release(left[1], left[2], xs, r) /\ io' = xs

Advanced(run) == IF run.layer < Last THEN [run EXCEPT !.layer = @ + 1, !.does = "none"]
                 ELSE [run EXCEPT !.at = @ + 1, !.layer = 1, !.does = "none"]

-------------------------------------------------------------------------------
(* The run.                                                                 *)

Backing(r) == CHOOSE k \in 0..(Length(r) - 1) :
    /\ \A p \in 1..k : CanPin(entries[Shared(r, p)])
    /\ k = Length(r) - 1 \/ ~CanPin(entries[Shared(r, k + 1)])
Begin(r) ==
    /\ runs[r].phase = "idle" /\ ClientOf(r) \notin dead
    /\ LET own == {Shared(r, p) : p \in 1..Backing(r)} IN
        /\ entries' = [n \in Names |-> IF n \in own THEN Pinned(entries[n], ClientOf(r)) ELSE entries[n]]
        /\ runs' = [runs EXCEPT ![r].phase = "running", ![r].backed = Backing(r), ![r].pins = own]
    /\ ev' = [op |-> "Begin", run |-> r]
    /\ UNCHANGED <<mem, io, dead, used>>

Has(r, n) == n \in runs[r].pins /\ ClientOf(r) \in entries[n].pins
Reads(op, r, ps) == {[op |-> op, run |-> r, name |-> runs[r].names[p], extent |-> entries[runs[r].names[p]].extent,
                      layer |-> runs[r].layer, lapsed |-> FALSE] : p \in ps}
\* A copy out of the pool, or, where a pin is gone, none, and the run has failed.
Read(op, r, ps) ==
    /\ IF \A p \in ps : Has(r, runs[r].names[p])
       THEN /\ io' = io \cup Reads(op, r, ps)
            /\ runs' = [runs EXCEPT ![r].does = op]
       ELSE /\ runs' = [runs EXCEPT ![r].phase = "failed"]
            /\ UNCHANGED io
    /\ UNCHANGED <<entries, mem, dead, used>>

Fill(r) ==
    /\ Running(r) /\ runs[r].at <= runs[r].backed /\ runs[r].does = "none"
    /\ Read("fill", r, {runs[r].at})
    /\ ev' = [op |-> "Fill", run |-> r]

\* A later part rests on the earlier ones, whole.
Load(r) ==
    /\ Running(r) /\ runs[r].at \in 2..Length(r) /\ runs[r].at > runs[r].backed /\ runs[r].does = "none"
    /\ \A p \in 1..(runs[r].at - 1) : runs[r].names[p] \notin runs[r].new
    /\ Read("load", r, 1..(runs[r].at - 1))
    /\ ev' = [op |-> "Load", run |-> r]

ReadEnd(x, ok) ==
    /\ x \in io /\ x.op \in {"fill", "load"}
    /\ IF x.lapsed THEN ~ok /\ UNCHANGED used ELSE IF ok THEN UNCHANGED used ELSE May("fail") /\ Use("fail")
    /\ LET r == x.run  rest == io \ {x}
           run == IF runs[r].phase # "running" THEN runs[r]
                  ELSE IF ~ok THEN [runs[r] EXCEPT !.phase = "failed"]
                  ELSE IF x.op = "fill" THEN Advanced(runs[r])
                  ELSE IF \E y \in Copies(r, rest) : y.op = "load" THEN runs[r] ELSE [runs[r] EXCEPT !.does = "loaded"]
       IN Settle(entries, [runs EXCEPT ![r] = run], rest, r)
    /\ ev' = [op |-> "ReadEnd", run |-> x.run, name |-> x.name, ok |-> ok]
    /\ UNCHANGED <<mem, dead>>

-------------------------------------------------------------------------------
(* Saves.                                                                   *)

\* The name under which the part is to be written, or found: the run's own where another one writes it.
NameFor(es, r, p) == IF Answer(es[Shared(r, p)]) = "busy" THEN Private(r, p) ELSE Shared(r, p)
Writes(es, run, r, n) ==
    /\ io' = io \cup {[op |-> "save", run |-> r, name |-> n, extent |-> es[n].extent, layer |-> run.layer, lapsed |-> FALSE]}
    /\ mem' = [mem EXCEPT ![es[n].extent][run.layer] = Junk]
    /\ runs' = [runs EXCEPT ![r] = Advanced(run)]
    /\ entries' = es
Keeps(es, run, r) == entries' = es /\ runs' = [runs EXCEPT ![r] = Advanced(run)] /\ UNCHANGED <<mem, io>>

\* The first layer of a part that nobody left: begin what is not stored, pin what is.
Allocate(r) ==
    LET p == runs[r].at  c == ClientOf(r)  es == Wanted(entries, Shared(r, p), dead)  n == NameFor(es, r, p)
        run == [runs[r] EXCEPT !.names[p] = n]
    IN IF Answer(es[n]) = "stored"
       THEN Keeps([es EXCEPT ![n] = Pinned(@, c)], [run EXCEPT !.pins = @ \cup {n}], r)
       ELSE IF Room(es, dead) = {}
       THEN Keeps(Left(es, dead), [run EXCEPT !.lost = @ \cup {p}], r)
       ELSE \E room \in Room(es, dead) : Writes(Begun(room, n, c), [run EXCEPT !.new = @ \cup {n}], r, n)

Save(r) ==
    /\ Running(r) /\ runs[r].at \in (runs[r].backed + 1)..Length(r)
    /\ IF runs[r].at = 1 THEN runs[r].does = "none" ELSE runs[r].does = "loaded"
    /\ LET p == runs[r].at  n == runs[r].names[p] IN
       IF runs[r].layer = 1 THEN Allocate(r)
       ELSE IF p \in runs[r].lost THEN Keeps(entries, runs[r], r)
       ELSE IF n \in runs[r].pins      \* stored: no byte moves
       THEN Keeps(entries, IF Has(r, n) THEN runs[r] ELSE [runs[r] EXCEPT !.lost = @ \cup {p}], r)
       ELSE Writes(entries, runs[r], r, n)
    /\ ev' = [op |-> "Save", run |-> r, gone |-> {n \in Names : entries[n].state = "readable" /\ entries'[n].state = "absent"}]
    /\ UNCHANGED <<dead, used>>

\* With its last layer an object becomes readable, and is pinned in the same breath.
SaveEnd(x, ok) ==
    /\ x \in io /\ x.op = "save"
    /\ IF ok THEN UNCHANGED used ELSE May("fail") /\ Use("fail")
    /\ mem' = IF ok THEN [mem EXCEPT ![x.extent][x.layer] = x.name[1]] ELSE mem
    /\ LET r == x.run  n == x.name  c == ClientOf(r)
           p == CHOOSE q \in 1..Length(r) : runs[r].names[q] = n
           run == IF ok THEN [runs[r] EXCEPT !.saved = @ \cup {<<n, x.layer>>}] ELSE [runs[r] EXCEPT !.lost = @ \cup {p}]
           whole == p \notin run.lost /\ \A l \in Layers : <<n, l>> \in run.saved
       IN IF whole
          THEN Settle([entries EXCEPT ![n] = Pinned(Finished(@), c)],
                      [runs EXCEPT ![r] = [run EXCEPT !.new = @ \ {n}, !.pins = @ \cup {n}]], io \ {x}, r)
          ELSE Settle(entries, [runs EXCEPT ![r] = run], io \ {x}, r)
    /\ ev' = [op |-> "SaveEnd", run |-> x.run, name |-> x.name, layer |-> x.layer, ok |-> ok]
    /\ UNCHANGED dead

-------------------------------------------------------------------------------
(* The end, and what the world does.                                        *)

End(r) ==
    /\ Running(r) /\ runs[r].at > Length(r)
    /\ Settle(entries, [runs EXCEPT ![r].phase = "over"], io, r)
    /\ ev' = [op |-> "End", run |-> r]
    /\ UNCHANGED <<mem, dead, used>>

\* The run is given up: what it has not finished is spoilt.
Fail(r) ==
    /\ runs[r].phase \in {"running", "failed"}
    /\ Settle(entries, [runs EXCEPT ![r].phase = "over", ![r].lost = {p \in 1..Length(r) : runs[r].names[p] \in runs[r].new} \cup @], io, r)
    /\ ev' = [op |-> "Fail", run |-> r]
    /\ UNCHANGED <<mem, dead, used>>

Evict(n) ==
    /\ CanEvict(entries[n]) /\ May("evict") /\ Use("evict")
    /\ entries' = [entries EXCEPT ![n] = Absent]
    /\ ev' = [op |-> "Evict", name |-> n]
    /\ UNCHANGED <<mem, runs, io, dead>>

Remove(n) ==
    /\ CanRemove(entries[n]) /\ May("remove") /\ Use("remove")
    /\ entries' = [entries EXCEPT ![n] = Removed(@)]
    /\ ev' = [op |-> "Remove", name |-> n]
    /\ UNCHANGED <<mem, runs, io, dead>>

\* A pin under which nothing was loaded for long is taken back; what is read under it then is worth nothing.
Lapse(c, n) ==
    /\ c \in entries[n].pins /\ May("lapse") /\ Use("lapse")
    /\ entries' = [entries EXCEPT ![n] = Unpinned(@, c)]
    /\ io' = {[x EXCEPT !.lapsed = @ \/ (x.op # "save" /\ x.name = n /\ ClientOf(x.run) = c)] : x \in io}
    /\ ev' = [op |-> "Lapse", client |-> c, name |-> n]
    /\ UNCHANGED <<mem, runs, dead>>

\* A process is killed: its runs and copies are no more, the index does not know.
Die(c) ==
    /\ c \notin dead /\ May("death") /\ Use("death")
    /\ dead' = dead \cup {c}
    /\ io' = {x \in io : ClientOf(x.run) # c}
    /\ runs' = [r \in Runs |-> IF ClientOf(r) = c THEN [Idle(r) EXCEPT !.phase = "dead"] ELSE runs[r]]
    /\ ev' = [op |-> "Die", client |-> c]
    /\ UNCHANGED <<entries, mem>>

Recover ==
    /\ Left(entries, dead) # entries
    /\ entries' = Left(entries, dead)
    /\ ev' = [op |-> "Recover"]
    /\ UNCHANGED <<mem, runs, io, dead, used>>
===============================================================================
