---- MODULE Booleans ----
(* Logic: every operator on every input, precedence, and evaluation that stops early. *)
EXTENDS Integers
And(a, b) == a /\ b
Or(a, b) == a \/ b
Implies(a, b) == a => b
Iff(a, b) == a <=> b
Table(Op1) == Op1
AndTable == {<<a, b, And(a, b)>> : a \in BOOLEAN, b \in BOOLEAN}
OrTable == {<<a, b, Or(a, b)>> : a, b \in BOOLEAN}
ImpliesTable == {<<a, b, Implies(a, b)>> : a, b \in BOOLEAN}
IffTable == {<<a, b, Iff(a, b)>> : a, b \in BOOLEAN}
NotTable == {<<a, ~a>> : a \in BOOLEAN}
Mixed == {<<a, b, c, (a /\ ~b) \/ (b => c /\ a)>> : a, b, c \in BOOLEAN}
NestedImplies == {<<a, b, c, (a => b) => c, a => (b => c)>> : a, b, c \in BOOLEAN}
NestedIff == {<<a, b, c, (a <=> b) <=> c, ~(a <=> b), a = (b = c), (a = b) = c>> : a, b, c \in BOOLEAN}
List3(a, b, c) == /\ a
                  /\ \/ b
                     \/ c
                  /\ ~(b /\ c)
Lists == {<<a, b, c, List3(a, b, c)>> : a, b, c \in BOOLEAN}
One == /\ TRUE
AndStops == FALSE /\ 1 \div 0 = 1
OrStops == TRUE \/ 1 \div 0 = 1
ImpliesStops == FALSE => 1 \div 0 = 1
ListStops == /\ FALSE
             /\ 1 \div 0 = 1
DisjunctionStops == \/ TRUE
                    \/ 1 \div 0 = 1
NotEqual == {<<a, b, a # b, a /= b>> : a, b \in 1..2}
Constants == <<TRUE, FALSE, BOOLEAN>>
LongList(a, b, c, d) == /\ a \in {"a rather long string to widen the line", "another rather long string"}
                        /\ b \in {"a rather long string to widen the line", "another rather long string"}
                        /\ c \/ d
Long == {LongList(a, b, c, d) : a, b \in {"another rather long string", "x"}, c, d \in BOOLEAN}
====
