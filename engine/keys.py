"""Configuration keys that explain themselves: what a value must be stands at the field, for the parser, the error and the page.

Rules: an unknown key is refused with the nearest known one; a value of the wrong type or range is refused by the rule that
docs/configuration.md shows, and a number that is not finite by all; no error passes without the key's whole path.
"""

from __future__ import annotations

import difflib
import math
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from tidegate.engine.errors import ConfigError

__all__ = ["Key", "Rule", "checked_value", "documented", "keys_of", "nearest", "parse", "refuse"]

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Key:
    """What a field's annotation says of its key.

    rule: which values are good, in words that follow "KEY is VALUE: "; good: the same as a test, where the type does not say it
    all; upstream: its default or its word where they differ from ours, "" where they do not, "-" where upstream has no such key.
    """

    rule: str
    upstream: str = ""
    good: Callable[[Any], bool] = lambda value: True


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """Something that cannot be run.  about: one line for the page; why: the error for a subject that breaks it, else ""."""

    name: str
    about: str
    why: Callable[[T], str]


def refuse(subject: T, rules: Collection[Rule[T]]) -> None:
    """ConfigError by the first rule that `subject` breaks."""
    for rule in rules:
        if why := rule.why(subject):
            raise ConfigError(why)


@cache
def keys_of(kind: type[msgspec.Struct]) -> dict[str, tuple[Any, Key]]:
    """Field -> (its type, its key) of a settings struct."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        name: (hint.__origin__, next(one for one in hint.__metadata__ if isinstance(one, Key)))
        for name in kind.__struct_fields__ if typing.get_origin(hint := hints[name]) is typing.Annotated
    }  # fmt: skip


def nearest(name: str, known: Collection[str]) -> str:
    """"did you mean" or the list, for an error about a name that is none of `known`."""
    close = difflib.get_close_matches(name, known, 1, 0.6)
    return f"the nearest known one is {close[0]!r}" if close else f"known are {', '.join(sorted(known))}"


def parse(kind: type[S], raw: object, path: str) -> S:
    """A settings struct of plain data. ConfigError."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{path} is {raw!r}: give an object of keys and values")
    known = keys_of(kind)
    for name in raw:
        if name not in known:
            raise ConfigError(f"{path} has no key {name!r}: {nearest(str(name), known)}")
    values = {name: _value(known[name], value, f"{path}.{name}") for name, value in raw.items()}
    return kind(**values)


def _value(known: tuple[Any, Key], value: object, path: str) -> Any:
    kind, key = known
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return parse(kind, value, path)
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise ConfigError(f"{path} is {value!r}: {key.rule}") from None
    if not key.good(converted) or (isinstance(converted, float) and not math.isfinite(converted)):
        raise ConfigError(f"{path} is {value!r}: {key.rule}")
    return converted


def checked_value(kind: type[msgspec.Struct], name: str, value: object, said: str) -> Any:
    """`value` for key `name` of `kind`, which the user called `said`. ConfigError."""
    return _value(keys_of(kind)[name], value, said)


def documented(kind: type[msgspec.Struct]) -> Iterator[tuple[str, Any, Key]]:
    """(name, default, key) of each key, in order."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, (_, key) in keys_of(kind).items():
        default = fields[name].default
        if default is msgspec.NODEFAULT:
            factory = fields[name].default_factory
            default = None if factory is msgspec.NODEFAULT else factory()
        yield name, default, key
