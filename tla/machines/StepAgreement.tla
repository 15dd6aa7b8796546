----------------------------- MODULE StepAgreement -----------------------------
(***************************************************************************)
(* Whether the ranks of a Prefill instance may compute the next step of a  *)
(* run.  The step is computed together: each rank waits inside it for all  *)
(* others (a collective).  So no rank enters before every rank is ready:   *)
(* has claimed its own slot, has loaded, and its run has not ended.  A     *)
(* rank that entered alone would wait inside for one whose gate is shut,   *)
(* and for ever for one whose run has failed, and with it all requests     *)
(* behind it.                                                              *)
(*                                                                         *)
(* Once one has entered, all were ready and will come: a rank whose run    *)
(* fails meanwhile takes part all the same, and publishes nothing.         *)
(***************************************************************************)
CONSTANT Members     \* bound of the graph

State == [members : SUBSET Members,
          ready   : SUBSET Members,      \* may write the step's rows now
          entered : SUBSET Members]      \* have entered the step

Initial(members) == [members |-> members, ready |-> {}, entered |-> {}]

CanReady(s, m) == m \in s.members
Ready(s, m) == [s EXCEPT !.ready = @ \cup {m}]

\* The run of m has ended: it does not become ready any more.
CanWithdraw(s, m) == m \in s.ready
Withdraw(s, m) == [s EXCEPT !.ready = @ \ {m}]

\* May the step be computed?
CanEnter(s) == s.entered # {} \/ s.ready = s.members
Enter(s, m) == [s EXCEPT !.entered = @ \cup {m}]

Events == [op : {"Ready", "Withdraw", "Enter"}, member : Members]

Enabled(s, e) ==
    CASE e.op = "Ready"    -> CanReady(s, e.member)
      [] e.op = "Withdraw" -> CanWithdraw(s, e.member)
      [] e.op = "Enter"    -> CanEnter(s)

Step(s, e) ==
    CASE e.op = "Ready"    -> Ready(s, e.member)
      [] e.op = "Withdraw" -> Withdraw(s, e.member)
      [] e.op = "Enter"    -> Enter(s, e.member)
===============================================================================
