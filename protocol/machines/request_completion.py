"""Generated from tla/machines/RequestCompletion.tla by `tidegate gen`; do not edit.

One attempt on Decode, from its admission to its end: when may it be
advertised, when has everything arrived, when may inference begin.

allocated -> registered -> advertised -> receiving -> complete
          -> scheduled -> released;  failed from all before scheduled

Complete needs every (chunk, layer) of the bound run.  The number of
chunks is known from the final READY.  The last chunk alone proves
nothing: no gate orders the chunks of an independent layer.

sha256: 650cef2e2d6e1d54fe62692ad21e0889d0988ff5e86c18f8b291be7a74b4dc5e
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import Any, TypeAlias

import msgspec

from tidegate.protocol._runtime import EMPTY, Powerset, Records, interval, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[phase, layers, chunks, got] in tla/machines/RequestCompletion.tla."""

    phase: str
    layers: frozenset[Any]
    chunks: int
    got: frozenset[tuple[int, Any]]


class EventLayers(msgspec.Struct, frozen=True, gc=False):
    """[op, layers] in tla/machines/RequestCompletion.tla."""

    op: str
    layers: frozenset[Any]


class EventChunks(msgspec.Struct, frozen=True, gc=False):
    """[op, chunks] in tla/machines/RequestCompletion.tla."""

    op: str
    chunks: int


class EventChunkLayer(msgspec.Struct, frozen=True, gc=False):
    """[op, chunk, layer] in tla/machines/RequestCompletion.tla."""

    op: str
    chunk: int
    layer: Any


class Event(msgspec.Struct, frozen=True, gc=False):
    """[op] in tla/machines/RequestCompletion.tla."""

    op: str


AnyEvent: TypeAlias = EventChunkLayer | EventChunks | EventLayers | Event

RECORDS: dict[frozenset[str], Any] = {
    frozenset(('chunks', 'got', 'layers', 'phase')): State,
    frozenset(('layers', 'op')): EventLayers,
    frozenset(('chunks', 'op')): EventChunks,
    frozenset(('chunk', 'layer', 'op')): EventChunkLayer,
    frozenset(('op',)): Event,
}
CONSTANTS: tuple[str, ...] = ("Layers", "MaxChunks",)


def States(*, Layers: Any, MaxChunks: Any) -> Set[State]:
    """[tla/machines/RequestCompletion.tla:16]"""
    return Records(State, phase=frozenset(('idle', 'allocated', 'registered', 'advertised', 'receiving', 'complete', 'failed', 'scheduled', 'released')), layers=Powerset(Layers), chunks=interval(0, MaxChunks), got=Powerset(frozenset((__1, __2) for __1 in interval(1, MaxChunks) for __2 in Layers)))


@cache
def Initial() -> State:
    """[tla/machines/RequestCompletion.tla:22]"""
    return State(phase='idle', layers=EMPTY, chunks=0, got=EMPTY)


def CanAllocate(s: State) -> bool:
    """The attempt owns blocks.

    [tla/machines/RequestCompletion.tla:25]
    """
    return s.phase == 'idle'


def Allocate(s: State, layers: frozenset[Any]) -> State:
    """[tla/machines/RequestCompletion.tla:26]"""
    return State(phase='allocated', layers=layers, chunks=s.chunks, got=s.got)


def CanRegister(s: State) -> bool:
    """The backend knows the destination.

    [tla/machines/RequestCompletion.tla:29]
    """
    return s.phase == 'allocated'


def Register(s: State) -> State:
    """[tla/machines/RequestCompletion.tla:30]"""
    return State(phase='registered', layers=s.layers, chunks=s.chunks, got=s.got)


def CanAdvertise(s: State) -> bool:
    """Tell Prefill.

    [tla/machines/RequestCompletion.tla:33]
    """
    return s.phase == 'registered'


def Advertise(s: State) -> State:
    """[tla/machines/RequestCompletion.tla:34]"""
    return State(phase='advertised', layers=s.layers, chunks=s.chunks, got=s.got)


def CanReceive(s: State) -> bool:
    """The first READY of the bound run.

    [tla/machines/RequestCompletion.tla:37]
    """
    return s.phase == 'advertised'


def Receive(s: State) -> State:
    """[tla/machines/RequestCompletion.tla:38]"""
    return State(phase='receiving', layers=s.layers, chunks=s.chunks, got=s.got)


def CanCount(s: State) -> bool:
    """The final READY carries the number of chunks.

    [tla/machines/RequestCompletion.tla:41]
    """
    return s.chunks == 0


