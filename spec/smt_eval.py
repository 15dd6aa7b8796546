"""Evaluates TLA+ expressions to values as z3 sees them, from the tree that SANY resolved.

Rules: what is evaluated is the source itself, an operator of a machine included, its constants being what INSTANCE puts there; a
construct that is not listed is refused with its place; a definition is evaluated where it is used, a LET once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import z3

from tidegate.spec.infer import field_pairs
from tidegate.spec.sany import Node
from tidegate.spec.smt_core import Core, Scope
from tidegate.spec.smt_types import BOOL, INT, NUMBER, Ty, enumeration, join, sort_of
from tidegate.spec.smt_values import Function, Record, SetOf, Value, all_of, any_of, choose, equal, for_all, negation

__all__ = ["Evaluator", "Scope"]


class Evaluator(Core):
    """Expressions of one module: `ex(node, scope)`."""

    def union(self, n: Node, s: Scope) -> Value:
        a, b = (self.ex(x, s) for x in n.args)
        rule = {
            "\\union": lambda x: any_of(a.holds(x), b.holds(x)),
            "\\intersect": lambda x: all_of(a.holds(x), b.holds(x)),
            "\\": lambda x: all_of(a.holds(x), negation(b.holds(x))),
        }[n.op]
        return SetOf(join(a.element, b.element) if n.op == "\\union" else a.element, rule)

    def subset(self, n: Node, s: Scope) -> Value:
        a, b = (self.ex(x, s) for x in n.args)
        return for_all(join(a.element, b.element), lambda x: any_of(negation(a.holds(x)), b.holds(x)))

    def listed(self, n: Node, s: Scope) -> Value:
        values = [self.ex(a, s) for a in n.args]
        element: Ty | None = None
        for v in values:
            element = join(element, type_of(v))
        return SetOf(element, lambda x: any_of(*(equal(x, v) for v in values)))

    def interval(self, n: Node, s: Scope) -> Value:
        low, high = (self.ex(a, s) for a in n.args)
        return SetOf(INT, lambda x: all_of(low <= x, x <= high))

    def powerset(self, n: Node, s: Scope) -> Value:
        inner = self.ex(n.args[0], s)
        element = Ty("set", (), (inner.element,))
        return SetOf(element, lambda x: for_all(inner.element, lambda y: any_of(negation(x.holds(y)), inner.holds(y))))

    def product(self, n: Node, s: Scope) -> Value:
        sets = [self.ex(a, s) for a in n.args]
        element = Ty("tuple", (), tuple(x.element for x in sets))
        return SetOf(element, lambda v: all_of(*(x.holds(part) for x, part in zip(sets, v, strict=True))))

    def functions(self, n: Node, s: Scope) -> Value:
        a, b = (self.ex(x, s) for x in n.args)
        element = Ty("fun", (), (a.element, b.element))
        return SetOf(element, lambda f: for_all(a.element, lambda x: any_of(negation(a.holds(x)), b.holds(f.at(x)))))

    def records(self, n: Node, s: Scope) -> Value:
        sets = {name: self.ex(v, s) for name, v in field_pairs(n)}
        names = tuple(sorted(sets))
        element = Ty("rec", names, tuple(sets[f].element for f in names))
        return SetOf(element, lambda r: r.keys() == sets.keys() and all_of(*(sets[f].holds(r[f]) for f in names)))

    def record(self, n: Node, s: Scope) -> Value:
        return Record({name: self.ex(v, s) for name, v in field_pairs(n)})

    def select(self, n: Node, s: Scope) -> Value:
        return self.ex(n.args[0], s)[str(n.args[1].value)]

    def tuple(self, n: Node, s: Scope) -> Value:
        return tuple(self.ex(a, s) for a in n.args)

    def apply(self, n: Node, s: Scope) -> Value:
        f, x = (self.ex(a, s) for a in n.args)
        return f[x - 1] if isinstance(f, tuple) and isinstance(x, int) else f.at(x)

    def filtered(self, n: Node, s: Scope) -> Value:
        b, domain = n.bounds[0], self.ex(n.bounds[0].domain, s)
        return SetOf(domain.element, lambda x: all_of(domain.holds(x), self.ex(n.args[0], s.bind({b.names[0]: x}))))

    def function(self, n: Node, s: Scope) -> Value:
        (b,) = n.bounds
        return Function(self.ex(b.domain, s).element, lambda x: self.ex(n.args[0], s.bind({b.names[0]: x})))

    def excepted(self, n: Node, s: Scope) -> Value:
        value = self.ex(n.args[0], s)
        for p in n.args[1:]:
            value = self.changed(value, p.args[0].args, p.args[1], s)
        return value

    def changed(self, old: Value, path: list[Node], new: Node, s: Scope) -> Value:
        if not path:
            return self.ex(new, replace(s, at=old))
        if isinstance(old, Record):
            name = str(path[0].value)
            return Record({**old, name: self.changed(old[name], path[1:], new, s)})
        key = self.ex(path[0], s)
        there = self.changed(old.at(key), path[1:], new, s)
        return Function(old.domain, lambda x: choose(equal(x, key), there, old.at(x)))


def type_of(v: Value) -> Ty | None:
    """The type of a value that stands in a set of its own; None where another set will tell."""
    if isinstance(v, bool):
        return BOOL
    if isinstance(v, int):
        return NUMBER
    if isinstance(v, str):
        return enumeration([v])
    if isinstance(v, z3.ArithRef):
        return INT if v.sort() == sort_of(INT) else None
    return None


METHODS: dict[str, Callable[[Evaluator, Node, Scope], Value]] = {
    "\\lnot": Evaluator.negated, "=>": Evaluator.implied, "=": Evaluator.equality, "/=": Evaluator.equality,
    "\\equiv": Evaluator.equality, "\\in": Evaluator.member, "\\notin": Evaluator.member, "\\union": Evaluator.union,
    "\\intersect": Evaluator.union, "\\": Evaluator.union, "\\subseteq": Evaluator.subset, "$SetEnumerate": Evaluator.listed,
    "..": Evaluator.interval, "SUBSET": Evaluator.powerset, "$CartesianProd": Evaluator.product,
    "$SetOfFcns": Evaluator.functions, "$SetOfRcds": Evaluator.records, "$RcdConstructor": Evaluator.record,
    "$RcdSelect": Evaluator.select, "$Tuple": Evaluator.tuple, "$FcnApply": Evaluator.apply, "$IfThenElse": Evaluator.condition,
    "$Case": Evaluator.case, "$BoundedForall": Evaluator.quantifier, "$BoundedExists": Evaluator.quantifier,
    "$SubsetOf": Evaluator.filtered, "$FcnConstructor": Evaluator.function, "$Except": Evaluator.excepted,
}  # fmt: skip
Evaluator.methods = METHODS
