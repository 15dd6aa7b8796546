"""Evaluates actions: what must hold for a step, and the value of every variable after it.

Rules: an action says x' = value, or UNCHANGED, once for each variable on each path, IF included; everything else in it is a
guard; Next is a disjunction of named actions, each behind the \\E of its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidegate.spec.sany import Node
from tidegate.spec.smt_eval import Evaluator, Scope
from tidegate.spec.smt_values import Value, all_of, any_of, choose, negation

__all__ = ["Action", "Stepper", "disjuncts"]

ACTION = 2  # SANY's level of what speaks of two states


@dataclass(frozen=True)
class Action:
    """A disjunct of Next: name of the operator, the \\E around it from the outside, and its application."""

    name: str
    around: list[Node]
    call: Node


def disjuncts(n: Node) -> Iterator[Action]:
    """The named actions of Next."""

    def peel(n: Node, around: list[Node]) -> Iterator[Action]:
        if n.kind == "app" and n.op in ("$DisjList", "\\lor"):
            for a in n.args:
                yield from peel(a, around)
        elif n.kind == "app" and n.op == "$BoundedExists":
            yield from peel(n.args[0], [*around, n])
        else:
            yield Action(n.op, around, n)

    yield from peel(n, [])


class Stepper(Evaluator):
    """act(node, scope): the guard; what is said of the next state goes to scope.primed."""

    def act(self, n: Node, s: Scope) -> Value:
        if n.level < ACTION:
            return self.ex(n, s)
        if n.kind == "let":
            return self.act(n.args[0], self.let(n, s))
        if n.kind == "app" and n.decl == "user" and n.uid not in s.local:
            d = self.source.of(n.uid)
            assert d is not None
            return self.act(d.body, self.inside(d, [self.ex(a, s) for a in n.args], s))
        if n.op in ("$ConjList", "\\land"):
            return self.both(n, s)
        if n.op == "=" and self.is_unsaid(n.args[0], s):
            s.primed[n.args[0].args[0].op] = self.ex(n.args[1], s)
            return True
        if n.op == "UNCHANGED":
            self.unchanged(n.args[0], s)
            return True
        if n.op == "$IfThenElse":
            return self.branches(n, s)
        return self.ex(n, s)

    def both(self, n: Node, s: Scope) -> Value:
        parts = []
        for a in n.args:
            parts.append(self.act(a, s))
            if parts[-1] is False:
                return False
        return all_of(*parts)

    @staticmethod
    def is_unsaid(n: Node, s: Scope) -> bool:
        return n.kind == "app" and n.op == "'" and n.args[0].op not in s.primed

    def unchanged(self, n: Node, s: Scope) -> None:
        if n.kind == "app" and n.op == "$Tuple":
            for a in n.args:
                self.unchanged(a, s)
        elif n.decl == "const":
            s.primed[n.op] = s.variables[n.op]
        else:
            d = self.source.of(n.uid)
            assert d is not None
            self.unchanged(d.body, s)

    def branches(self, n: Node, s: Scope) -> Value:
        test = self.ex(n.args[0], s)
        if isinstance(test, bool):
            return self.act(n.args[1 if test else 2], s)
        yes, no = replace(s, primed=dict(s.primed)), replace(s, primed=dict(s.primed))
        one, two = self.act(n.args[1], yes), self.act(n.args[2], no)
        if yes.primed.keys() != no.primed.keys():
            raise self.refuse(n, f"an IF that says {sorted(yes.primed.keys() ^ no.primed.keys())} in one branch only")
        for name, value in yes.primed.items():
            s.primed[name] = choose(test, value, no.primed[name])
        return any_of(all_of(test, one), all_of(negation(test), two))
