---- MODULE RequestCompletionGraph ----
(* One RequestCompletion, driven by every event in every order.  ev is the event that led   *)
(* here: TLC's dump labels an edge with its action's name alone, so the event *)
(* and its arguments travel in the state.                                     *)
EXTENDS RequestCompletion
VARIABLES s, ev

Init == s = Initial /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>

TypeOK == s \in State
\* I7: what is complete or scheduled has every layer of every chunk.
ScheduleSafe == s.phase \in {"complete", "scheduled"} =>
                    s.chunks > 0 /\ (1..s.chunks) \X s.layers \subseteq s.got
\* I8: a failed attempt stays failed.
FailClosed == [][s.phase = "failed" => s'.phase = "failed"]_<<s, ev>>
====
