"""What is the induction worth without one part of it: of the invariant, or of a guard of a machine?

Rules: one part at a time counts as TRUE, by its place in the source, in the module that was read once.  A part of the invariant
is superfluous if everything else stays inductive without it.  Of what breaks, a property is preferred to a conjunct that only
serves; where only such a one breaks, its own counterexample leads on to the property for which it stands (`Ladder`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.spec.induction import Book, Outcome, broken_by
from tidegate.spec.mutate import Conjunct, conjuncts, operands, span
from tidegate.spec.sany import Loc, Node, Resolved
from tidegate.spec.smt_problem import Problem

__all__ = ["Part", "calls", "guards", "parts", "without", "without_guard"]


@dataclass(frozen=True)
class Part:
    """One part of a conjunct of Inv: name is the conjunct's, with a number where it has several."""

    name: str
    conjunct: str
    text: str
    loc: Loc


def parts(problem: Problem) -> list[Part]:
    """The parts of all conjuncts of Inv but the properties: what stands behind \\A and => as operands of /\\."""
    out = []
    for name, d in problem.conjuncts.items():
        if name in problem.properties:
            continue
        found = list(_parts(d.body))
        for i, n in enumerate(found, 1):
            begin, end = span(problem.source.module.source, n.loc)
            text = " ".join(problem.source.module.source[begin:end].split())
            out.append(Part(f"{name}#{i}" if len(found) > 1 else name, name, text, n.loc))
    return out


def _parts(n: Node) -> Iterator[Node]:
    """The operands of /\\, looked for behind \\A, LET and =>."""
    inner = n
    while inner.kind == "let" or (inner.kind == "app" and inner.op in ("$BoundedForall", "=>")):
        inner = inner.args[-1]
    found = operands(inner)
    if len(found) == 1:
        yield n if inner is found[0] and n is inner else inner if inner.op in ("$ConjList", "\\land") else n
        return
    for operand in found:
        yield from _parts(operand)


def without(book: Book, part: Part, action: str = "", claim: str = "", *, explain: bool = False) -> Outcome | None:
    """What breaks without this part of the invariant; None where nothing misses it. action, claim: look at these only."""
    whole = book.problem
    problem = Problem(whole.source, frozenset({part.loc}))
    d = whole.conjuncts[part.conjunct]
    known = {**book.before, part.conjunct: problem.stepper.ex(d.body, whole.now)}
    left = None
    for step, claims in book.steps:
        if action not in ("", step.action):
            continue
        weaker = {**claims, part.conjunct: problem.stepper.ex(d.body, step.after)}
        asked = {name: formula for name, formula in weaker.items() if claim in ("", name)}
        outcome = broken_by(whole, known, step, asked, explain=explain)
        if outcome is not None and outcome.verdict == "refuted":
            return outcome
        left = left or outcome
    return left


def calls(source: Resolved, n: Node) -> set[str]:
    """Every operator of a machine that an expression applies, itself or through definitions: Machine.Operator."""
    out: set[str] = set()
    seen: set[str] = set()
    todo = [n]
    while todo:
        for x in todo.pop().walk():
            d = source.of(x.uid) if x.kind == "app" and x.decl == "user" and x.uid not in seen else None
            if d is None:
                continue
            seen.add(x.uid)
            if "!" in x.op:
                body = d.body.args[0] if d.body.op == "SubstInNode" else d.body
                out.add(f"{body.loc.module}.{x.op.rsplit('!', 1)[1]}")
            todo.append(d.body)
    return out


def guards(source: Resolved) -> list[Conjunct]:
    """Every conjunct of every guard of the machines that the module applies."""
    used = sorted({name.partition(".")[0] for name in calls(source, source.named("Next").body)})  # type: ignore[union-attr]
    return [c for name in used for c in conjuncts(source.used(name))]


def without_guard(book: Book, conjunct: Conjunct, action: str = "", claim: str = "", *, explain: bool = False) -> Outcome | None:
    """What breaks without one conjunct of a guard; None where Inv is inductive without it. action, claim: look at these only."""
    whole, name = book.problem, f"{conjunct.machine}.{conjunct.guard}"
    problem = Problem(whole.source, frozenset({conjunct.loc}))
    left = None
    for step in problem.steps(lambda a: action in ("", a.name) and name in calls(whole.source, a.call)):
        claims = {k: v for k, v in problem.claims(step.after).items() if claim in ("", k)}
        outcome = broken_by(whole, book.before, step, claims, explain=explain)
        if outcome is not None and outcome.verdict == "refuted":
            return outcome
        left = left or outcome
    return left
