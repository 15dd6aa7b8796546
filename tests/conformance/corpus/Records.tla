---- MODULE Records ----
(* Records, record sets and EXCEPT on fields; State is a record set, as in a machine. *)
EXTENDS Integers, FiniteSets
State == [phase : {"a", "b"}, n : 0..1, set : SUBSET {1}]
Inner == [x |-> 1, y |-> {2}]
Initial == [phase |-> "a", n |-> 0, set |-> {}]
Outer == [inner |-> Inner, k |-> [i \in 1..2 |-> i], deep |-> [m |-> [r |-> Inner]]]
Size == Cardinality(State)
Listed == State
Members == <<Initial \in State, [Initial EXCEPT !.n = 7] \in State, [a |-> 1] \in [a : {1}], {Initial} \subseteq State>>
Fields == <<Initial.phase, Outer.inner.x, Outer.k[2], Outer.deep.m.r.y, Initial["n"]>>
Equal == <<Initial = [set |-> {}, n |-> 0, phase |-> "a"], Inner = [x |-> 1, y |-> {3}], [a |-> 1] = [b |-> 1]>>
Except1(s) == [s EXCEPT !.n = @ + 1, !.set = @ \cup {1}]
Changed == Except1(Initial)
Twice == [Initial EXCEPT !.n = @ + 1, !.n = @ * 10 + 2]
Sequence == [Initial EXCEPT !.n = 5, !.phase = IF @ = "a" THEN "b" ELSE "a", !.set = {Initial.n}]
Deep == [Outer EXCEPT !.inner.x = @ + 1, !.k[2] = @ * 5, !.deep.m.r.y = @ \cup {9}, !.deep.m.r.x = 4]
OfCall == [Except1(Initial) EXCEPT !.n = @ + 1]
OfIf(b) == [(IF b THEN Initial ELSE Changed) EXCEPT !.n = @ + 40]
OfIfs == <<OfIf(TRUE), OfIf(FALSE)>>
InSet == {[Initial EXCEPT !.n = i] : i \in 1..2}
NestedExcept == [Outer EXCEPT !.inner = [@ EXCEPT !.x = @ + 6]]
AtTwice == [Initial EXCEPT !.n = @ + @]
AtDifference == [Initial EXCEPT !.n = 10 - @ - (@ - 1)]
Unions == [op : {"A"}] \cup [op : {"B"}, arg : {1, 2}]
Picked == {e \in Unions : e.op = "B" /\ e.arg = 2}
DomainOf == DOMAIN Initial
Unknown(r) == r.n + r.m
UnknownField == Unknown([n |-> 1, m |-> 2])
Anything(r, f) == [r EXCEPT ![f] = 3]
ExceptOnAny == <<Anything([n |-> 1, m |-> 2], "m"), Anything([i \in {"m"} |-> 1], "m"), Anything(<<1, 2>>, 2), Anything(<<1, 2>>, 5), Anything([n |-> 1, m |-> 2], "q")>>
Keywords == [class |-> 1, None |-> 2, lambda |-> 3, open |-> 4, int |-> 5]
KeywordFields == <<Keywords.class, Keywords.None, Keywords.lambda, Keywords.open, Keywords.int, [Keywords EXCEPT !.class = @ + 1, !.int = 9], DOMAIN Keywords>>
KeywordSet == [class : {1}, pass : {2, 3}]
====
