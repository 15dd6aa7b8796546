------------------------------- MODULE Transfer -------------------------------
(***************************************************************************)
(* One remote read that one Decode rank owes for one (slot, epoch, run), as *)
(* Prefill sees it.  It is held from its publication until its one verdict: *)
(*   done     Decode reported READ_DONE while the transfer was held;        *)
(*   failed   Decode reported READ_FAILED, or refused to read;              *)
(*   revoked  Prefill took the buffer back (only with read_lease);          *)
(*   lost     the Decode that was to read it is gone for good (Peer).       *)
(* A verdict never changes.  Whatever report arrives, however late and how *)
(* often, Reply gives the same answer, for ever: COMMITTED exactly if the  *)
(* verdict is done.  Decode believes a read only after COMMITTED, so a     *)
(* revoked buffer may be overwritten although no word came from Decode.    *)
(* When to revoke is a policy of the session (seed mode: never); that it is *)
(* safe is this machine's doing.                                           *)
(***************************************************************************)

State == [phase : {"idle", "held", "done", "failed", "revoked", "lost"}]

Initial == [phase |-> "idle"]

\* READY is sent for the first time.
CanPublish(s) == s.phase = "idle"
Publish(s) == [s EXCEPT !.phase = "held"]

\* READ_DONE arrived, and the contents were still held: what was read is right.
CanDone(s) == s.phase = "held"
Done(s) == [s EXCEPT !.phase = "done"]

\* READ_FAILED arrived: Decode will not use what it read, if it read.
CanFail(s) == s.phase = "held"
Fail(s) == [s EXCEPT !.phase = "failed"]

\* Prefill takes the buffer back.
CanRevoke(s) == s.phase = "held"
Revoke(s) == [s EXCEPT !.phase = "revoked"]

\* The Decode that was to read it is gone, and will never report.
CanLose(s) == s.phase = "held"
Lose(s) == [s EXCEPT !.phase = "lost"]

\* The answer to any report about this transfer.
Reply(s) == IF s.phase = "done" THEN "COMMITTED" ELSE "REVOKED"

Events == [op : {"Publish", "Done", "Fail", "Revoke", "Lose"}]

Enabled(s, e) ==
    CASE e.op = "Publish" -> CanPublish(s)
      [] e.op = "Done"    -> CanDone(s)
      [] e.op = "Fail"    -> CanFail(s)
      [] e.op = "Revoke"  -> CanRevoke(s)
      [] e.op = "Lose"    -> CanLose(s)

Step(s, e) ==
    CASE e.op = "Publish" -> Publish(s)
      [] e.op = "Done"    -> Done(s)
      [] e.op = "Fail"    -> Fail(s)
      [] e.op = "Revoke"  -> Revoke(s)
      [] e.op = "Lose"    -> Lose(s)
===============================================================================
