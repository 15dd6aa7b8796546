---------------------------- MODULE PhysicalBuffer ----------------------------
(***************************************************************************)
(* The gate of one physical layer buffer (a slot) of a Prefill rank.       *)
(*                                                                         *)
(* Many layers share the slot, one after the other.  Each new owner begins *)
(* a new epoch.  The contents of an epoch may be overwritten only when     *)
(* everybody who needs them has ended: the attention that computes with    *)
(* them, the save to the host pool, every remote read (transfer) that was  *)
(* named for this epoch, and the owner itself, if it wants to write more.  *)
(* Those are kept as sets of names, never as counters: a second report of  *)
(* one reader cannot stand for the first report of another.                *)
(*                                                                         *)
(* A load from the pool overwrites the slot too, so it passes the same     *)
(* gate.  A slot of a layer that shares with nobody (an independent layer) *)
(* is claimed once a run and extended chunk by chunk: new rows overwrite   *)
(* nothing, so Extend asks for ownership and not for an open gate.         *)
(*                                                                         *)
(* free -> loading -> computing -> draining -> free                        *)
(***************************************************************************)
EXTENDS Naturals
CONSTANTS Runs, Works, Transfers, MaxEpoch     \* bounds of the graph; no rule mentions them

NoRun == 0     \* run nonces are never 0

State == [phase     : {"free", "loading", "computing", "draining"},
          epoch     : 0..MaxEpoch,
          owner     : Runs \cup {NoRun},       \* the run that may still write into this epoch
          attending : SUBSET Works,            \* attentions that still read it
          saves     : SUBSET Works,            \* saves that still read it
          transfers : SUBSET Transfers]        \* remote reads that still may read it

Initial == [phase |-> "free", epoch |-> 0, owner |-> NoRun,
            attending |-> {}, saves |-> {}, transfers |-> {}]

\* THE GATE.  Run r takes the slot for new contents; load says that a load from the pool comes first.
CanClaim(s) == s.phase = "free"
Claim(s, r, load) == [s EXCEPT !.phase = IF load THEN "loading" ELSE "computing",
                               !.epoch = @ + 1, !.owner = r]

\* The load has ended.  If the owner has left meanwhile, nobody will compute here.
CanLoadEnded(s) == s.phase = "loading"
LoadEnded(s) == [s EXCEPT !.phase = IF s.owner = NoRun THEN "draining" ELSE "computing"]

\* The owner appends another chunk to an independent layer.
CanExtend(s, r) == s.phase = "draining" /\ s.owner = r
Extend(s, r) == [s EXCEPT !.phase = "computing"]

\* The owner has written its rows (kv_written).  From here on the contents are needed by attention w, by save w
\* and by the transfers ts; keep says that the owner will extend them.
CanWrite(s, r) == s.phase = "computing" /\ s.owner = r
Write(s, w, ts, keep) == [s EXCEPT !.phase = "draining",
                                   !.owner = IF keep THEN @ ELSE NoRun,
                                   !.attending = @ \cup {w},
                                   !.saves = @ \cup {w},
                                   !.transfers = @ \cup ts]

\* Attention w no longer needs the contents (layer_done).
CanAttended(s, w) == w \in s.attending
Attended(s, w) == [s EXCEPT !.attending = @ \ {w}]

\* Save w has ended, well or badly.
CanSaveEnded(s, w) == w \in s.saves
SaveEnded(s, w) == [s EXCEPT !.saves = @ \ {w}]

\* Transfer t has a verdict.
CanTransferEnded(s, t) == t \in s.transfers
TransferEnded(s, t) == [s EXCEPT !.transfers = @ \ {t}]

\* The owner will write no more: it failed, or it ended.
CanLeave(s, r) == s.owner = r
Leave(s, r) == [s EXCEPT !.owner = NoRun,
                         !.phase = IF @ = "computing" THEN "draining" ELSE @]

\* The gate opens.
CanRelease(s) == /\ s.phase = "draining"
                 /\ s.owner = NoRun
                 /\ s.attending = {}
                 /\ s.saves = {}
                 /\ s.transfers = {}
Release(s) == [s EXCEPT !.phase = "free"]

Events == [op : {"Claim"}, run : Runs, load : BOOLEAN]
            \cup [op : {"Extend", "Leave"}, run : Runs]
            \cup [op : {"Write"}, run : Runs, work : Works, transfers : SUBSET Transfers, keep : BOOLEAN]
            \cup [op : {"Attended", "SaveEnded"}, work : Works]
            \cup [op : {"TransferEnded"}, transfer : Transfers]
            \cup [op : {"LoadEnded", "Release"}]

Enabled(s, e) ==
    CASE e.op = "Claim"         -> CanClaim(s) /\ s.epoch < MaxEpoch
      [] e.op = "LoadEnded"     -> CanLoadEnded(s)
      [] e.op = "Extend"        -> CanExtend(s, e.run)
      [] e.op = "Write"         -> CanWrite(s, e.run)
      [] e.op = "Attended"      -> CanAttended(s, e.work)
      [] e.op = "SaveEnded"     -> CanSaveEnded(s, e.work)
      [] e.op = "TransferEnded" -> CanTransferEnded(s, e.transfer)
      [] e.op = "Leave"         -> CanLeave(s, e.run)
      [] e.op = "Release"       -> CanRelease(s)

Step(s, e) ==
    CASE e.op = "Claim"         -> Claim(s, e.run, e.load)
      [] e.op = "LoadEnded"     -> LoadEnded(s)
      [] e.op = "Extend"        -> Extend(s, e.run)
      [] e.op = "Write"         -> Write(s, e.work, e.transfers, e.keep)
      [] e.op = "Attended"      -> Attended(s, e.work)
      [] e.op = "SaveEnded"     -> SaveEnded(s, e.work)
      [] e.op = "TransferEnded" -> TransferEnded(s, e.transfer)
      [] e.op = "Leave"         -> Leave(s, e.run)
      [] e.op = "Release"       -> Release(s)
===============================================================================
