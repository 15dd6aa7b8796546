"""TLA+ values in one canonical, hashable form, whoever produced them.

Rules: equality of canonical values is TLA+'s equality.  Integers and strings stand for themselves (a model value is the
string of its name); TRUE and FALSE are ("bool", True) and ("bool", False), so that TRUE is not 1; a set is a frozenset; a
function is ("fun", frozenset of (argument, result)), and so are records (functions of strings) and sequences (functions of
1..n), because in TLA+ they are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from types import ModuleType
from typing import Any, TypeAlias

import msgspec

from tidegate.protocol._runtime import Map
from tidegate.spec.errors import SpecError

Value: TypeAlias = Any  # int | str | frozenset[Value] | tuple["bool", bool] | tuple["fun", frozenset[tuple[Value, Value]]]

TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\|->|:>|@@|<<|>>|\.\.|[\[\]{}(),]|-?\d+|[A-Za-z_0-9]\w*)')
ESCAPES = {"\\n": "\n", "\\t": "\t", "\\f": "\f", "\\r": "\r", '\\"': '"', "\\\\": "\\"}
TRUE, FALSE = ("bool", True), ("bool", False)


def function(pairs: Iterable[tuple[Value, Value]]) -> Value:
    return ("fun", frozenset(pairs))


def sequence(items: Iterable[Value]) -> Value:
    return function(enumerate(items, 1))


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.i = text, 0
        self.tokens: list[str] = []
        end = 0
        while found := TOKEN.match(text, end):
            self.tokens.append(found[1])
            end = found.end()
        if text[end:].strip():
            raise SpecError(f"not a TLA+ value as TLC prints it: {text!r}")

    def take(self, want: str | None = None) -> str:
        token = self.tokens[self.i] if self.i < len(self.tokens) else "the end"
        self.i += 1
        if self.i > len(self.tokens) or (want is not None and token != want):
            raise SpecError(f"expected {want or 'a value'}, found {token}, in the value {self.text!r}")
        return token

    def listed(self, end: str, one: Callable[[], Any]) -> list[Any]:
        out: list[Any] = []
        while self.i < len(self.tokens) and self.tokens[self.i] != end:
            out.append(one())
            if self.i < len(self.tokens) and self.tokens[self.i] == ",":
                self.take()
        self.take(end)
        return out

    def pair(self, separator: str) -> tuple[Value, Value]:
        key = self.take() if separator == "|->" else self.value()
        self.take(separator)
        return key, self.value()

    def value(self) -> Value:
        token = self.take()
        if token[0] == '"':
            # TLC wraps long output at a blank: a line break in a string was one
            return re.sub(r"\\.", lambda m: ESCAPES.get(m[0], m[0]), re.sub(r"\n\s*", " ", token[1:-1]))
        if token == "{":
            return frozenset(self.listed("}", self.value))
        if token == "<<":
            return sequence(self.listed(">>", self.value))
        if token == "[":
            return function(self.listed("]", lambda: self.pair("|->")))
        if token == "(":
            pairs = [self.pair(":>")]
            while self.i < len(self.tokens) and self.tokens[self.i] == "@@":
                self.take()
                pairs.append(self.pair(":>"))
            self.take(")")
            return function(pairs)
        if token in ("TRUE", "FALSE"):
            return TRUE if token == "TRUE" else FALSE
        if token.lstrip("-").isdigit():
            return self.number(int(token))
        if re.match(r"\w", token):
            return token
        raise SpecError(f"unexpected {token} in the value {self.text!r}")

    def number(self, first: int) -> Value:
        if self.i < len(self.tokens) and self.tokens[self.i] == "..":
            self.take()
            return frozenset(range(first, int(self.take()) + 1))
        return first


def parse(text: str) -> Value:
    """A value as TLC prints it, or as a .cfg gives a constant. Raises SpecError where it is none."""
    parser = _Parser(text)
    value = parser.value()
    if parser.i != len(parser.tokens):
        raise SpecError(f"{parser.tokens[parser.i]} follows the end of the value {text!r}")
    return value


def parse_all(text: str) -> list[Value]:
    """The values that TLC's PrintT wrote one after another."""
    parser = _Parser(text)
    out = []
    while parser.i < len(parser.tokens):
        out.append(parser.value())
    return out


def parse_state(text: str) -> dict[str, Value]:
    """`/\\ x = 1\\n/\\ y = {}` -> the variables' values; a single variable has no /\\."""
    parts = re.split(r"(?:^|\n)/\\ ", text) if text.lstrip().startswith("/\\") else [text]
    out = {}
    for part in parts:
        if part.strip():
            name, _, value = part.partition(" = ")
            out[name.strip()] = parse(value)
    return out


def canon(value: object) -> Value:
    """A value of a generated module -> the canonical form. Raises SpecError for what no machine makes."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int | str):
        return value
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        return function((tla, canon(getattr(value, python))) for python, tla in names)
    if isinstance(value, Mapping):
        return function((canon(k), canon(v)) for k, v in value.items())
    if isinstance(value, Set):
        return frozenset(map(canon, value))
    if isinstance(value, tuple):
        return sequence(map(canon, value))
    raise SpecError(f"{value!r} of type {type(value).__name__} is no TLA+ value")


def to_python(value: Value, module: ModuleType) -> Any:
    """A canonical value -> the value that `module` (generated) would have made: its record types, Map, tuple, frozenset."""
    if isinstance(value, frozenset):
        return _same_size(frozenset(to_python(v, module) for v in value), value)
    if not isinstance(value, tuple):
        return value
    if value[0] == "bool":
        return value[1]
    pairs = value[1]
    keys = [k for k, _ in pairs]
    if keys and all(isinstance(k, str) for k in keys):
        record = module.RECORDS.get(frozenset(keys))
        if record is not None:
            python = dict(zip(record.__struct_encode_fields__, record.__struct_fields__, strict=True))
            return record(**{python[k]: to_python(v, module) for k, v in pairs})
    if set(keys) == set(range(1, len(keys) + 1)):
        return tuple(to_python(v, module) for _, v in sorted(pairs, key=lambda pair: pair[0]))
    return _same_size(Map((to_python(k, module), to_python(v, module)) for k, v in pairs), value[1])


def _same_size(python: Any, value: Value) -> Any:
    if len(python) != len(value):  # TLC compares no boolean with a number, so it never makes such a set
        raise SpecError(f"{sorted(map(repr, value))} mixes booleans and numbers, which Python cannot tell apart")
    return python


def show(value: Value) -> str:
    """Canonical value -> TLA+ text, parts in a fixed order."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(show, value))) + "}"
    if not isinstance(value, tuple):
        return str(value)
    if value[0] == "bool":
        return str(value[1]).upper()
    pairs = sorted(
        value[1], key=lambda pair: (isinstance(pair[0], str), pair[0] if isinstance(pair[0], int) else 0, show(pair[0]))
    )
    keys = [k for k, _ in pairs]
    if keys == list(range(1, len(keys) + 1)):
        return "<<" + ", ".join(show(v) for _, v in pairs) + ">>"
    if all(isinstance(k, str) and k.isidentifier() for k in keys):
        return "[" + ", ".join(f"{k} |-> {show(v)}" for k, v in pairs) + "]"
    return "(" + " @@ ".join(f"{show(k)} :> {show(v)}" for k, v in pairs) + ")"
