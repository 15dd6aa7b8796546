"""Induction: Init => Inv, and Inv /\\ action => Inv' for each action and each conjunct, asked of z3 one by one.

Rules: shown is what z3 calls unsatisfiable, nothing else; refuted comes with a state and a step, the counterexample to induction
(CTI); anything else is open, and fails the check.  A conjunct whose formula an action leaves as it is needs no question.  An
action that could never happen in a state of Inv would make every claim about it empty, so that it can is asked as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import z3

from tidegate.spec.cti import Cti, describe
from tidegate.spec.smt_problem import Problem, Step
from tidegate.spec.smt_values import Value, negation

__all__ = ["Book", "Outcome", "broken_by", "prove", "solver"]

LIMIT = 20_000_000  # z3's own units of work for one question, so that a busy machine changes no answer; most need 100,000
VERDICTS = {"unsat": "shown", "sat": "refuted", "unknown": "open"}


@dataclass(frozen=True)
class Outcome:
    """action: "Init" or an action's; conjunct: what must hold after it, or "possible"; verdict: shown, refuted or open."""

    action: str
    conjunct: str
    verdict: str
    seconds: float
    cti: Cti | None = None


def solver(*known: Value, limit: int = LIMIT) -> Any:
    """A solver that knows these formulas."""
    s = z3.Solver()
    s.set("rlimit", limit)
    s.add(*(z3.BoolVal(f) if isinstance(f, bool) else f for f in known))
    return s


def same(a: Value, b: Value) -> bool:
    """Are they one formula, word for word?"""
    return a is b if isinstance(a, bool) or isinstance(b, bool) else bool(a.eq(b))


def prove(
    problem: Problem, told: Callable[[Outcome], None] = lambda outcome: None, *, only: Collection[str] = ()
) -> list[Outcome]:
    """Every obligation of the module, or those of some actions (Init is one here); `told` hears each outcome as it comes."""
    out = []
    for outcome in _all(problem, only):
        told(outcome)
        out.append(outcome)
    return out


def _all(problem: Problem, only: Collection[str]) -> Iterator[Outcome]:
    if not only or "Init" in only:
        yield from _initially(problem)
    before = problem.claims(problem.now)
    for step in problem.steps(lambda action: not only or action.name in only):
        s = solver(problem.assumptions, *before.values(), step.guard)
        begin = time.monotonic()
        possible = {"sat": "shown", "unsat": "refuted", "unknown": "open"}[str(s.check())]
        yield Outcome(step.action, "possible", possible, time.monotonic() - begin)
        for name, claim in problem.claims(step.after).items():
            if claim is not True and not same(claim, before[name]):
                yield _ask(problem, s, step, name, claim)


def _initially(problem: Problem) -> Iterator[Outcome]:
    first = Step("Init", {}, True, problem.initial())
    s = solver(problem.assumptions)
    for name, claim in problem.claims(first.after).items():
        yield _ask(problem, s, first, name, claim)


def _ask(problem: Problem, s: Any, step: Step, name: str, claim: Value, explain: bool = True) -> Outcome:
    begin = time.monotonic()
    if claim is True:
        return Outcome(step.action, name, "shown", 0.0)
    s.push()
    try:
        s.add(z3.BoolVal(True) if claim is False else negation(claim))
        verdict = VERDICTS[str(s.check())]
        if verdict == "open":
            s.add(*problem.small(2))
            verdict = "refuted" if s.check() == z3.sat else "open"
        seconds = time.monotonic() - begin
        cti = describe(problem, s, step, name, claim) if verdict == "refuted" and explain else None
    finally:
        s.pop()
    return Outcome(step.action, name, verdict, seconds, cti)


@dataclass
class Book:
    """The whole problem, every formula built once: what each conjunct says before any step, and after each."""

    problem: Problem
    before: dict[str, Value]
    steps: list[tuple[Step, dict[str, Value]]]

    @classmethod
    def of(cls, problem: Problem) -> Book:
        steps = problem.steps()
        return cls(problem, problem.claims(problem.now), [(step, problem.claims(step.after)) for step in steps])


def broken_by(
    problem: Problem, known: Mapping[str, Value], step: Step, claims: Mapping[str, Value], *, explain: bool = False
) -> Outcome | None:
    """The first of the claims that does not hold after a step from a state of `known`; one that is open, if no other is broken.

    explain: with the counterexample as a table, which takes longer than to find it.
    """
    s, left = solver(problem.assumptions, *known.values(), step.guard), None
    for name, claim in claims.items():
        if claim is True or (name in known and same(claim, known[name])):
            continue
        outcome = _ask(problem, s, step, name, claim, explain)
        if outcome.verdict == "refuted":
            return outcome
        left = left or (outcome if outcome.verdict == "open" else None)
    return left
