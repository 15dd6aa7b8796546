"""The labelled edges of the machines, and which of them a piece of work walks.

Rules: a labelled edge is (shape, event, shape).  A state's shape is its phase, and of its other fields those that are not empty
(0, {} and FALSE are); an event's label is its op with the kind of each argument: TRUE or FALSE as it is, a set as empty or
not, a name not at all, for machines compare names only for equality.  A machine's edges are those of its reachable graph at the
bounds of its .cfg, the graph that TLC and the generated Python agree on (`graph`).  What is walked is noted by the generated
functions themselves, wherever they are called, and by nothing that a session says.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from types import ModuleType
from typing import Any

from tidegate.spec.draw import reachable
from tidegate.spec.emit import snake
from tidegate.spec.errors import SpecError
from tidegate.spec.paths import root

__all__ = ["Edge", "edges", "label", "machines", "shape", "walking"]

_blocks: list[set[Edge]] = []  # the one that is open, if any


@dataclass(frozen=True, order=True)
class Edge:
    """One labelled edge of a machine."""

    machine: str
    before: str
    event: str
    after: str

    def __str__(self) -> str:
        return f"{self.machine}: {self.before} -> {self.event} -> {self.after}"


@cache
def machines() -> dict[str, ModuleType]:
    """Name of each machine -> its generated module."""
    names = sorted(path.stem for path in (root() / "tla" / "machines").glob("*.tla"))
    return {name: importlib.import_module(f"tidegate.protocol.machines.{snake(name)}") for name in names}


def _shaper(state: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """What a state's shape depends on, as a tuple that is soon made: the phase, and of each other field whether it is empty."""
    names = state.__struct_fields__
    if names == ("phase",):
        return lambda s: (s.phase,)
    if len(names) == 1:
        return lambda s: ("", not getattr(s, names[0]))
    fields = attrgetter(*names)
    if names[0] == "phase":
        return lambda s: (s.phase, *[not x for x in fields(s)[1:]])
    return lambda s: ("", *[not x for x in fields(s)])


def _shape(state: type[Any], parts: tuple[Any, ...]) -> str:
    """draining(saves transfers)"""
    rest = [name for name in state.__struct_fields__ if name != "phase"]
    return f"{parts[0]}({' '.join(name for name, empty in zip(rest, parts[1:], strict=True) if not empty)})"


def _kind(argument: Any) -> str:
    if isinstance(argument, bool):
        return "TRUE" if argument else "FALSE"
    return ("some" if argument else "none") if isinstance(argument, Set) else ""


def shape(state: Any) -> str:
    """A state's shape; slowly, where only a few are asked about."""
    return _shape(type(state), _shaper(type(state))(state))


def label(op: str, arguments: Sequence[Any]) -> str:
    """An event's label."""
    kinds = ", ".join(filter(None, map(_kind, arguments)))
    return f"{op}({kinds})" if kinds else op


def _noting(machine: str, op: str, module: ModuleType, walked: set[Edge]) -> Callable[..., Any]:
    real, kind = getattr(module, op), module.State
    parts, known = _shaper(kind), set[Any]()

    def step(state: Any, *arguments: Any) -> Any:
        after = real(state, *arguments)
        key = (parts(state), parts(after), tuple([_kind(a) for a in arguments]))
        if key not in known:
            known.add(key)
            walked.add(Edge(machine, _shape(kind, key[0]), label(op, arguments), _shape(kind, key[1])))
        return after

    return step


@contextmanager
def walking(names: Set[str] | None = None) -> Iterator[set[Edge]]:
    """For the time of the block every step of the machines (of those named) is noted in the set that it yields.
    Not safe while another thread uses the machines. SpecError within another such block."""
    if _blocks:
        raise SpecError("one block of `walking` within another: the outer one would note the inner one's steps")
    walked: set[Edge] = set()
    real: list[tuple[ModuleType, str, Any]] = []
    for name, module in machines().items():
        if names is None or name in names:
            ops = [guard[3:] for guard in vars(module) if guard.startswith("Can") and guard[3:] in vars(module)]
            real += [(module, op, getattr(module, op)) for op in ops]
            for op in ops:
                setattr(module, op, _noting(name, op, module, walked))
    _blocks.append(walked)
    try:
        yield walked
    finally:
        _blocks.clear()
        for module, op, function in real:
            setattr(module, op, function)


@cache
def edges(machine: str) -> frozenset[Edge]:
    """Every labelled edge of a machine's graph, which is walked anew: whoever drew it before has noted nothing."""
    with walking({machine}) as walked:
        reachable.__wrapped__(machines()[machine], root() / "tla" / "graphs" / f"{machine}Graph.cfg")
    return frozenset(walked)
