---- MODULE Control ----
(* IF, CASE and LET, at the top of a body and inside expressions; LET is evaluated only where it is used. *)
EXTENDS Integers
If(b) == IF b THEN 1 ELSE 2
Ifs == <<If(TRUE), If(FALSE), (IF TRUE THEN 1 ELSE 2) + 1, IF FALSE THEN 1 ELSE IF TRUE THEN 2 ELSE 3>>
Case(x) == CASE x = 1 -> "one"
             [] x = 2 -> "two"
             [] OTHER -> "many"
Cases == <<Case(1), Case(2), Case(3), (CASE TRUE -> 1 [] FALSE -> 2) + 1>>
FirstCase(x) == CASE x > 0 -> "positive" [] x > 1 -> "never" [] x <= 0 -> "not"
FirstCases == {<<x, FirstCase(x)>> : x \in -1..2}
NoOther(x) == 1 + (CASE x = 1 -> 1 [] x = 2 -> 2)
NoOthers == NoOther(2)
Let(a) == LET b == a + 1
              c == b * b
          IN c - b
LetApplied == Let(3)
LetOperator(a) == LET Add(x, y) == x + y + a
                      Twice(x) == Add(x, x)
                  IN Twice(10)
LetOperators == LetOperator(1)
LetInside == {LET y == x * 2 IN y + y : x \in 1..2}
LetInsideOperator == {LET Add(z) == x + z IN Add(1) * Add(2) : x \in 1..2}
LetUnused == LET bad == 1 \div 0 IN 5
LetGuarded(x) == LET half == 10 \div x IN IF x = 0 THEN 0 ELSE half + half
LetGuardeds == {LetGuarded(x) : x \in 0..2}
LetInBranches(x) == IF x THEN LET v == 1 IN v + 1 ELSE LET v == "a" IN {v}
LetInBranch == <<LetInBranches(TRUE), LetInBranches(FALSE)>>
LetInQuantifier == \A x \in 1..3 : LET y == x + 1 IN y > x
LetInLet == LET a == LET b == 2 IN b * b IN a + LET b == 3 IN b
LetSafe(s) == LET ok == s.n > 0 IN ok /\ s.n < 3
LetSafes == <<LetSafe([n |-> 1]), LetSafe([n |-> 5])>>
IfInCase(x) == CASE x = 1 -> IF TRUE THEN "y" ELSE "n" [] OTHER -> LET z == "o" IN z
IfInCases == <<IfInCase(1), IfInCase(2)>>
Comparisons == IF 1 = 1 THEN (IF 2 = 3 THEN 1 ELSE 2) = 2 ELSE FALSE
====
