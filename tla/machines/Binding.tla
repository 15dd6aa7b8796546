-------------------------------- MODULE Binding --------------------------------
(***************************************************************************)
(* Which prefill run an attempt listens to.  An attempt binds to the first *)
(* run it hears of and refuses every other, for ever: a proxy that retries *)
(* makes two runs of one attempt, and bytes of two runs must never meet in *)
(* one destination.                                                        *)
(***************************************************************************)
CONSTANT Runs     \* bound of the graph

NoRun == 0     \* run nonces are never 0

State == [run : Runs \cup {NoRun}]

Initial == [run |-> NoRun]

CanBind(s) == s.run = NoRun
Bind(s, r) == [s EXCEPT !.run = r]

\* Is r the run of this attempt?
CanAccept(s, r) == s.run = r

Events == [op : {"Bind"}, run : Runs]

Enabled(s, e) == CASE e.op = "Bind" -> CanBind(s)

Step(s, e) == CASE e.op = "Bind" -> Bind(s, e.run)
===============================================================================
