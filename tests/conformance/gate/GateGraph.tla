---- MODULE GateGraph ----
EXTENDS Gate
VARIABLES s, ev
Init == s \in {Initial(0), Initial(1)} /\ ev = [op |-> "Init"]
Next == \E e \in Events : Enabled(s, e) /\ s' = Step(s, e) /\ ev' = e
Spec == Init /\ [][Next]_<<s, ev>>
TypeOK == s \in State
====
