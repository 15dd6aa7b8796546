"""TLA+ values as z3 sees them: symbols, equality, choice.

Rules: truth values are Python's where they are certain, so that what cannot matter is never built; a string is a Python string, a
z3 element of an enumeration, or several strings with the condition of each (`Strings`); a number is a Python int until it meets
a sort; a tuple is a tuple, a record a `Record`; sets and functions are rules (`SetOf`, `Function`) that give a formula for each
argument, so EXCEPT, unions and primes leave nothing behind but formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import z3

from tidegate.spec.errors import SpecError
from tidegate.spec.smt_types import Ty, join, leaves, sort_of, zero

__all__ = [
    "Function", "Record", "SetOf", "Strings", "Value", "all_of", "any_of", "choose", "closed", "deeper", "equal", "flat", "for_all",
    "fresh", "instances", "negation", "symbol", "term", "unflat",
]  # fmt: skip

Value: TypeAlias = Any
"""bool | z3 term | str | Strings | int | tuple | Record | SetOf | Function."""


class Record(dict[str, Value]):
    """A record: field -> value; a Record of a union may lack fields."""


class Strings(dict[str, Value]):
    """One of several strings: each with the condition under which it is that one; exactly one of them holds."""


@dataclass(frozen=True)
class SetOf:
    """element: the type of what may be in it, None while nothing is known; holds(x): the formula of x \\in the set."""

    element: Ty | None
    holds: Callable[[Value], Value]


@dataclass(frozen=True)
class Function:
    """domain: the type of its argument; at(x): its value there."""

    domain: Ty | None
    at: Callable[[Value], Value]


# -- truth
def all_of(*parts: Value) -> Value:
    left = [p for p in parts if p is not True]
    if any(p is False for p in left):
        return False
    return True if not left else left[0] if len(left) == 1 else z3.And(*left)


def any_of(*parts: Value) -> Value:
    left = [p for p in parts if p is not False]
    if any(p is True for p in left):
        return True
    return False if not left else left[0] if len(left) == 1 else z3.Or(*left)


def negation(p: Value) -> Value:
    return (not p) if isinstance(p, bool) else z3.Not(p)


# -- parts
def flat(value: Value, t: Ty) -> list[Any]:
    """A value's parts as z3 terms, in the order of `leaves(t)`."""
    if t.kind == "tuple":
        return [part for v, p in zip(value, t.args, strict=True) for part in flat(v, p)]
    if t.kind == "rec":
        return [part for name, p in zip(t.names, t.args, strict=True) for part in flat(value[name], p)]
    return [term(value, sort_of(t))]


def unflat(parts: list[Any], t: Ty) -> Value:
    """The inverse of `flat`; takes the parts off the list."""
    if t.kind == "tuple":
        return tuple(unflat(parts, p) for p in t.args)
    if t.kind == "rec":
        return Record({name: unflat(parts, p) for name, p in zip(t.names, t.args, strict=True)})
    return parts.pop(0)


def term(value: Value, sort: Any) -> Any:
    """A value without parts as a z3 term of a sort."""
    if isinstance(value, bool):
        return z3.BoolVal(value)
    if isinstance(value, int):
        if sort == z3.IntSort():
            return z3.IntVal(value)
        if value == 0:
            return zero(sort)
        raise SpecError(f"the number {value} cannot be an element of {sort}: of declared sets only 0 is known, not to be in them")
    if isinstance(value, z3.ExprRef) and value.sort() == sort:
        return value
    if isinstance(sort, z3.DatatypeSortRef):
        return _spelled(value, sort)
    raise SpecError(f"{value} is used as an element of {sort}")
    raise SpecError(f"{value} is used as an element of {sort}")


def alternatives(value: Value) -> Strings:
    """The strings that a value may be, each with its condition."""
    if isinstance(value, Strings):
        return value
    if isinstance(value, str):
        return Strings({value: True})
    sort = value.sort()
    constants = [sort.constructor(i) for i in range(sort.num_constructors())]
    return Strings({c.name(): value == c() for c in constants})


def _spelled(value: Value, sort: Any) -> Any:
    constants = {sort.constructor(i).name(): sort.constructor(i)() for i in range(sort.num_constructors())}
    out: Any = None
    for name, when in alternatives(value).items():
        if name not in constants:
            if when is True:
                raise SpecError(f'"{name}" is none of the strings of {sort}')
            continue
        out = constants[name] if out is None else z3.If(when, constants[name], out) if when is not True else constants[name]
    return out


# -- choice and equality
def choose(test: Value, yes: Value, no: Value) -> Value:
    """IF test THEN yes ELSE no."""
    if isinstance(test, bool):
        return yes if test else no
    if yes is no:
        return yes
    if isinstance(yes, Record):
        return Record({f: choose(test, yes[f], no[f]) for f in yes})
    if isinstance(yes, tuple):
        return tuple(choose(test, a, b) for a, b in zip(yes, no, strict=True))
    if isinstance(yes, SetOf):
        return SetOf(join(yes.element, no.element), lambda x: choose(test, yes.holds(x), no.holds(x)))
    if isinstance(yes, Function):
        return Function(yes.domain or no.domain, lambda x: choose(test, yes.at(x), no.at(x)))
    if isinstance(yes, bool) or isinstance(no, bool):
        return any_of(all_of(test, yes), all_of(negation(test), no))
    return _choose_part(test, yes, no)


