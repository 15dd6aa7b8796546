---- MODULE PrefillRunGraph ----
(* One PrefillRun, driven by every event in every order.  ev is the event that led   *)
(* here: TLC's dump labels an edge with its action's name alone, so the event *)
(* and its arguments travel in the state.                                     *)
EXTENDS PrefillRun
VARIABLES s, ev

Init == s = Initial /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>

TypeOK == s \in State
\* Done means that everything is computed and no transfer is open.
DoneIsAll == s.phase = "done" => s.open = {} /\ s.chunk = s.chunks + 1
VerdictFinal == [][s.phase \in {"done", "failed"} => s'.phase \in {s.phase, "forgotten"}]_<<s, ev>>
\* It is forgotten only when nobody will ask: retired, with its verdict and those of its transfers, and no copy under way.
ForgetsInTime == [][(s'.phase = "forgotten" /\ s.phase # "forgotten") =>
                        s.retired /\ s.phase \in {"done", "failed"} /\ s.open = {} /\ ev'.held = {}]_<<s, ev>>
\* What is forgotten stays so: its nonce is used.
NonceStays == [][s.phase = "forgotten" => s' = s]_<<s, ev>>
====
