"""Generated from tla/machines/Peer.tla by `tidegate gen`; do not edit.

One life of Decode, as Prefill knows it.

alive -> gone -> fenced -> lost;  with read_lease also gone -> lost

A life is gone when another one answers at its address.  That it is
gone proves nothing about its copies: a device may go on reading for a
process that has died.  Only when the backend has fenced it can none of
them run any more, and only then, in seed mode, is what it had not yet
read taken back.  With read_lease nothing that a dead Decode reads is
ever believed, so nothing more than its end need be known.

sha256: b907aa4c69f6e425033c4bef4dbdeeba3970848edcd68340a38d0f958bfc513c
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import Any, TypeAlias

import msgspec

from tidegate.protocol._runtime import BOOLEAN, Records, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[phase] in tla/machines/Peer.tla."""

    phase: str


class Event(msgspec.Struct, frozen=True, gc=False):
    """[op] in tla/machines/Peer.tla."""

    op: str


class EventLease(msgspec.Struct, frozen=True, gc=False):
    """[op, lease] in tla/machines/Peer.tla."""

    op: str
    lease: bool


AnyEvent: TypeAlias = EventLease | Event

RECORDS: dict[frozenset[str], Any] = {
    frozenset(('phase',)): State,
    frozenset(('op',)): Event,
    frozenset(('lease', 'op')): EventLease,
}
CONSTANTS: tuple[str, ...] = ()


@cache
def States() -> Set[State]:
    """[tla/machines/Peer.tla:15]"""
    return Records(State, phase=frozenset(('alive', 'gone', 'fenced', 'lost')))


@cache
def Initial() -> State:
    """[tla/machines/Peer.tla:17]"""
    return State(phase='alive')


def CanAsk(s: State) -> bool:
    """May this life ask for runs?

    [tla/machines/Peer.tla:20]
    """
    return s.phase == 'alive'


def CanGo(s: State) -> bool:
    """Another life has answered in its place.

    [tla/machines/Peer.tla:23]
    """
    return s.phase == 'alive'


def Go(s: State) -> State:
    """[tla/machines/Peer.tla:24]"""
    return State(phase='gone')


def CanFence(s: State) -> bool:
    """None of its copies can run any more.

    [tla/machines/Peer.tla:27]
    """
    return s.phase == 'gone'


def Fence(s: State) -> State:
    """[tla/machines/Peer.tla:28]"""
    return State(phase='fenced')


def CanLose(s: State, lease: bool) -> bool:
    """Everything that is held for it ends.

    [tla/machines/Peer.tla:31]
    """
    return s.phase in {'gone', 'fenced'} and (lease or s.phase == 'fenced')


def Lose(s: State) -> State:
    """[tla/machines/Peer.tla:33]"""
    return State(phase='lost')


@cache
def Events() -> Set[AnyEvent]:
    """[tla/machines/Peer.tla:35]"""
    return Records(Event, op=frozenset(('Go', 'Fence'))) | Records(EventLease, op=frozenset(('Lose',)), lease=BOOLEAN)


def Enabled(s: State, e: AnyEvent) -> bool:
    """[tla/machines/Peer.tla:37]"""
    if e.op == 'Go':
        return CanGo(s)
    if e.op == 'Fence':
        return CanFence(s)
    if e.op == 'Lose':
        return CanLose(s, e.lease)
    return no_case()


def Step(s: State, e: AnyEvent) -> State:
    """[tla/machines/Peer.tla:42]"""
    if e.op == 'Go':
        return Go(s)
    if e.op == 'Fence':
        return Fence(s)
    if e.op == 'Lose':
        return Lose(s)
    return no_case()
