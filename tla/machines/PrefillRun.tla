------------------------------ MODULE PrefillRun ------------------------------
(***************************************************************************)
(* One prefill of one attempt: which (chunk, layer) comes next, which of   *)
(* its transfers are open, and its one verdict.                            *)
(*                                                                         *)
(* running -> computed -> done, and from either of the first two -> failed. *)
(* A run is done only when it has computed everything and every transfer   *)
(* has ended with done; a transfer that ends otherwise fails the run.      *)
(* A failed run computes nothing more, but its open transfers stay open    *)
(* until each has its own verdict: a failure is no proof that nobody reads. *)
(* It is forgotten once Decode has retired its attempt, every transfer has  *)
(* its verdict, and no copy of it is under way: nobody can ask about it any *)
(* more.  Its nonce stays used.                                            *)
(***************************************************************************)
EXTENDS Naturals
CONSTANTS Attempts, Transfers, MaxChunks, MaxLayers     \* bounds of the graph

NoAttempt == 0     \* attempt nonces are never 0

State == [phase   : {"idle", "running", "computed", "done", "failed", "forgotten"},
          attempt : Attempts \cup {NoAttempt},
          chunks  : 0..MaxChunks,               \* chunks and layers of this run
          layers  : 0..MaxLayers,
          chunk   : 1..(MaxChunks + 1),         \* the next step
          layer   : 1..MaxLayers,
          open    : SUBSET Transfers,
          retired : BOOLEAN]                    \* Decode has said that it will never speak of the attempt again

Initial == [phase |-> "idle", attempt |-> NoAttempt, chunks |-> 0, layers |-> 0,
            chunk |-> 1, layer |-> 1, open |-> {}, retired |-> FALSE]
\* All that is left of a run: its nonce was used.
Forgotten == [Initial EXCEPT !.phase = "forgotten"]

CanStart(s) == s.phase = "idle"
Start(s, a, chunks, layers) == [s EXCEPT !.phase = "running", !.attempt = a, !.chunks = chunks, !.layers = layers]

\* May this run take or write a slot?
CanAct(s) == s.phase = "running"

\* Between two chunks the run may leave the slots of its own, which it would have extended, and load them again when it goes on.
\* own: those slots; idle: the slots that it may extend, so none of these is taken for its next chunk; stored: chunks of it that the pool has.
CanGiveWay(s, own, idle, stored) == /\ s.phase = "running"
                                    /\ s.layer = 1
                                    /\ own \subseteq idle
                                    /\ 1..(s.chunk - 1) \subseteq stored

\* The step (chunk, layer) has been written and published as transfers ts.
CanAdvance(s) == s.phase = "running"
Advance(s, ts) ==
    LET over == s.layer = s.layers
    IN [s EXCEPT !.open = @ \cup ts,
                 !.layer = IF over THEN 1 ELSE @ + 1,
                 !.chunk = IF over THEN @ + 1 ELSE @,
                 !.phase = IF over /\ s.chunk = s.chunks THEN "computed" ELSE @]

\* Transfer t has its verdict.
CanClose(s, t) == t \in s.open
Close(s, t) == [s EXCEPT !.open = @ \ {t}]

CanFail(s) == s.phase \in {"running", "computed"}
Fail(s) == [s EXCEPT !.phase = "failed"]

CanFinish(s) == s.phase = "computed" /\ s.open = {}
Finish(s) == [s EXCEPT !.phase = "done"]

\* RETIRE: nobody will read anything of this run, or ask about it, again.  It ends as it would have.
CanRetire(s) == s.phase \notin {"idle", "forgotten"}
Retire(s) == [s EXCEPT !.retired = TRUE]

\* Decode may not know that it has failed: worth saying again.
Untold(s) == s.phase = "failed" /\ ~s.retired

\* held: the attentions, saves and loads of this run that are under way.
CanForget(s, held) == /\ s.retired
                      /\ s.phase \in {"done", "failed"}
                      /\ s.open = {}
                      /\ held = {}
Forget(s) == Forgotten

Events == [op : {"Start"}, attempt : Attempts, chunks : 1..MaxChunks, layers : 1..MaxLayers]
            \cup [op : {"Advance"}, transfers : SUBSET Transfers]
            \cup [op : {"Close"}, transfer : Transfers]
            \cup [op : {"Forget"}, held : SUBSET Transfers]
            \cup [op : {"Fail", "Finish", "Retire"}]

Enabled(s, e) ==
    CASE e.op = "Start"   -> CanStart(s)
      [] e.op = "Advance" -> CanAdvance(s)
      [] e.op = "Close"   -> CanClose(s, e.transfer)
      [] e.op = "Fail"    -> CanFail(s)
      [] e.op = "Finish"  -> CanFinish(s)
      [] e.op = "Retire"  -> CanRetire(s)
      [] e.op = "Forget"  -> CanForget(s, e.held)

Step(s, e) ==
    CASE e.op = "Start"   -> Start(s, e.attempt, e.chunks, e.layers)
      [] e.op = "Advance" -> Advance(s, e.transfers)
      [] e.op = "Close"   -> Close(s, e.transfer)
      [] e.op = "Fail"    -> Fail(s)
      [] e.op = "Finish"  -> Finish(s)
      [] e.op = "Retire"  -> Retire(s)
      [] e.op = "Forget"  -> Forget(s)
===============================================================================
