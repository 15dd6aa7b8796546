-------------------------- MODULE FailureInvalidation --------------------------
(***************************************************************************)
(* The destination blocks of one attempt on Decode: whose they are, whether *)
(* what is in them may be used, and when they may be given to another.     *)
(*                                                                         *)
(* owned -> valid | poisoned;  both -> draining -> reclaimed -> forgotten  *)
(*                                                                         *)
(* Blocks return after three steps, in this order: invalidated (or         *)
(* released after use); every rank closed (it begins no further read);     *)
(* every rank drained (nothing of it may still land).  Drained is judged   *)
(* from what the rank reports (open: the groups that are not quiet), and   *)
(* only of a rank that is closed, for before that a new read may begin.    *)
(* After that nothing of the attempt matters here; Decode says so (RETIRE) *)
(* and, once it is answered, forgets.  The attempt's nonce stays used.     *)
(***************************************************************************)
CONSTANTS Ranks, Groups     \* bounds of the graph

State == [phase   : {"idle", "owned", "valid", "poisoned", "draining", "reclaimed", "forgotten"},
          ranks   : SUBSET Ranks,
          closed  : SUBSET Ranks,
          drained : SUBSET Ranks]

Initial == [phase |-> "idle", ranks |-> {}, closed |-> {}, drained |-> {}]
\* All that is left of an attempt: its nonce was used.
Forgotten == [Initial EXCEPT !.phase = "forgotten"]

CanOwn(s) == s.phase = "idle"
Own(s, ranks) == [s EXCEPT !.phase = "owned", !.ranks = ranks]

\* May rank k begin a read into these blocks?  Of an attempt that is not known, or not any more, it owns none.
CanRead(s, k) == /\ k \in s.ranks
                 /\ k \notin s.closed

\* Everything has arrived and is right.
CanValidate(s) == s.phase = "owned"
Validate(s) == [s EXCEPT !.phase = "valid"]

\* Something went wrong: what is in the blocks is never used.
CanPoison(s) == s.phase \in {"owned", "valid"}
Poison(s) == [s EXCEPT !.phase = "poisoned"]

\* Nobody uses the contents any more.
CanDrain(s) == s.phase \in {"valid", "poisoned"}
Drain(s) == [s EXCEPT !.phase = "draining"]

CanClose(s, k) == s.phase = "draining"
Close(s, k) == [s EXCEPT !.closed = @ \cup {k}]

CanDrained(s, k, open) == k \in s.closed /\ open = {}
Drained(s, k) == [s EXCEPT !.drained = @ \cup {k}]

CanReclaim(s) == s.phase = "draining" /\ s.ranks \subseteq s.drained
Reclaim(s) == [s EXCEPT !.phase = "reclaimed"]

\* Nothing of it is read, or may land, any more: Decode may say that it will never speak of it again, and forget it.
CanForget(s) == s.phase = "reclaimed"
Forget(s) == Forgotten

Events == [op : {"Own"}, ranks : SUBSET Ranks \ {{}}]
            \cup [op : {"Close"}, rank : Ranks]
            \cup [op : {"Drained"}, rank : Ranks, open : SUBSET Groups]
            \cup [op : {"Validate", "Poison", "Drain", "Reclaim", "Forget"}]

Enabled(s, e) ==
    CASE e.op = "Own"      -> CanOwn(s)
      [] e.op = "Validate" -> CanValidate(s)
      [] e.op = "Poison"   -> CanPoison(s)
      [] e.op = "Drain"    -> CanDrain(s)
      [] e.op = "Close"    -> CanClose(s, e.rank)
      [] e.op = "Drained"  -> CanDrained(s, e.rank, e.open)
      [] e.op = "Reclaim"  -> CanReclaim(s)
      [] e.op = "Forget"   -> CanForget(s)

Step(s, e) ==
    CASE e.op = "Own"      -> Own(s, e.ranks)
      [] e.op = "Validate" -> Validate(s)
      [] e.op = "Poison"   -> Poison(s)
      [] e.op = "Drain"    -> Drain(s)
      [] e.op = "Close"    -> Close(s, e.rank)
      [] e.op = "Drained"  -> Drained(s, e.rank)
      [] e.op = "Reclaim"  -> Reclaim(s)
      [] e.op = "Forget"   -> Forget(s)
===============================================================================
