"""The types under which z3 sees TLA+ values, and the z3 sorts that stand for them.

Rules: a declared set (a CONSTANT) is an uninterpreted sort of any size, in which 0 is one more element that the set does not
hold; numbers are integers; the strings of one set are an enumeration; records of several kinds are told apart by their field
op, and what is said of all of them is said of each kind by itself; a set is a predicate and a function a function of its
flattened argument, so that no formula speaks of sets or functions as objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import z3

from tidegate.spec.errors import SpecError

__all__ = ["BOOL", "INT", "NUMBER", "Ty", "enumeration", "join", "leaves", "sort_of", "zero"]


@dataclass(frozen=True)
class Ty:
    """kind: bool, int, number (a literal: an int, or an element of any declared set), enum (its strings in names), sort (its
    name in names), tuple, set (of args[0]), fun (args[0] -> args[1]), rec (names and args are its fields), kinds (names: the
    values of op; args: the other fields of each, a rec)."""

    kind: str
    names: tuple[str, ...] = ()
    args: tuple[Ty, ...] = ()


BOOL, INT, NUMBER = Ty("bool"), Ty("int"), Ty("number")


def join(a: Ty | None, b: Ty | None) -> Ty | None:
    """The type of a set's elements where two sets meet; None: of nothing yet."""
    if a is None or b is None or a == b:
        return b if a is None else a
    if NUMBER in (a, b):
        return b if a == NUMBER else a
    if a.kind == b.kind == "enum":
        return enumeration((*a.names, *b.names))
    if a.kind == b.kind == "tuple" and len(a.args) == len(b.args):
        return Ty("tuple", (), tuple(_joined(x, y) for x, y in zip(a.args, b.args, strict=True)))
    if {a.kind, b.kind} <= {"rec", "kinds"}:
        both = {**_by_op(a), **_by_op(b)}
        return Ty("kinds", tuple(both), tuple(both.values()))
    raise SpecError(f"values of the types {a.kind} and {b.kind} meet in one set, which z3 is not told about")


def _by_op(t: Ty) -> dict[str, Ty]:
    """The kinds of record in a type, by op."""
    if t.kind == "kinds":
        return dict(zip(t.names, t.args, strict=True))
    fields = dict(zip(t.names, t.args, strict=True))
    op = fields.pop("op", None)
    if op is None or op.kind != "enum":
        raise SpecError(f"records with the fields {', '.join(t.names)} meet others in one set: give each kind a field op")
    return {name: Ty("rec", tuple(fields), tuple(fields.values())) for name in op.names}


def _joined(a: Ty, b: Ty) -> Ty:
    found = join(a, b)
    assert found is not None
    return found


def enumeration(strings: Iterable[str]) -> Ty:
    return Ty("enum", tuple(sorted(set(strings))))


@cache
def sort_of(t: Ty) -> Any:
    """The z3 sort of a type without parts."""
    if t.kind == "bool":
        return z3.BoolSort()
    if t.kind in ("int", "number"):
        return z3.IntSort()
    if t.kind == "sort":
        return z3.DeclareSort(t.names[0])
    if t.kind == "enum":
        return z3.EnumSort("|".join(t.names), list(t.names))[0]
    raise SpecError(f"a {t.kind} is no z3 value")


@cache
def zero(sort: Any) -> Any:
    """What 0 is in a z3 sort: the number, or the element that a declared set does not hold."""
    return z3.IntVal(0) if sort == z3.IntSort() else z3.Const(f"0 of {sort}", sort)


def leaves(t: Ty) -> list[Any]:
    """The z3 sorts of a value's parts, in order. Raises SpecError for what has no finite list of parts (sets, functions)."""
    if t.kind in ("tuple", "rec"):
        return [sort for part in t.args for sort in leaves(part)]
    return [sort_of(t)]
