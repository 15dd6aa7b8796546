"""Generated from tla/machines/Binding.tla by `tidegate gen`; do not edit.

Which prefill run an attempt listens to.  An attempt binds to the first
run it hears of and refuses every other, for ever: a proxy that retries
makes two runs of one attempt, and bytes of two runs must never meet in
one destination.

sha256: 63ffb921d5f77fa605de7f8bbf952467e2d143f66619d6369ceb945fd0d9745d
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import Any

import msgspec

from tidegate.protocol._runtime import Records, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[run] in tla/machines/Binding.tla."""

    run: Any


class EventRun(msgspec.Struct, frozen=True, gc=False):
    """[op, run] in tla/machines/Binding.tla."""

    op: str
    run: Any


RECORDS: dict[frozenset[str], Any] = {
    frozenset(('run',)): State,
    frozenset(('op', 'run')): EventRun,
}
CONSTANTS: tuple[str, ...] = ("Runs",)


@cache
def NoRun() -> int:
    """[tla/machines/Binding.tla:10]"""
    return 0


def States(*, Runs: Any) -> Set[State]:
    """[tla/machines/Binding.tla:12]"""
    return Records(State, run=Runs | frozenset((NoRun(),)))


@cache
def Initial() -> State:
    """[tla/machines/Binding.tla:14]"""
    return State(run=NoRun())


def CanBind(s: State) -> bool:
    """[tla/machines/Binding.tla:16]"""
    return s.run == NoRun()


def Bind(s: State, r: Any) -> State:
    """[tla/machines/Binding.tla:17]"""
    return State(run=r)


def CanAccept(s: State, r: Any) -> bool:
    """Is r the run of this attempt?

    [tla/machines/Binding.tla:20]
    """
    return s.run == r


def Events(*, Runs: Any) -> Set[EventRun]:
    """[tla/machines/Binding.tla:22]"""
    return Records(EventRun, op=frozenset(('Bind',)), run=Runs)


def Enabled(s: State, e: EventRun) -> bool:
    """[tla/machines/Binding.tla:24]"""
    if e.op == 'Bind':
        return CanBind(s)
    return no_case()


def Step(s: State, e: EventRun) -> State:
    """[tla/machines/Binding.tla:26]"""
    if e.op == 'Bind':
        return Bind(s, e.run)
    return no_case()
