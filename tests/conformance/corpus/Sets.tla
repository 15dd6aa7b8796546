---- MODULE Sets ----
(* Set operators, filters, images and quantifiers, over empty sets too. *)
EXTENDS Integers, FiniteSets
A == {1, 2, 3}
B == {3, 4}
Empty == {}
Algebra == <<A \cup B, A \cap B, A \ B, B \ A, A \cup {}, A \cup {9}, A \ {1}, A \cap {2, 3}, {9} \cup A, (A \ B) \cup B, A \ (B \ {4}), A \ (A \cap B)>>
Relations == <<A \subseteq B, {3} \subseteq B, {} \subseteq {}, 1 \in A, 1 \notin A, A = {3, 2, 1}, A # B, 1 \in {}, 1 \in {1, 2}>>
Unions == <<UNION {A, B}, UNION {}, UNION {{}, {1}}, UNION {{x, x + 1} : x \in A}>>
Powers == <<SUBSET {}, SUBSET {1, 2}, {1} \in SUBSET A, {7} \in SUBSET A, {{1}} \subseteq SUBSET A, Cardinality(SUBSET A), SUBSET {1} = {{}, {1}}, {SUBSET {1}} = {{{1}, {}}}>>
Filter == {x \in A : x > 1}
FilterTuple == {<<x, y>> \in A \X B : x = y}
Image == {x * x : x \in -2..2}
ImageTuple == {x + y : <<x, y>> \in {<<1, 2>>, <<3, 4>>}}
Images == {<<x, y>> : x \in A, y \in B}
Products == <<A \X {1}, {1} \X {2} \X {3}, ({1} \X {2}) \X {3}, {} \X A>>
All == <<\A x \in A : x > 0, \A x \in A : x > 1, \A x \in {} : FALSE, \A x, y \in A : x + y < 7, \A x \in A, y \in B : x < y>>
Some == <<\E x \in A : x > 2, \E x \in A : x > 3, \E x \in {} : TRUE, \E x, y \in A : x + y = 6, \E x \in A, y \in B : x = y>>
Nested == \A x \in A : \E y \in B : x < y
InnerDomain == \A x \in A : \E y \in 1..x : y = x
TupleBound == <<\A <<x, y>> \in {<<1, 2>>, <<2, 3>>} : y = x + 1, \E <<x, y>> \in {<<1, 2>>} : x = y>>
BooleanSets == {S \in SUBSET {"a", "b"} : "a" \in S}
SetsOfSets == {{1, 2}, {2, 1}, {}}
Chosen == <<CHOOSE x \in A : x > 2, CHOOSE x \in {5} : TRUE, CHOOSE <<x, y>> \in A \X B : x = y>>
QuantifierStops == \E x \in {1} : x = 1 \/ x \div 0 = 1
AllButOne(S) == {S \ {x} : x \in S}
Called == AllButOne(AllButOne({1, 2}))
Literal == <<3 \in {1, 2}, "a" \in {"a"}, "a" \notin {"a", "b"}>>
Strings == {"plain", "with blank", "quote \" and backslash \\"}
====
