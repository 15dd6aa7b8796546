---- MODULE Names ----
(* Names that Python or the generated file claims, and constants. *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS lambda, Map, def
set == {1}
len(list) == Cardinality(list) + 1
frozenset(all, any) == {x \in all : x \in any}
None(False) == False
only == CHOOSE x \in {4} : TRUE
Records == [self : {1}, print : {2}]
range(int) == 0..int
State == [import : {1}, is : BOOLEAN]
States == {7}
Event == "taken"
Events == [op : {"a"}, while : {1}] \cup [op : {"b"}]
Use == <<set, len(set), frozenset(1..3, 2..5), None(3), only, range(2), States, Event>>
Declared == <<lambda, Map, def>>
FromConstants == {x \in lambda : x > Map}
ThroughOthers == <<Cardinality(FromConstants), Cardinality(lambda) + def>>
Quantified == \A True \in {1} : \E str \in {1} : True = str
Lets == LET sorted == 3
            min(max) == max + sorted
        IN min(4)
Bound == [sum \in {1} |-> [or |-> sum]]
AllRecords == <<Records, State, Events>>
Pair == {<<map, filter>> : map, filter \in {1}}
apply == [frozenset_ \in {1} |-> frozenset_]
except == [apply EXCEPT ![1] = @ + 1]
union == UNION {{1}, {2}}
====
