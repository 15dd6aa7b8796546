---- MODULE Failing ----
(* What TLC cannot evaluate: each definition is an error for both. *)
EXTENDS Integers, Sequences
OutsideDomain == [x \in {1} |-> x][2]
OutsideSequence == <<1, 2>>[3]
IndexZero == <<1, 2>>[0]
NoCase == CASE 1 = 2 -> 1
NoChoice == CHOOSE x \in {1} : x = 2
ByZero == 1 \div 0
RemainderOfNegative == 5 % (0 - 2)
HeadOfEmpty == Head(<<>>)
TailOfEmpty == Tail(<<>>)
====
