"""What generated machines need at run time.

Rules: every value is immutable and hashable.  Booleans, integers and strings are Python's, sets are frozenset (or one of the
lazy sets here, which are equal to it), records are frozen msgspec Structs, functions are `Map`, sequences and tuples are
tuple.  In TLA+ a sequence is a function of 1..n; so a Map of that domain equals the tuple, with the same hash.  What TLC
refuses to evaluate raises here too: a function outside its domain, CHOOSE without exactly one candidate, CASE with no arm
that applies, % by a number below 1.  Integers do not overflow; TLC's do beyond 32 bits, and TLC says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import chain, combinations, product
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

BOOLEAN: frozenset[bool] = frozenset((False, True))
EMPTY: frozenset[Any] = frozenset()


class EvaluationError(ValueError):
    """An expression has no value; TLC reports an error for the same expression."""


class Map(dict[K, V], Generic[K, V]):
    """A TLA+ function with a finite domain: `f[x]`, `f.put(x, v)` for [f EXCEPT ![x] = v]; `len`, `in`, iteration by key."""

    __slots__ = ("_hash",)
    _hash: int

    def put(self, key: K, value: V) -> Map[K, V]:
        """[self EXCEPT ![key] = value]; a key outside the domain changes nothing, as in TLA+."""
        if key not in self:
            return self
        out: Map[K, V] = Map(self)
        dict.__setitem__(out, key, value)
        return out

    def over(self, other: Mapping[K, V]) -> Map[K, V]:
        """self @@ other: self decides where both are defined."""
        return Map({**other, **self})

    def __missing__(self, key: K) -> NoReturn:
        raise EvaluationError(f"function applied to {key!r}, outside its domain {sorted(map(repr, self))}")

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none
        try:
            return self._hash
        except AttributeError:
            items = as_sequence(self)
            value = hash(frozenset(self.items()) if items is None else items)
            object.__setattr__(self, "_hash", value)
            return value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, dict):
            return dict.__eq__(self, other)
        if isinstance(other, tuple):
            return as_sequence(self) == other
        if isinstance(other, msgspec.Struct):
            raise EvaluationError(
                f"a function is compared with the record {other!r}: translated as different types, write both one way"
            )
        return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return f"Map({dict.__repr__(self)})"

    def __reduce__(self) -> Any:
        return Map, (dict(self),)

    def _fixed(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a Map does not change: put() returns another")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _fixed


def as_sequence(f: Mapping[Any, V]) -> tuple[V, ...] | None:
    """The tuple that a function of 1..n equals; None for any other function."""
    n = len(f)
    if all(i in f for i in range(1, n + 1)) and not any(isinstance(k, bool) for k in f):
        return tuple(f[i] for i in range(1, n + 1))
    return None


def seq(value: Any) -> tuple[Any, ...]:
    """A sequence, however it was built, as a tuple. Raises EvaluationError for anything else."""
    out = value if isinstance(value, tuple) else as_sequence(value) if isinstance(value, Map) else None
    if out is None:
        raise EvaluationError(f"{value!r} is no sequence")
    return out


def as_map(value: Any) -> Map[Any, Any]:
    """A function, however it was built, as a Map (a record cannot be one: its type is fixed)."""
    if isinstance(value, Map):
        return value
    if isinstance(value, tuple):
        return Map(enumerate(value, 1))
    raise EvaluationError(f"{value!r} is no function that can be extended")


def head(value: Any) -> Any:
    items = seq(value)
    if not items:
        raise EvaluationError("Head of the empty sequence")
    return items[0]


def tail(value: Any) -> tuple[Any, ...]:
    items = seq(value)
    if not items:
        raise EvaluationError("Tail of the empty sequence")
    return items[1:]


def apply(f: Any, x: Any) -> Any:
    """f[x] where the translator does not know what f is: a Map, a sequence or a record."""
    if isinstance(f, Map):
        return f[x]
    if isinstance(f, tuple):
        if isinstance(x, bool) or not isinstance(x, int) or not 1 <= x <= len(f):
            raise EvaluationError(f"sequence of length {len(f)} applied to {x!r}")
        return f[x - 1]
    if isinstance(f, msgspec.Struct) and (name := _python_name(f, x)) is not None:
        return getattr(f, name)
    raise EvaluationError(f"{f!r} applied to {x!r}")


def replace(f: Any, x: Any, change: Callable[[Any], Any]) -> Any:
    """[f EXCEPT ![x] = change(@)] where the translator does not know what f is; outside the domain nothing changes."""
    if isinstance(f, Map):
        return f.put(x, change(f[x])) if x in f else f
    if isinstance(f, tuple):
        if isinstance(x, bool) or not isinstance(x, int) or not 1 <= x <= len(f):
            return f
        return (*f[: x - 1], change(f[x - 1]), *f[x:])
    if isinstance(f, msgspec.Struct):
        name = _python_name(f, x)
        return f if name is None else msgspec.structs.replace(f, **{name: change(getattr(f, name))})
    raise EvaluationError(f"EXCEPT on {f!r}, which is no function")


def _python_name(record: msgspec.Struct, field: object) -> str | None:
    for name, tla in zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True):
        if tla == field:
            return name
    return None


def domain(f: Any) -> frozenset[Any]:
    if isinstance(f, Map):
        return frozenset(f)
    if isinstance(f, tuple):
        return frozenset(range(1, len(f) + 1))
    if isinstance(f, msgspec.Struct):
        return frozenset(f.__struct_encode_fields__)
    raise EvaluationError(f"DOMAIN of {f!r}, which is no function")


def interval(low: int, high: int) -> frozenset[int]:
    """low..high, both ends included; empty where high < low."""
    return frozenset(range(low, high + 1))


def union(sets: Iterable[Set[T]]) -> frozenset[T]:
    """UNION sets."""
    return frozenset(chain.from_iterable(sets))


def modulo(a: int, b: int) -> int:
    """a % b, defined in TLA+ for b > 0 only."""
    if b <= 0:
        raise EvaluationError(f"{a} % {b}: the second operand must be positive")
    return a % b


def quotient(a: int, b: int) -> int:
    """a \\div b, rounded down."""
    if b == 0:
        raise EvaluationError(f"{a} \\div 0")
    return a // b


def only(candidates: Iterable[T]) -> T:
    """CHOOSE, allowed only where exactly one value fits: TLA+ fixes no choice among several, so two tools may differ."""
    found = set(candidates)
    if len(found) != 1:
        raise EvaluationError(f"CHOOSE has {len(found)} candidates {sorted(map(repr, found))}: it must have exactly one")
    return found.pop()


def no_case() -> NoReturn:
    raise EvaluationError("CASE: no arm applies and there is no OTHER")


class _LazySet(Set[T]):
    """A set that knows its members without listing them. Equal to the frozenset of its members, with the same hash."""

    __slots__ = ()

    @classmethod
    def _from_iterable(cls, items: Iterable[Any]) -> Any:
        return frozenset(items)

    def __hash__(self) -> int:
        return hash(frozenset(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self)}"


class Powerset(_LazySet[frozenset[T]]):
    """SUBSET base."""

    __slots__ = ("base",)

    def __init__(self, base: Iterable[T]) -> None:
        self.base = frozenset(base)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Set) and all(v in self.base for v in value)

    def __iter__(self) -> Iterator[frozenset[T]]:
        items = list(self.base)
        return map(frozenset, chain.from_iterable(combinations(items, n) for n in range(len(items) + 1)))

    def __len__(self) -> int:
        return int(2 ** len(self.base))


class Functions(_LazySet[Map[K, V]]):
    """[source -> target]."""

    __slots__ = ("source", "target")

    def __init__(self, source: Iterable[K], target: Set[V]) -> None:
        self.source, self.target = frozenset(source), target

    def __contains__(self, value: object) -> bool:
        if isinstance(value, tuple):
            value = Map(enumerate(value, 1))
        return isinstance(value, Map) and value.keys() == self.source and all(v in self.target for v in value.values())

    def __iter__(self) -> Iterator[Map[K, V]]:
        keys = list(self.source)
        return (Map(zip(keys, values, strict=True)) for values in product(self.target, repeat=len(keys)))

    def __len__(self) -> int:
        return int(len(self.target) ** len(self.source))


R = TypeVar("R")


class Records(_LazySet[R]):
    """[field: set, ...], as instances of one record type; fields by their Python names."""

    __slots__ = ("kind", "sets")

    def __init__(self, kind: type[R], /, **sets: Set[Any]) -> None:
        self.kind, self.sets = kind, sets

    def __contains__(self, value: object) -> bool:
        return type(value) is self.kind and all(getattr(value, name) in field for name, field in self.sets.items())

    def __iter__(self) -> Iterator[R]:
        names = list(self.sets)
        return (self.kind(**dict(zip(names, values, strict=True))) for values in product(*self.sets.values()))

    def __len__(self) -> int:
        size = 1
        for field in self.sets.values():
            size *= len(field)
        return size


class _Numbers(Set[int]):
    """Nat and Int: membership only, for they cannot be listed."""

    __slots__ = ("low",)

    def __init__(self, low: int | None) -> None:
        self.low = low

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and (self.low is None or value >= self.low)

    def __ge__(self, other: Set[Any]) -> bool:
        return all(x in self for x in other)

    def __iter__(self) -> Iterator[int]:
        raise EvaluationError("an infinite set of numbers cannot be listed")

    def __len__(self) -> int:
        raise EvaluationError("an infinite set of numbers has no size")


NAT = _Numbers(0)
INT = _Numbers(None)
