---- MODULE Numbers ----
(* Arithmetic, with negative operands: TLA+ rounds down. *)
EXTENDS Integers, FiniteSets
Range == -4..4
Sums == {<<a, b, a + b, a - b, a * b, -a>> : a, b \in Range}
Quotients == {<<a, b, a \div b>> : a \in Range, b \in {-3, -2, -1, 1, 2, 3}}
Remainders == {<<a, b, a % b>> : a \in Range, b \in 1..3}
Comparisons == {<<a, b, a < b, a > b, a <= b, a >= b, a = b, a =< b>> : a, b \in -1..1}
Precedence == <<2 + 3 * 4, (2 + 3) * 4, 10 - 4 - 3, 10 - (4 - 3), -2 * 3, -(2 + 3), 2 - -3, (7 \div 2) * 2, (7 % 4) + 1, (7 - 2) % 3>>
Intervals == <<1..3, 3..1, 2..2, -1..1>>
Membership == <<1 \in Nat, 0 - 1 \in Nat, 0 - 1 \in Int, 5 \in 1..5, 6 \in 1..5, 0 \notin 1..5, {1, 2} \subseteq Nat>>
Counts == <<Cardinality({}), Cardinality({1, 1, 2}), Cardinality(1..7)>>
Largest == 2147483647
SumOfRange == LET Half(n) == n \div 2 IN Half(7) + Half(-7)
====
