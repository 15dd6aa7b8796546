"""Generated from tla/machines/FailureInvalidation.tla by `tidegate gen`; do not edit.

The destination blocks of one attempt on Decode: whose they are, whether
what is in them may be used, and when they may be given to another.

owned -> valid | poisoned;  both -> draining -> reclaimed -> forgotten

Blocks return after three steps, in this order: invalidated (or
released after use); every rank closed (it begins no further read);
every rank drained (nothing of it may still land).  Drained is judged
from what the rank reports (open: the groups that are not quiet), and
only of a rank that is closed, for before that a new read may begin.
After that nothing of the attempt matters here; Decode says so (RETIRE)
and, once it is answered, forgets.  The attempt's nonce stays used.

sha256: 739c025fd0f16131d1d88c57c5d19e114cedb5186aebfb8936dadca3cfc4eecb
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import Any, TypeAlias

import msgspec

from tidegate.protocol._runtime import EMPTY, Powerset, Records, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[phase, ranks, closed, drained] in tla/machines/FailureInvalidation.tla."""

    phase: str
    ranks: frozenset[Any]
    closed: frozenset[Any]
    drained: frozenset[Any]


class EventRanks(msgspec.Struct, frozen=True, gc=False):
    """[op, ranks] in tla/machines/FailureInvalidation.tla."""

    op: str
    ranks: frozenset[Any]


class EventRank(msgspec.Struct, frozen=True, gc=False):
    """[op, rank] in tla/machines/FailureInvalidation.tla."""

    op: str
    rank: Any


class EventRankOpen(msgspec.Struct, frozen=True, gc=False):
    """[op, rank, open] in tla/machines/FailureInvalidation.tla."""

    op: str
    rank: Any
    open: frozenset[Any]


class Event(msgspec.Struct, frozen=True, gc=False):
    """[op] in tla/machines/FailureInvalidation.tla."""

    op: str


AnyEvent: TypeAlias = Event | EventRankOpen | EventRank | EventRanks

RECORDS: dict[frozenset[str], Any] = {
    frozenset(('closed', 'drained', 'phase', 'ranks')): State,
    frozenset(('op', 'ranks')): EventRanks,
    frozenset(('op', 'rank')): EventRank,
    frozenset(('op', 'open', 'rank')): EventRankOpen,
    frozenset(('op',)): Event,
}
CONSTANTS: tuple[str, ...] = ("Groups", "Ranks",)


def States(*, Ranks: Any) -> Set[State]:
    """[tla/machines/FailureInvalidation.tla:18]"""
    return Records(State, phase=frozenset(('idle', 'owned', 'valid', 'poisoned', 'draining', 'reclaimed', 'forgotten')), ranks=Powerset(Ranks), closed=Powerset(Ranks), drained=Powerset(Ranks))


@cache
def Initial() -> State:
    """[tla/machines/FailureInvalidation.tla:23]"""
    return State(phase='idle', ranks=EMPTY, closed=EMPTY, drained=EMPTY)


@cache
def Forgotten() -> State:
    """All that is left of an attempt: its nonce was used.

    [tla/machines/FailureInvalidation.tla:25]
    """
    return (lambda _0: State(phase='forgotten', ranks=_0.ranks, closed=_0.closed, drained=_0.drained))(Initial())


def CanOwn(s: State) -> bool:
    """[tla/machines/FailureInvalidation.tla:27]"""
    return s.phase == 'idle'


def Own(s: State, ranks: frozenset[Any]) -> State:
    """[tla/machines/FailureInvalidation.tla:28]"""
    return State(phase='owned', ranks=ranks, closed=s.closed, drained=s.drained)


def CanRead(s: State, k: Any) -> bool:
    """May rank k begin a read into these blocks?  Of an attempt that is not known, or not any more, it owns none.

    [tla/machines/FailureInvalidation.tla:31]
    """
    return k in s.ranks and k not in s.closed


def CanValidate(s: State) -> bool:
    """Everything has arrived and is right.

    [tla/machines/FailureInvalidation.tla:35]
    """
    return s.phase == 'owned'


def Validate(s: State) -> State:
    """[tla/machines/FailureInvalidation.tla:36]"""
    return State(phase='valid', ranks=s.ranks, closed=s.closed, drained=s.drained)


