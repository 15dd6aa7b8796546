------------------------------ MODULE PoolObject ------------------------------
(***************************************************************************)
(* One object of the Prefill host KV pool: the KV of one chunk of one run, *)
(* all layers.  It is written layer by layer and becomes readable only when *)
(* every layer is there; a failed save, or a failed run, spoils it for good.  A pin *)
(* keeps it from eviction while somebody loads from it.  A key is written  *)
(* once: what was evicted or failed never comes back under the same key.   *)
(*                                                                         *)
(* absent -> writing -> readable -> gone;  writing -> failed               *)
(***************************************************************************)
CONSTANTS Layers, Pins     \* bounds of the graph

State == [phase   : {"absent", "writing", "readable", "failed", "gone"},
          layers  : SUBSET Layers,     \* what must be written
          written : SUBSET Layers,
          pins    : SUBSET Pins]

Initial == [phase |-> "absent", layers |-> {}, written |-> {}, pins |-> {}]

CanAllocate(s) == s.phase = "absent"
Allocate(s, layers) == [s EXCEPT !.phase = "writing", !.layers = layers]

CanLayerSaved(s, l) == s.phase = "writing" /\ l \in s.layers
LayerSaved(s, l) == [s EXCEPT !.written = @ \cup {l}]

\* A save failed, or the run that writes it has failed: it will never be complete.
CanFail(s) == s.phase = "writing"
Fail(s) == [s EXCEPT !.phase = "failed"]

CanFinish(s) == s.phase = "writing" /\ s.written = s.layers
Finish(s) == [s EXCEPT !.phase = "readable"]

\* May a load begin?  If so its pin is taken in the same breath.
CanPin(s) == s.phase = "readable"
Pin(s, p) == [s EXCEPT !.pins = @ \cup {p}]

CanUnpin(s, p) == p \in s.pins
Unpin(s, p) == [s EXCEPT !.pins = @ \ {p}]

CanEvict(s) == s.phase = "readable" /\ s.pins = {}
Evict(s) == [s EXCEPT !.phase = "gone"]

\* It will never be readable (again): whoever needs it must fail, not wait.
Missing(s) == s.phase \in {"failed", "gone"}

Events == [op : {"Allocate"}, layers : SUBSET Layers \ {{}}]
            \cup [op : {"LayerSaved"}, layer : Layers]
            \cup [op : {"Pin", "Unpin"}, pin : Pins]
            \cup [op : {"Fail", "Finish", "Evict"}]

Enabled(s, e) ==
    CASE e.op = "Allocate"   -> CanAllocate(s)
      [] e.op = "LayerSaved" -> CanLayerSaved(s, e.layer)
      [] e.op = "Fail"       -> CanFail(s)
      [] e.op = "Finish"     -> CanFinish(s)
      [] e.op = "Pin"        -> CanPin(s)
      [] e.op = "Unpin"      -> CanUnpin(s, e.pin)
      [] e.op = "Evict"      -> CanEvict(s)

Step(s, e) ==
    CASE e.op = "Allocate"   -> Allocate(s, e.layers)
      [] e.op = "LayerSaved" -> LayerSaved(s, e.layer)
      [] e.op = "Fail"       -> Fail(s)
      [] e.op = "Finish"     -> Finish(s)
      [] e.op = "Pin"        -> Pin(s, e.pin)
      [] e.op = "Unpin"      -> Unpin(s, e.pin)
      [] e.op = "Evict"      -> Evict(s)
===============================================================================
