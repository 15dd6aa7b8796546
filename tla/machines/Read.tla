--------------------------------- MODULE Read ---------------------------------
(***************************************************************************)
(* One remote read as Decode sees it, from READY to the answer.            *)
(*                                                                         *)
(* idle -> reading -> done -> committed | revoked                          *)
(*                 -> failed -> revoked                                    *)
(*                                                                         *)
(* A read is begun once, however often READY comes.  Its report is kept    *)
(* and resent until it is answered.  It is believed only when committed.   *)
(* A failure is quiet (the backend vouches that no byte can land any more) *)
(* or unknown: then landing stays TRUE until the backend's own end event,  *)
(* and the destination may not be given away.                              *)
(***************************************************************************)

State == [phase   : {"idle", "reading", "done", "failed", "committed", "revoked"},
          landing : BOOLEAN]      \* bytes may still land in the destination

Initial == [phase |-> "idle", landing |-> FALSE]

\* READY arrived and the read may begin.
CanBegin(s) == s.phase = "idle"
Begin(s) == [s EXCEPT !.phase = "reading", !.landing = TRUE]

\* The copy has ended well.
CanEndOk(s) == s.phase = "reading"
EndOk(s) == [s EXCEPT !.phase = "done", !.landing = FALSE]

\* The copy has failed; quiet says that it is known to have stopped.
CanEndFailed(s) == s.phase = "reading"
EndFailed(s, quiet) == [s EXCEPT !.phase = "failed", !.landing = ~quiet]

\* The backend's own end event for a copy whose failure was unknown.
CanLanded(s) == s.landing /\ s.phase # "reading"
Landed(s) == [s EXCEPT !.landing = FALSE]

CanCommit(s) == s.phase = "done"
Commit(s) == [s EXCEPT !.phase = "committed"]

CanRevoke(s) == s.phase \in {"done", "failed"}
Revoke(s) == [s EXCEPT !.phase = "revoked"]

\* A report is owed, and which.
Unanswered(s) == s.phase \in {"done", "failed"}
Report(s) == IF s.phase = "failed" THEN "READ_FAILED" ELSE "READ_DONE"

Events == [op : {"Begin", "EndOk", "Landed", "Commit", "Revoke"}]
            \cup [op : {"EndFailed"}, quiet : BOOLEAN]

Enabled(s, e) ==
    CASE e.op = "Begin"     -> CanBegin(s)
      [] e.op = "EndOk"     -> CanEndOk(s)
      [] e.op = "EndFailed" -> CanEndFailed(s)
      [] e.op = "Landed"    -> CanLanded(s)
      [] e.op = "Commit"    -> CanCommit(s)
      [] e.op = "Revoke"    -> CanRevoke(s)

Step(s, e) ==
    CASE e.op = "Begin"     -> Begin(s)
      [] e.op = "EndOk"     -> EndOk(s)
      [] e.op = "EndFailed" -> EndFailed(s, e.quiet)
      [] e.op = "Landed"    -> Landed(s)
      [] e.op = "Commit"    -> Commit(s)
      [] e.op = "Revoke"    -> Revoke(s)
===============================================================================
