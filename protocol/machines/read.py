"""Generated from tla/machines/Read.tla by `tidegate gen`; do not edit.

One remote read as Decode sees it, from READY to the answer.

idle -> reading -> done -> committed | revoked
                -> failed -> revoked

A read is begun once, however often READY comes.  Its report is kept
and resent until it is answered.  It is believed only when committed.
A failure is quiet (the backend vouches that no byte can land any more)
or unknown: then landing stays TRUE until the backend's own end event,
and the destination may not be given away.

sha256: 52324ff069836ee0966381eef2f2e96b68797b1faac797a6223fab915a5688f0
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import Any, TypeAlias

import msgspec

from tidegate.protocol._runtime import BOOLEAN, Records, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[phase, landing] in tla/machines/Read.tla."""

    phase: str
    landing: bool


class Event(msgspec.Struct, frozen=True, gc=False):
    """[op] in tla/machines/Read.tla."""

    op: str


class EventQuiet(msgspec.Struct, frozen=True, gc=False):
    """[op, quiet] in tla/machines/Read.tla."""

    op: str
    quiet: bool


AnyEvent: TypeAlias = Event | EventQuiet

RECORDS: dict[frozenset[str], Any] = {
    frozenset(('landing', 'phase')): State,
    frozenset(('op',)): Event,
    frozenset(('op', 'quiet')): EventQuiet,
}
CONSTANTS: tuple[str, ...] = ()


@cache
def States() -> Set[State]:
    """[tla/machines/Read.tla:15]"""
    return Records(State, phase=frozenset(('idle', 'reading', 'done', 'failed', 'committed', 'revoked')), landing=BOOLEAN)


@cache
def Initial() -> State:
    """[tla/machines/Read.tla:18]"""
    return State(phase='idle', landing=False)


def CanBegin(s: State) -> bool:
    """READY arrived and the read may begin.

    [tla/machines/Read.tla:21]
    """
    return s.phase == 'idle'


def Begin(s: State) -> State:
    """[tla/machines/Read.tla:22]"""
    return State(phase='reading', landing=True)


def CanEndOk(s: State) -> bool:
    """The copy has ended well.

    [tla/machines/Read.tla:25]
    """
    return s.phase == 'reading'


def EndOk(s: State) -> State:
    """[tla/machines/Read.tla:26]"""
    return State(phase='done', landing=False)


def CanEndFailed(s: State) -> bool:
    """The copy has failed; quiet says that it is known to have stopped.

    [tla/machines/Read.tla:29]
    """
    return s.phase == 'reading'


def EndFailed(s: State, quiet: bool) -> State:
    """[tla/machines/Read.tla:30]"""
    return State(phase='failed', landing=not quiet)


def CanLanded(s: State) -> bool:
    """The backend's own end event for a copy whose failure was unknown.

    [tla/machines/Read.tla:33]
    """
    return s.landing and s.phase != 'reading'


def Landed(s: State) -> State:
    """[tla/machines/Read.tla:34]"""
    return State(phase=s.phase, landing=False)


def CanCommit(s: State) -> bool:
    """[tla/machines/Read.tla:36]"""
    return s.phase == 'done'


def Commit(s: State) -> State:
    """[tla/machines/Read.tla:37]"""
    return State(phase='committed', landing=s.landing)


def CanRevoke(s: State) -> bool:
    """[tla/machines/Read.tla:39]"""
    return s.phase in {'done', 'failed'}


def Revoke(s: State) -> State:
    """[tla/machines/Read.tla:40]"""
    return State(phase='revoked', landing=s.landing)


def Unanswered(s: State) -> bool:
    """A report is owed, and which.

    [tla/machines/Read.tla:43]
    """
    return s.phase in {'done', 'failed'}


def Report(s: State) -> str:
    """[tla/machines/Read.tla:44]"""
    if s.phase == 'failed':
        return 'READ_FAILED'
    return 'READ_DONE'


@cache
def Events() -> Set[AnyEvent]:
    """[tla/machines/Read.tla:46]"""
    return Records(Event, op=frozenset(('Begin', 'EndOk', 'Landed', 'Commit', 'Revoke'))) | Records(EventQuiet, op=frozenset(('EndFailed',)), quiet=BOOLEAN)


def Enabled(s: State, e: AnyEvent) -> bool:
    """[tla/machines/Read.tla:49]"""
    if e.op == 'Begin':
        return CanBegin(s)
    if e.op == 'EndOk':
        return CanEndOk(s)
    if e.op == 'EndFailed':
        return CanEndFailed(s)
    if e.op == 'Landed':
        return CanLanded(s)
    if e.op == 'Commit':
        return CanCommit(s)
    if e.op == 'Revoke':
        return CanRevoke(s)
    return no_case()


def Step(s: State, e: AnyEvent) -> State:
    """[tla/machines/Read.tla:57]"""
    if e.op == 'Begin':
        return Begin(s)
    if e.op == 'EndOk':
        return EndOk(s)
    if e.op == 'EndFailed':
        return EndFailed(s, e.quiet)
    if e.op == 'Landed':
        return Landed(s)
    if e.op == 'Commit':
        return Commit(s)
    if e.op == 'Revoke':
        return Revoke(s)
    return no_case()