def _choose_part(test: Value, yes: Value, no: Value) -> Value:
    """A choice between values without parts, which need not be z3 terms yet."""
    if isinstance(yes, z3.ExprRef) and isinstance(no, z3.ExprRef) and yes.eq(no):
        return yes
    if isinstance(yes, int) and isinstance(no, int):
        return yes if yes == no else z3.If(test, z3.IntVal(yes), z3.IntVal(no))
    for one, other in ((yes, no), (no, yes)):  # the sort of one that is a term, if the other can be of it
        if isinstance(one, z3.ExprRef) and _fits(other, one.sort()):
            return z3.If(test, term(yes, one.sort()), term(no, one.sort()))
    a, b = alternatives(yes), alternatives(no)
    names = dict.fromkeys((*a, *b))
    return Strings({n: any_of(all_of(test, a.get(n, False)), all_of(negation(test), b.get(n, False))) for n in names})


def _fits(value: Value, sort: Any) -> bool:
    """Can every value that this may be stand in the sort?"""
    if not isinstance(sort, z3.DatatypeSortRef):
        return True
    return set(alternatives(value)) <= {sort.constructor(i).name() for i in range(sort.num_constructors())}


def equal(a: Value, b: Value) -> Value:
    """The formula of a = b."""
    if isinstance(a, Record):
        return a.keys() == b.keys() and all_of(*(equal(a[f], b[f]) for f in sorted(a)))
    if isinstance(a, tuple):
        return all_of(*(equal(x, y) for x, y in zip(a, b, strict=True)))
    if isinstance(a, SetOf):
        element = join(a.element, b.element)
        return for_all(element, lambda x: equal(a.holds(x), b.holds(x)))
    if isinstance(a, Function):
        return for_all(a.domain or b.domain, lambda x: equal(a.at(x), b.at(x)))
    if isinstance(a, bool) or isinstance(b, bool):
        known, other = (a, b) if isinstance(a, bool) else (b, a)
        return other if known else negation(other)
    if isinstance(a, str | Strings) or isinstance(b, str | Strings):
        return _equal_strings(a, b)
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, int):
        return term(a, b.sort()) == b
    if isinstance(b, int):
        return a == term(b, a.sort())
    if a.sort() != b.sort():
        return _equal_strings(a, b)
    return True if a.eq(b) else a == b


def _equal_strings(a: Value, b: Value) -> Value:
    one, two = alternatives(a), alternatives(b)
    return any_of(*(all_of(one[name], two[name]) for name in one if name in two))


# -- symbols and quantifiers
def symbol(name: str, t: Ty, args: tuple[Any, ...] = ()) -> Value:
    """The unknown value of a variable: an uninterpreted function for each part that has no parts itself."""
    if t.kind == "rec":
        return Record({f: symbol(f"{name}.{f}", p, args) for f, p in zip(t.names, t.args, strict=True)})
    if t.kind == "set":
        return SetOf(t.args[0], lambda x: _contains(name, t.args[0], args, x))
    if t.kind == "fun":
        return Function(t.args[0], lambda x: symbol(name, t.args[1], (*args, *flat(x, t.args[0]))))
    if t.kind == "tuple":
        return tuple(symbol(f"{name}.{i}", p, args) for i, p in enumerate(t.args, 1))
    return _applied(name, args, sort_of(t))


def _contains(name: str, element: Ty, args: tuple[Any, ...], x: Value) -> Value:
    if element.kind != "kinds":
        return _applied(name, (*args, *flat(x, element)), z3.BoolSort())
    rest = Record({f: v for f, v in x.items() if f != "op"})
    kinds = dict(zip(element.names, element.args, strict=True))
    return any_of(
        *(all_of(when, _applied(f"{name}.{op}", (*args, *flat(rest, kinds[op])), z3.BoolSort()))
          for op, when in alternatives(x["op"]).items() if op in kinds and rest.keys() == set(kinds[op].names))
    )  # fmt: skip


def _applied(name: str, args: tuple[Any, ...], sort: Any) -> Any:
    return z3.Function(name, *(a.sort() for a in args), sort)(*args) if args else z3.Const(name, sort)


_depth = [0]


def fresh(t: Ty, prefix: str = "") -> tuple[list[Any], Value]:
    """New constants for every part of a value, and the value of them."""
    parts = [z3.Const(f"{prefix or 'x'}{_depth[0]}.{i}", sort) for i, sort in enumerate(leaves(t))]
    return parts, unflat(list(parts), t)


def instances(t: Ty | None, prefix: str = "") -> list[tuple[list[Any], Value]]:
    """`fresh` for every kind of value in the type; one where it has no kinds, none where it has no values."""
    if t is None:
        return []
    if t.kind != "kinds":
        return [fresh(t, prefix)]
    out = []
    for op, fields in zip(t.names, t.args, strict=True):
        variables, rest = fresh(fields, f"{prefix}{op}")
        out.append((variables, Record({"op": op, **rest})))
    return out


@contextmanager
def deeper() -> Iterator[None]:
    """Names given inside are distinct from those outside, and the same whenever a formula is built anew."""
    _depth[0] += 1
    try:
        yield
    finally:
        _depth[0] -= 1


def closed(variables: list[Any], formula: Value) -> Value:
    """\\A variables : formula."""
    return formula if isinstance(formula, bool) or not variables else z3.ForAll(variables, formula)


def for_all(t: Ty | None, body: Callable[[Value], Value]) -> Value:
    """\\A x of the type: body(x); of each kind by itself."""
    if t is None:
        return True
    with deeper():
        return all_of(*(closed(variables, body(value)) for variables, value in instances(t)))
