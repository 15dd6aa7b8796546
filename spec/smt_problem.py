"""A module of tla/inductive as a problem for z3: unknown constants, an unknown state, and what each action makes of it.

Rules: nothing about the module is known here but the names Assumptions, TypeOK, Init, Next, Inv and, among the conjuncts of Inv,
Safety: the properties for whose sake the others stand there.  A CONSTANT that is used as a set has any number of elements; any
other is a number; a constant operator gives what Assumptions says that it gives, else a truth value.  TypeOK gives the sorts
of the variables and is not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import z3

from tidegate.spec.errors import SpecError
from tidegate.spec.mutate import operands
from tidegate.spec.paths import library, root
from tidegate.spec.sany import Def, Loc, Node, Resolved
from tidegate.spec.smt_eval import Scope
from tidegate.spec.smt_step import Action, Stepper, disjuncts
from tidegate.spec.smt_types import BOOL, Ty, sort_of, zero
from tidegate.spec.smt_values import SetOf, Value, all_of, equal, instances, negation, symbol

__all__ = ["ANY_SIZE", "Problem", "Step", "read"]

ANY_SIZE = "inductive/AnySize.tla"
Given: TypeAlias = tuple[Scope, dict[str, Value], list[Value]]
SETS = ("$CartesianProd", "SUBSET", "\\union", "\\subseteq")


@dataclass(frozen=True)
class Step:
    """An action with unknown parameters: when it may happen (guard), and the state after it."""

    action: str
    parameters: dict[str, Value]
    guard: Value
    after: Scope


def read(path: Path | None = None) -> Resolved:
    """The module, resolved; by default tla/inductive/AnySize.tla. Raises SpecError."""
    return Resolved(path or root() / "tla" / ANY_SIZE, library())


class Problem:
    """dropped: places of the source whose text counts as TRUE."""

    def __init__(self, source: Resolved, dropped: frozenset[Loc] = frozenset()) -> None:
        """Raises Refused for what z3 cannot be told."""
        self.source, self.dropped = source, dropped
        self.stepper = Stepper(source, {}, dropped)
        self.stepper.constants = dict(self._constants())
        self.variables = self._variables()
        self.now = Scope({}, {}, self.variables)
        self.assumptions = self.value("Assumptions", self.now)
        self.conjuncts = self._conjuncts()

    def definition(self, name: str) -> Def:
        found = self.source.named(name)
        if found is None:
            raise SpecError(f"{self.source.module.path.name} defines no {name}: induction needs it")
        return found

    def value(self, name: str, scope: Scope) -> Value:
        return self.stepper.ex(self.definition(name).body, scope)

    @property
    def properties(self) -> list[str]:
        return [n.op for n in operands(self.definition("Safety").body)]

    def _conjuncts(self) -> dict[str, Def]:
        """The conjuncts of Inv by name, the properties first."""
        rest = [n.op for n in operands(self.definition("Inv").body) if n.op != "Safety"]
        return {name: self.definition(name) for name in (*self.properties, *rest)}

    def claims(self, scope: Scope) -> dict[str, Value]:
        """What each conjunct of Inv says of a state."""
        return {name: self.stepper.ex(d.body, scope) for name, d in self.conjuncts.items()}

    # -- constants and variables
    @property
    def numbers(self) -> dict[str, Value]:
        return {name: v for name, v in self.stepper.constants.items() if isinstance(v, z3.ArithRef)}

    def small(self, most: int) -> list[Value]:
        """That no constant number is greater: a counterexample of that size is one, and easier to find and to read."""
        return [v <= most for v in self.numbers.values()]

    def _constants(self) -> Iterator[tuple[str, Value]]:
        sets, given = self._sets(), self._given()
        for name, arity, _ in self.source.module.constants:
            if arity:
                yield name, self._operator(name, given.get(name))
            elif name in sets:
                yield name, self._declared(Ty("sort", (name,)))
            else:
                yield name, z3.Int(name)

    def _sets(self) -> set[str]:
        out: set[str] = set()
        for d in self.source.module.defs:
            for n in d.body.walk():
                domains = [b.domain for b in n.bounds]
                domains += n.args if n.op in SETS else n.args[1:] if n.op in ("\\in", "\\notin") else []
                out |= {x.op for x in domains if x.kind == "app" and x.decl == "const"}
        return out

    def _given(self) -> dict[str, Node]:
        """Constant operator -> the set of which Assumptions says that its values are."""
        nodes = [n for n in self.definition("Assumptions").body.walk() if n.op == "\\in" and n.args[0].decl == "const"]
        return {n.args[0].op: n.args[1] for n in nodes}

    @staticmethod
    def _declared(t: Ty) -> SetOf:
        return SetOf(t, lambda x: negation(equal(x, zero(sort_of(t)))))

    def _operator(self, name: str, given: Node | None) -> Callable[..., Value]:
        def apply(*args: Value) -> Value:
            result = BOOL if given is None else self.stepper.ex(given, Scope({}, {}, {})).element
            parts = [z3.IntVal(a) if isinstance(a, int) else a for a in args]
            return z3.Function(name, *(p.sort() for p in parts), sort_of(result))(*parts)

        return apply

    def _variables(self) -> dict[str, Value]:
        empty, out = Scope({}, {}, {}), {}
        for n in operands(self.definition("TypeOK").body):
            name = n.args[0].op
            out[name] = symbol(name, self.stepper.ex(n.args[1], empty).element)
        missing = {name for name, _ in self.source.module.variables} - out.keys()
        if missing:
            raise SpecError(f"TypeOK says nothing of {', '.join(sorted(missing))}: z3 takes the sorts from there")
        return out

    # -- the initial state and the steps
    def initial(self) -> Scope:
        values = {}
        for n in operands(self.definition("Init").body):
            values[n.args[0].op] = self.stepper.ex(n.args[1], self.now)
        return Scope({}, {}, values)

    def steps(self, wanted: Callable[[Action], bool] = lambda action: True) -> list[Step]:
        """Every action of Next (of those wanted) that is not impossible as it stands."""
        found = [s for a in disjuncts(self.definition("Next").body) if wanted(a) for s in self._of(a)]
        return [s for s in found if s.guard is not False]

    def _of(self, action: Action) -> Iterator[Step]:
        for scope, parameters, guards in self._parameters(action):
            scope = replace(scope, primed={})
            guard = all_of(*guards, self.stepper.act(action.call, scope))
            if guard is not False:
                yield Step(action.name, parameters, guard, self._after(action, scope.primed))

    def _after(self, action: Action, values: Mapping[str, Value]) -> Scope:
        if silent := self.variables.keys() - values.keys():
            raise SpecError(f"{action.call.loc}: {action.name} does not say what becomes of {', '.join(sorted(silent))}")
        return Scope({}, {}, values)

    def _parameters(self, action: Action) -> Iterator[Given]:
        names = [(b, x) for n in action.around for b in n.bounds for x in b.names]

        def turn(i: int, scope: Scope, given: dict[str, Value], guards: list[Value]) -> Iterator[Given]:
            if i == len(names):
                yield scope, given, guards
                return
            b, x = names[i]
            domain = self.stepper.ex(b.domain, scope)
            for _, v in instances(domain.element, f"{x}$"):
                yield from turn(i + 1, scope.bind({x: v}), {**given, x: v}, [*guards, domain.holds(v)])

        yield from turn(0, self.now, {}, [])
