---- MODULE Functions ----
(* Functions, sequences and tuples: one notion in TLA+, several types in Python. *)
EXTENDS Integers, Sequences, FiniteSets, TLC
F == [x \in 1..3 |-> x * x]
G == [x \in {"p", "q"} |-> x = "p"]
H == [x \in {0, 5} |-> {x}]
Applied == <<F[2], G["p"], H[5], (5 :> 6)[5], <<7, 8>>[2]>>
Domains == <<DOMAIN F, DOMAIN G, DOMAIN <<>>, DOMAIN <<1, 1>>, DOMAIN (7 :> 8)>>
Changed == <<[F EXCEPT ![2] = 0], [F EXCEPT ![2] = @ + 1], [G EXCEPT !["q"] = TRUE], [H EXCEPT ![5] = @ \cup {1}, ![0] = {}]>>
Outside == <<[F EXCEPT ![9] = 0], [F EXCEPT ![9] = @ + 1], [H EXCEPT ![1] = {}], [G EXCEPT !["z"] = FALSE]>>
InTurn == [F EXCEPT ![1] = @ + 1, ![1] = @ * 10, ![2] = F[1]]
Nested == [a \in 1..2 |-> [b \in {"x", "y"} |-> a]]
NestedChange == <<[Nested EXCEPT ![1]["x"] = @ + 9], [Nested EXCEPT ![1]["nowhere"] = 0, ![2]["y"] = 5], [Nested EXCEPT ![7]["x"] = @ + 1]>>
Two == [a \in 1..2, b \in {3} |-> a + b]
Both == [a, b \in {1, 2} |-> a - b]
OfTuples == [<<a, b>> \in {<<1, 2>>} |-> a]
TwoApplied == <<Two[1, 3], Two[<<2, 3>>], DOMAIN Two, Both[1, 2], OfTuples[1, 2], [Two EXCEPT ![1, 3] = @ + 100]>>
Equal == <<F = <<1, 4, 9>>, <<1, 4>> = F, [i \in {} |-> i] = <<>>, {F} = {<<1, 4, 9>>}, F \in {<<1, 4, 9>>}, G = F, [x \in {1} |-> 2] = (1 :> 2)>>
SameSet == {<<1>>, 1 :> 1, [i \in 1..1 |-> i]}
FunctionSets == <<[{1} -> {2, 3}], [{"a", "b"} -> BOOLEAN], [{} -> {1}], [{1} -> {}], F \in [1..3 -> 1..9], F \in [1..3 -> 1..8], <<1, 1>> \in [1..2 -> {1}], G \in [{"p"} -> BOOLEAN], Cardinality([1..3 -> BOOLEAN])>>
Merged == <<(1 :> 2) @@ (3 :> 4), (1 :> 2) @@ (1 :> 3), ("a" :> 1) @@ ("b" :> 2), F @@ (9 :> 9), <<5>> @@ (0 :> 1)>>
Sequences == <<Len(<<>>), Len(<<1, 2>>), Append(<<1>>, 2), Head(<<7, 8>>), Tail(<<7, 8, 9>>), <<1>> \o <<2, 3>>, Append(F, 16), Len(F), <<>> \o <<>>>>
Tuples == <<<<1, "a", TRUE>>, <<<<>>>>, <<1>>>>
Square[x \in 1..3] == x * x
Named == Square[3]
Lazy == [x \in {1, 2} |-> IF x = 1 THEN 0 ELSE 1 \div (x - 1)]
Image == {F[x] : x \in DOMAIN F}
ApplyTo(f, x) == f[x]
AnyApplied == <<ApplyTo(F, 3), ApplyTo(<<4, 5>>, 1), ApplyTo([a |-> 6], "a"), ApplyTo(G, "q")>>
====
