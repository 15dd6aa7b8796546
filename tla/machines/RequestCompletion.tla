--------------------------- MODULE RequestCompletion ---------------------------
(***************************************************************************)
(* One attempt on Decode, from its admission to its end: when may it be    *)
(* advertised, when has everything arrived, when may inference begin.      *)
(*                                                                         *)
(* allocated -> registered -> advertised -> receiving -> complete          *)
(*           -> scheduled -> released;  failed from all before scheduled   *)
(*                                                                         *)
(* Complete needs every (chunk, layer) of the bound run.  The number of    *)
(* chunks is known from the final READY.  The last chunk alone proves      *)
(* nothing: no gate orders the chunks of an independent layer.             *)
(***************************************************************************)
EXTENDS Naturals
CONSTANTS Layers, MaxChunks     \* bounds of the graph

State == [phase  : {"idle", "allocated", "registered", "advertised", "receiving",
                    "complete", "failed", "scheduled", "released"},
          layers : SUBSET Layers,                      \* what every chunk must bring
          chunks : 0..MaxChunks,                       \* 0: not yet known
          got    : SUBSET ((1..MaxChunks) \X Layers)]  \* committed (chunk, layer)s

Initial == [phase |-> "idle", layers |-> {}, chunks |-> 0, got |-> {}]

\* The attempt owns blocks.
CanAllocate(s) == s.phase = "idle"
Allocate(s, layers) == [s EXCEPT !.phase = "allocated", !.layers = layers]

\* The backend knows the destination.
CanRegister(s) == s.phase = "allocated"
Register(s) == [s EXCEPT !.phase = "registered"]

\* Tell Prefill.
CanAdvertise(s) == s.phase = "registered"
Advertise(s) == [s EXCEPT !.phase = "advertised"]

\* The first READY of the bound run.
CanReceive(s) == s.phase = "advertised"
Receive(s) == [s EXCEPT !.phase = "receiving"]

\* The final READY carries the number of chunks.
CanCount(s) == s.chunks = 0
Count(s, n) == [s EXCEPT !.chunks = n]

\* All members of (c, l) are committed.
CanGot(s) == s.phase = "receiving"
Got(s, c, l) == [s EXCEPT !.got = @ \cup {<<c, l>>}]

\* The last chunk is looked at first: it comes last, so that an attempt that still waits is told so at once.
CanComplete(s) == /\ s.phase = "receiving"
                  /\ s.chunks > 0
                  /\ \A k \in 0..(s.chunks - 1) : \A l \in s.layers : <<s.chunks - k, l>> \in s.got
Complete(s) == [s EXCEPT !.phase = "complete"]

\* Does it wait for one life of Prefill, from which it has begun to read?  Before that any may serve it.
Depends(s) == s.phase = "receiving"

CanFail(s) == s.phase \in {"allocated", "registered", "advertised", "receiving", "complete"}
Fail(s) == [s EXCEPT !.phase = "failed"]

\* Inference may begin.
CanSchedule(s) == s.phase = "complete"
Schedule(s) == [s EXCEPT !.phase = "scheduled"]

\* Inference has ended.
CanFinish(s) == s.phase = "scheduled"
Finish(s) == [s EXCEPT !.phase = "released"]

Events == [op : {"Allocate"}, layers : SUBSET Layers \ {{}}]
            \cup [op : {"Count"}, chunks : 1..MaxChunks]
            \cup [op : {"Got"}, chunk : 1..MaxChunks, layer : Layers]
            \cup [op : {"Register", "Advertise", "Receive", "Complete", "Fail", "Schedule", "Finish"}]

Enabled(s, e) ==
    CASE e.op = "Allocate"  -> CanAllocate(s)
      [] e.op = "Register"  -> CanRegister(s)
      [] e.op = "Advertise" -> CanAdvertise(s)
      [] e.op = "Receive"   -> CanReceive(s)
      [] e.op = "Count"     -> CanCount(s)
      [] e.op = "Got"       -> CanGot(s)
      [] e.op = "Complete"  -> CanComplete(s)
      [] e.op = "Fail"      -> CanFail(s)
      [] e.op = "Schedule"  -> CanSchedule(s)
      [] e.op = "Finish"    -> CanFinish(s)

Step(s, e) ==
    CASE e.op = "Allocate"  -> Allocate(s, e.layers)
      [] e.op = "Register"  -> Register(s)
      [] e.op = "Advertise" -> Advertise(s)
      [] e.op = "Receive"   -> Receive(s)
      [] e.op = "Count"     -> Count(s, e.chunks)
      [] e.op = "Got"       -> Got(s, e.chunk, e.layer)
      [] e.op = "Complete"  -> Complete(s)
      [] e.op = "Fail"      -> Fail(s)
      [] e.op = "Schedule"  -> Schedule(s)
      [] e.op = "Finish"    -> Finish(s)
===============================================================================
