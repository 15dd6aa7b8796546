"""A counterexample to induction as a person can read it: a state, a step, and what does not hold any more.

Rules: elements get names (run1, slot1) in the order in which they appear; shown is what concerns the elements of the step and of
the broken conjunct, and those that these name, and of that what is not as Init has it; a state of this kind satisfies the
invariant but need not be one that is ever reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import z3

from tidegate.spec.smt_types import Ty, leaves, zero
from tidegate.spec.smt_values import Function, Record, SetOf, Strings, Value, negation, unflat

if TYPE_CHECKING:
    from tidegate.spec.smt_problem import Problem, Step

__all__ = ["Cti", "describe"]

ROUNDS = 3


@dataclass(frozen=True)
class Cti:
    """step: the action with its parameters; broken: the conjunct that does not hold after it, `because` of these values; rows:
    what is not as in Init (path, before, after)."""

    action: str
    step: str
    broken: str
    because: str
    constants: str
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        width = max((len(path) for path, _, _ in self.rows), default=0)
        lines = [f"{path:{width}}  {old if old == new else f'{old}  ->  {new}'}" for path, old, new in self.rows]
        head = f"after {self.step}, {self.broken} does not hold{f' for {self.because}' if self.because else ''} ({self.constants})"
        return "\n".join([head, *(f"  {line}" for line in lines)])


def describe(problem: Problem, s: Any, step: Step, broken: str, claim: Value) -> Cti:
    """Reads the model of a solver that has just answered sat to `claim` being false."""
    witnesses = _falsified(problem, s, claim)
    reader = _Reader(problem, s.model())
    parameters = ", ".join(f"{name} = {reader.show(v)}" for name, v in step.parameters.items())
    because = ", ".join(reader.show(w) for w in witnesses)
    for value in witnesses:
        reader.interesting(value)
    rows = reader.rows(step)
    constants = ", ".join(f"{name} = {reader.show(v)}" for name, v in problem.numbers.items())
    return Cti(step.action, f"{step.action}({parameters})", broken, because, constants, rows)


def _falsified(problem: Problem, s: Any, claim: Value) -> list[Any]:
    """The values for which the claim fails, as constants: the solver is asked again with their names, and few elements."""
    if isinstance(claim, bool):
        s.check()
        return []
    parts = claim.children() if z3.is_and(claim) else [claim]
    for few in (2, 3, None):
        for part in parts:
            names: list[Any] = []
            if z3.is_quantifier(part):
                names = [z3.Const(f"witness{i}", part.var_sort(i)) for i in range(part.num_vars())]
            body = z3.substitute_vars(part.body(), *reversed(names)) if names else part
            s.push()
            s.add(negation(body), *([] if few is None else problem.small(few)))
            found = s.check() == z3.sat
            if found:
                s.model()
                return names
            s.pop()
    s.check()
    return []


class _Reader:
    def __init__(self, problem: Problem, model: Any) -> None:
        self.problem, self.model = problem, model
        self.labels: dict[str, dict[str, str]] = {}
        self.elements: dict[str, list[Any]] = {}

    # -- values
    def value(self, e: Any) -> Any:
        return self.model.eval(e, model_completion=True)

    def label(self, e: Any) -> str:
        v, sort = self.value(e), e.sort()
        if sort.kind() != z3.Z3_UNINTERPRETED_SORT:
            return f'"{v}"' if isinstance(sort, z3.DatatypeSortRef) else str(v).upper() if sort == z3.BoolSort() else str(v)
        if v.eq(self.value(zero(sort))):
            return "0"
        known = self.labels.setdefault(sort.name(), {})
        return known.setdefault(str(v), f"{sort.name().lower().removesuffix('s')}{len(known) + 1}")

    def interesting(self, v: Any) -> None:
        """v's element is one of those whose facts are shown."""
        if isinstance(v, tuple):
            for part in v:
                self.interesting(part)
        elif isinstance(v, dict) and not isinstance(v, Strings):
            for part in v.values():
                self.interesting(part)
        elif isinstance(v, z3.ExprRef):
            e, known = self.value(v), self.elements.setdefault(v.sort().name(), [])
            is_zero = v.sort() != z3.IntSort() and not isinstance(v.sort(), z3.DatatypeSortRef) and v.sort() != z3.BoolSort()
            if not any(e.eq(k) for k in known) and not (is_zero and e.eq(self.value(zero(v.sort())))):
                known.append(e)

    def show(self, v: Value) -> str:
        if isinstance(v, tuple):
            return f"<<{', '.join(map(self.show, v))}>>"
        if isinstance(v, Strings):
            return next((f'"{s}"' for s, when in v.items() if when is True or (when is not False and z3.is_true(self.value(when)))), "?")
        if isinstance(v, Record):
            return f"[{', '.join(f'{f} |-> {self.show(x)}' for f, x in v.items())}]"
        if isinstance(v, SetOf):
            return f"{{{', '.join(self.show(x) for x in self.members(v))}}}"
        if isinstance(v, bool | str | int):
            return f'"{v}"' if isinstance(v, str) else str(v).upper()
        self.interesting(v) if v.sort() != z3.IntSort() else None
        return self.label(v)

    def members(self, v: SetOf) -> Iterator[Value]:
        for x in self.candidates(v.element):
            inside = v.holds(x)
            if inside is True or (inside is not False and z3.is_true(self.value(inside))):
                yield x

    def candidates(self, t: Ty | None) -> Iterator[Value]:
        """Every value of the type that is made of interesting elements."""
        if t is None:
            return
        if t.kind == "kinds":
            for op, fields in zip(t.names, t.args, strict=True):
                for rest in self.candidates(fields):
                    yield Record({"op": op, **rest})
            return
        for parts in product(*(self.domain(sort) for sort in leaves(t))):
            yield unflat(list(parts), t)

    def domain(self, sort: Any) -> list[Any]:
        if sort == z3.BoolSort():
            return [z3.BoolVal(True), z3.BoolVal(False)]
        if isinstance(sort, z3.DatatypeSortRef):
            return [sort.constructor(i)() for i in range(sort.num_constructors())]
        return self.elements.get(sort.name(), [])

    # -- the state
    def rows(self, step: Step) -> list[tuple[str, str, str]]:
        for value in step.parameters.values():
            self.interesting(value)
        found: dict[str, tuple[str, str, str]] = {}
        for _ in range(ROUNDS):  # what is shown may name further elements
            found = {path: (path, old, new) for path, old, new in self.facts(step)}
        return [found[path] for path in found]

    def facts(self, step: Step) -> Iterator[tuple[str, str, str]]:
        first = self.problem.initial().variables
        before = first if step.action == "Init" else self.problem.now.variables
        for name in self.problem.variables:
            yield from self.differing(name, before[name], step.after.variables[name], first[name])

    def differing(self, path: str, old: Value, new: Value, first: Value) -> Iterator[tuple[str, str, str]]:
        if isinstance(old, Function):
            for key in self.candidates(old.domain):
                yield from self.differing(f"{path}[{self.show(key)}]", old.at(key), new.at(key), first.at(key))
        elif isinstance(old, Record):
            for f in old:
                yield from self.differing(f"{path}.{f}", old[f], new[f], first[f])
        else:
            shown = self.show(old), self.show(new)
            if set(shown) != {self.show(first)}:
                yield path, *shown