def Count(s: State, n: int) -> State:
    """[tla/machines/RequestCompletion.tla:42]"""
    return State(phase=s.phase, layers=s.layers, chunks=n, got=s.got)


def CanGot(s: State) -> bool:
    """All members of (c, l) are committed.

    [tla/machines/RequestCompletion.tla:45]
    """
    return s.phase == 'receiving'


def Got(s: State, c: int, l: Any) -> State:
    """[tla/machines/RequestCompletion.tla:46]"""
    return State(phase=s.phase, layers=s.layers, chunks=s.chunks, got=s.got | {(c, l)})


def CanComplete(s: State) -> bool:
    """The last chunk is looked at first: it comes last, so that an attempt that still waits is told so at once.

    [tla/machines/RequestCompletion.tla:49]
    """
    return (
        s.phase == 'receiving'
        and s.chunks > 0
        and all(all((s.chunks - k, l) in s.got for l in s.layers) for k in range(0, s.chunks - 1 + 1))
    )


def Complete(s: State) -> State:
    """[tla/machines/RequestCompletion.tla:52]"""
    return State(phase='complete', layers=s.layers, chunks=s.chunks, got=s.got)


def Depends(s: State) -> bool:
    """Does it wait for one life of Prefill, from which it has begun to read?  Before that any may serve it.

    [tla/machines/RequestCompletion.tla:55]
    """
    return s.phase == 'receiving'


def CanFail(s: State) -> bool:
    """[tla/machines/RequestCompletion.tla:57]"""
    return s.phase in {'allocated', 'registered', 'advertised', 'receiving', 'complete'}


def Fail(s: State) -> State:
    """[tla/machines/RequestCompletion.tla:58]"""
    return State(phase='failed', layers=s.layers, chunks=s.chunks, got=s.got)


def CanSchedule(s: State) -> bool:
    """Inference may begin.

    [tla/machines/RequestCompletion.tla:61]
    """
    return s.phase == 'complete'


def Schedule(s: State) -> State:
    """[tla/machines/RequestCompletion.tla:62]"""
    return State(phase='scheduled', layers=s.layers, chunks=s.chunks, got=s.got)


def CanFinish(s: State) -> bool:
    """Inference has ended.

    [tla/machines/RequestCompletion.tla:65]
    """
    return s.phase == 'scheduled'


def Finish(s: State) -> State:
    """[tla/machines/RequestCompletion.tla:66]"""
    return State(phase='released', layers=s.layers, chunks=s.chunks, got=s.got)


def Events(*, Layers: Any, MaxChunks: Any) -> Set[AnyEvent]:
    """[tla/machines/RequestCompletion.tla:68]"""
    return Records(EventLayers, op=frozenset(('Allocate',)), layers=Powerset(Layers) - frozenset((EMPTY,))) | Records(EventChunks, op=frozenset(('Count',)), chunks=interval(1, MaxChunks)) | Records(EventChunkLayer, op=frozenset(('Got',)), chunk=interval(1, MaxChunks), layer=Layers) | Records(Event, op=frozenset(('Register', 'Advertise', 'Receive', 'Complete', 'Fail', 'Schedule', 'Finish')))


def Enabled(s: State, e: AnyEvent) -> bool:
    """[tla/machines/RequestCompletion.tla:73]"""
    if e.op == 'Allocate':
        return CanAllocate(s)
    if e.op == 'Register':
        return CanRegister(s)
    if e.op == 'Advertise':
        return CanAdvertise(s)
    if e.op == 'Receive':
        return CanReceive(s)
    if e.op == 'Count':
        return CanCount(s)
    if e.op == 'Got':
        return CanGot(s)
    if e.op == 'Complete':
        return CanComplete(s)
    if e.op == 'Fail':
        return CanFail(s)
    if e.op == 'Schedule':
        return CanSchedule(s)
    if e.op == 'Finish':
        return CanFinish(s)
    return no_case()


def Step(s: State, e: AnyEvent) -> State:
    """[tla/machines/RequestCompletion.tla:85]"""
    if e.op == 'Allocate':
        return Allocate(s, e.layers)
    if e.op == 'Register':
        return Register(s)
    if e.op == 'Advertise':
        return Advertise(s)
    if e.op == 'Receive':
        return Receive(s)
    if e.op == 'Count':
        return Count(s, e.chunks)
    if e.op == 'Got':
        return Got(s, e.chunk, e.layer)
    if e.op == 'Complete':
        return Complete(s)
    if e.op == 'Fail':
        return Fail(s)
    if e.op == 'Schedule':
        return Schedule(s)
    if e.op == 'Finish':
        return Finish(s)
    return no_case()
