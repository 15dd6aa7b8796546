"""The part of the evaluator that every expression passes: names, calls, logic and quantifiers.

Rules: as in `smt_eval`, which adds sets, records, functions and EXCEPT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from tidegate.spec.errors import Refused
from tidegate.spec.python_code import STANDARD, is_other
from tidegate.spec.sany import Def, Loc, Node, Resolved
from tidegate.spec.smt_types import BOOL, INT
from tidegate.spec.smt_values import SetOf, Value, all_of, any_of, choose, closed, deeper, equal, instances, negation

__all__ = ["Core", "Scope"]

CHAINS = ("$ConjList", "\\land", "$DisjList", "\\lor")
NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,
    "\\leq": lambda a, b: a <= b, "\\geq": lambda a, b: a >= b,
}  # fmt: skip


@dataclass(frozen=True)
class Scope:
    """names: parameters and bound names; local: LET definitions and replaced constants, by uid; variables: the state;
    primed: the next state as far as it is known (shared while an action is evaluated)."""

    names: Mapping[str, Value]
    local: Mapping[str, Callable[..., Value]]
    variables: Mapping[str, Value]
    primed: dict[str, Value] = field(default_factory=dict)
    at: Value = None

    def bind(self, names: Mapping[str, Value]) -> Scope:
        return replace(self, names={**self.names, **names})


class Core:
    """Dispatch, names and logic of one module. dropped: places whose text counts as TRUE (a conjunct that is left out)."""

    # operators with a method of their own: Evaluator fills it
    methods: ClassVar[dict[str, Callable[[Any, Node, Scope], Value]]] = {}

    def __init__(self, source: Resolved, constants: Mapping[str, Value], dropped: frozenset[Loc] = frozenset()) -> None:
        self.source, self.constants, self.dropped = source, constants, dropped

    def refuse(self, n: Node, what: str = "") -> Refused:
        return Refused(f"{n.loc}: {what or n.op.lstrip('$') or n.kind} has no translation for z3: write it otherwise")

    def ex(self, n: Node, s: Scope) -> Value:
        """The value of an expression. Raises Refused."""
        if self.dropped and n.loc in self.dropped:
            return True
        if n.kind in ("num", "str"):
            return n.value
        if n.kind == "at":
            return s.at
        if n.kind == "let":
            return self.ex(n.args[0], self.let(n, s))
        if n.kind == "other" and n.op == "SubstInNode":
            return self.ex(n.args[0], self.substituted(n, s))
        if n.kind != "app":
            raise self.refuse(n)
        if n.decl == "param":
            return s.names[n.op] if not n.args else s.names[n.op](*(self.ex(a, s) for a in n.args))
        if n.decl == "const":
            return self.declared(n, s)
        if n.decl == "user" and n.home not in STANDARD:  # those have bodies, too, which say nothing
            return self.call(n, s)
        return self.operator(n, s)

    # -- names
    def declared(self, n: Node, s: Scope) -> Value:
        args = [self.ex(a, s) for a in n.args]
        if n.uid in s.local:
            return s.local[n.uid](*args)
        if n.op in s.variables:
            return s.variables[n.op]
        if n.op not in self.constants:
            raise self.refuse(n, f"the constant {n.op}, to which no value is given,")
        return self.constants[n.op](*args) if args else self.constants[n.op]

    def call(self, n: Node, s: Scope) -> Value:
        args = [self.ex(a, s) for a in n.args]
        if n.uid in s.local:
            return s.local[n.uid](*args)
        d = self.source.of(n.uid)
        if d is None:
            raise self.refuse(n, f"the operator {n.op}")
        return self.ex(d.body, self.inside(d, args, s))

    @staticmethod
    def inside(d: Def, args: list[Value], s: Scope) -> Scope:
        """The scope of a definition's body: its parameters, and the constants that are replaced around it."""
        return replace(s, names=dict(zip((name for name, _ in d.params), args, strict=True)))

    def substituted(self, n: Node, s: Scope) -> Scope:
        outer = replace(s, local={}, names={})
        return replace(s, local={**s.local, **{d.uid: self.once(d, outer) for d in n.defs}})

    def once(self, d: Def, s: Scope) -> Callable[..., Value]:
        """A definition without parameters, evaluated at most once."""
        found: list[Value] = []

        def value() -> Value:
            if not found:
                found.append(self.ex(d.body, s))
            return found[0]

        return value

    def let(self, n: Node, s: Scope) -> Scope:
        for d in n.defs:
            s = replace(s, local={**s.local, d.uid: self.operation(d, s) if d.params else self.once(d, s)})
        return s

    def operation(self, d: Def, s: Scope) -> Callable[..., Value]:
        return lambda *args: self.ex(d.body, s.bind(dict(zip((name for name, _ in d.params), args, strict=True))))

    # -- operators
    def operator(self, n: Node, s: Scope) -> Value:
        op = n.op
        if op in CHAINS:
            return self.chain(n, s)
        if op in ("TRUE", "FALSE"):
            return op == "TRUE"
        if op == "BOOLEAN":
            return SetOf(BOOL, lambda x: True)
        if op in ("Nat", "Int"):
            return SetOf(INT, lambda x: op == "Int" or x >= 0)
        if op == "'":
            return self.next_value(n, s)
        method = self.methods.get(op)
        if method is not None:
            return method(self, n, s)
        if op in NUMBERS:
            return NUMBERS[op](*(self.ex(a, s) for a in n.args))
        raise self.refuse(n)

    def chain(self, n: Node, s: Scope) -> Value:
        """/\\ and \\/ stop early, as TLC does: what comes later may have no meaning."""
        chain, last = (all_of, False) if n.op in ("$ConjList", "\\land") else (any_of, True)
        parts = []
        for a in n.args:
            parts.append(self.ex(a, s))
            if parts[-1] is last:
                return last
        return chain(*parts)

    def next_value(self, n: Node, s: Scope) -> Value:
        name = n.args[0].op
        if name not in s.primed:
            raise self.refuse(n, f"{name}', asked before it is said,")
        return s.primed[name]

    def negated(self, n: Node, s: Scope) -> Value:
        return negation(self.ex(n.args[0], s))

    def implied(self, n: Node, s: Scope) -> Value:
        test = self.ex(n.args[0], s)
        return True if test is False else any_of(negation(test), self.ex(n.args[1], s))

    def equality(self, n: Node, s: Scope) -> Value:
        same = equal(self.ex(n.args[0], s), self.ex(n.args[1], s))
        return negation(same) if n.op == "/=" else same

    def member(self, n: Node, s: Scope) -> Value:
        value, group = self.ex(n.args[0], s), self.ex(n.args[1], s)
        inside = group.holds(value)
        return negation(inside) if n.op == "\\notin" else inside

    def condition(self, n: Node, s: Scope) -> Value:
        test = self.ex(n.args[0], s)
        if isinstance(test, bool):
            return self.ex(n.args[1 if test else 2], s)
        return choose(test, self.ex(n.args[1], s), self.ex(n.args[2], s))

    def case(self, n: Node, s: Scope) -> Value:
        *arms, last = n.args
        out = self.ex(last.args[1], s)  # TLC has seen that one of them applies
        for arm in reversed(arms):
            out = choose(True if is_other(arm) else self.ex(arm.args[0], s), self.ex(arm.args[1], s), out)
        return out

    def quantifier(self, n: Node, s: Scope) -> Value:
        """One quantifier of z3 for all names together: nested ones give it nothing to go by."""
        names = [(b, x) for b in n.bounds for x in b.names]
        every = n.op == "$BoundedForall"
        out: list[Value] = []

        def turn(i: int, s: Scope, guards: list[Value], variables: list[Any]) -> None:
            if False in guards:
                return
            if i == len(names):
                body = self.ex(n.args[0], s)
                out.append(closed(variables, any_of(*map(negation, guards), body if every else negation(body))))
                return
            b, x = names[i]
            domain = self.ex(b.domain, s)
            with deeper():
                for new, v in instances(domain.element):
                    turn(i + 1, s.bind({x: v}), [*guards, domain.holds(v)], [*variables, *new])

        turn(0, s, [], [])
        return all_of(*out) if every else negation(all_of(*out))