def CanPoison(s: State) -> bool:
    """Something went wrong: what is in the blocks is never used.

    [tla/machines/FailureInvalidation.tla:39]
    """
    return s.phase in {'owned', 'valid'}


def Poison(s: State) -> State:
    """[tla/machines/FailureInvalidation.tla:40]"""
    return State(phase='poisoned', ranks=s.ranks, closed=s.closed, drained=s.drained)


def CanDrain(s: State) -> bool:
    """Nobody uses the contents any more.

    [tla/machines/FailureInvalidation.tla:43]
    """
    return s.phase in {'valid', 'poisoned'}


def Drain(s: State) -> State:
    """[tla/machines/FailureInvalidation.tla:44]"""
    return State(phase='draining', ranks=s.ranks, closed=s.closed, drained=s.drained)


def CanClose(s: State, k: Any) -> bool:
    """[tla/machines/FailureInvalidation.tla:46]"""
    return s.phase == 'draining'


def Close(s: State, k: Any) -> State:
    """[tla/machines/FailureInvalidation.tla:47]"""
    return State(phase=s.phase, ranks=s.ranks, closed=s.closed | {k}, drained=s.drained)


def CanDrained(s: State, k: Any, open_: frozenset[Any]) -> bool:
    """[tla/machines/FailureInvalidation.tla:49]"""
    return k in s.closed and open_ == EMPTY


def Drained(s: State, k: Any) -> State:
    """[tla/machines/FailureInvalidation.tla:50]"""
    return State(phase=s.phase, ranks=s.ranks, closed=s.closed, drained=s.drained | {k})


def CanReclaim(s: State) -> bool:
    """[tla/machines/FailureInvalidation.tla:52]"""
    return s.phase == 'draining' and s.ranks <= s.drained


def Reclaim(s: State) -> State:
    """[tla/machines/FailureInvalidation.tla:53]"""
    return State(phase='reclaimed', ranks=s.ranks, closed=s.closed, drained=s.drained)


def CanForget(s: State) -> bool:
    """Nothing of it is read, or may land, any more: Decode may say that it will never speak of it again, and forget it.

    [tla/machines/FailureInvalidation.tla:56]
    """
    return s.phase == 'reclaimed'


def Forget(s: State) -> State:
    """[tla/machines/FailureInvalidation.tla:57]"""
    return Forgotten()


def Events(*, Groups: Any, Ranks: Any) -> Set[AnyEvent]:
    """[tla/machines/FailureInvalidation.tla:59]"""
    return Records(EventRanks, op=frozenset(('Own',)), ranks=Powerset(Ranks) - frozenset((EMPTY,))) | Records(EventRank, op=frozenset(('Close',)), rank=Ranks) | Records(EventRankOpen, op=frozenset(('Drained',)), rank=Ranks, open=Powerset(Groups)) | Records(Event, op=frozenset(('Validate', 'Poison', 'Drain', 'Reclaim', 'Forget')))


def Enabled(s: State, e: AnyEvent) -> bool:
    """[tla/machines/FailureInvalidation.tla:64]"""
    if e.op == 'Own':
        return CanOwn(s)
    if e.op == 'Validate':
        return CanValidate(s)
    if e.op == 'Poison':
        return CanPoison(s)
    if e.op == 'Drain':
        return CanDrain(s)
    if e.op == 'Close':
        return CanClose(s, e.rank)
    if e.op == 'Drained':
        return CanDrained(s, e.rank, e.open)
    if e.op == 'Reclaim':
        return CanReclaim(s)
    if e.op == 'Forget':
        return CanForget(s)
    return no_case()


def Step(s: State, e: AnyEvent) -> State:
    """[tla/machines/FailureInvalidation.tla:74]"""
    if e.op == 'Own':
        return Own(s, e.ranks)
    if e.op == 'Validate':
        return Validate(s)
    if e.op == 'Poison':
        return Poison(s)
    if e.op == 'Drain':
        return Drain(s)
    if e.op == 'Close':
        return Close(s, e.rank)
    if e.op == 'Drained':
        return Drained(s, e.rank)
    if e.op == 'Reclaim':
        return Reclaim(s)
    if e.op == 'Forget':
        return Forget(s)
    return no_case()
