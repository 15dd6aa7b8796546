"""The types that the translator infers, to choose the right Python for an operator and to annotate it.

Rules: a type is what is known for certain; `any` where nothing is; joining two types never loses a value.  Types of
different groups are never equal in TLA+ (TLC refuses the comparison), so the translator refuses it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

Key = tuple[str, ...]  # a record's fields, sorted


@dataclass(frozen=True)
class T:
    """kind: never any bool int str set lazy map tuple seq rec union; lazy: a set that is perhaps no frozenset."""

    kind: str
    args: tuple[T, ...] = ()
    key: Key = ()


NEVER, ANY, BOOL, INT, STR = T("never"), T("any"), T("bool"), T("int"), T("str")
GROUPS = {
    "bool": "a boolean", "int": "a number", "str": "a string", "set": "a set", "lazy": "a set",
    "map": "a function", "tuple": "a function", "seq": "a function", "rec": "a record", "union": "a record",
}  # fmt: skip


def set_of(element: T) -> T:
    return T("set", (element,))


def lazy_of(element: T) -> T:
    return T("lazy", (element,))


def map_of(key: T, value: T) -> T:
    return T("map", (key, value))


def record(fields: Iterable[str]) -> T:
    return T("rec", key=tuple(sorted(fields)))


def members(t: T) -> tuple[T, ...]:
    """The record types that a union stands for; the type itself otherwise."""
    return t.args if t.kind == "union" else (t,)


def element(t: T) -> T:
    return t.args[0] if t.kind in ("set", "lazy", "seq") else NEVER if t.kind == "never" else ANY


def join(a: T, b: T) -> T:
    """The least type that holds the values of both."""
    if a == b or b == NEVER:
        return a
    if a == NEVER:
        return b
    kinds = {a.kind, b.kind}
    if kinds <= {"set", "lazy"}:
        return T("lazy" if "lazy" in kinds else "set", (join(a.args[0], b.args[0]),))
    if kinds == {"map"}:
        return map_of(join(a.args[0], b.args[0]), join(a.args[1], b.args[1]))
    if kinds == {"tuple"} and len(a.args) == len(b.args):
        return T("tuple", tuple(map(join, a.args, b.args)))
    if kinds <= {"tuple", "seq"}:
        return T("seq", (reduce(join, a.args + b.args, NEVER),))
    if kinds <= {"rec", "union"}:
        return T("union", tuple(dict.fromkeys(sorted(members(a) + members(b), key=lambda t: t.key))))
    return ANY


def clash(a: T, b: T) -> str | None:
    """Why no value of one type can be compared with one of the other; None if it can."""
    one, two = GROUPS.get(a.kind), GROUPS.get(b.kind)
    if one is None or two is None:
        return None
    if one != two:
        return f"{one} and {two}"
    if one == "a set":
        return clash(a.args[0], b.args[0])
    return None


def annotation(t: T, record_name: Callable[[Key], str], need: Callable[[str], None]) -> str:
    """Python's annotation. need(name): is told each name that has to be imported."""

    def show(t: T) -> str:
        return annotation(t, record_name, need)

    if t.kind in ("bool", "int", "str"):
        return t.kind
    if t.kind == "set":
        return f"frozenset[{show(t.args[0])}]"
    if t.kind == "lazy":
        need("Set")
        return f"Set[{show(t.args[0])}]"
    if t.kind == "map":
        need("Map")
        return f"Map[{show(t.args[0])}, {show(t.args[1])}]"
    if t.kind == "tuple":
        return f"tuple[{', '.join(map(show, t.args)) or '()'}]"
    if t.kind == "seq":
        return f"tuple[{show(t.args[0])}, ...]"
    if t.kind == "rec":
        return record_name(t.key)
    if t.kind == "union":
        return " | ".join(record_name(r.key) for r in t.args)
    need("Any")
    return "Any"
