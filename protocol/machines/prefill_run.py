"""Generated from tla/machines/PrefillRun.tla by `tidegate gen`; do not edit.

One prefill of one attempt: which (chunk, layer) comes next, which of
its transfers are open, and its one verdict.

running -> computed -> done, and from either of the first two -> failed.
A run is done only when it has computed everything and every transfer
has ended with done; a transfer that ends otherwise fails the run.
A failed run computes nothing more, but its open transfers stay open
until each has its own verdict: a failure is no proof that nobody reads.

sha256: 9b5f669d7cad88e7990dab975bf1395453129824ca8bfc0840e148298e2db192
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, TypeAlias

import msgspec

from tidegate.protocol._runtime import Powerset, Records, interval, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[phase, attempt, chunks, layers, chunk, layer, open] in tla/machines/PrefillRun.tla."""

    phase: str
    attempt: Any
    chunks: int
    layers: int
    chunk: int
    layer: int
    open: frozenset[Any]


class EventAttemptChunksLayers(msgspec.Struct, frozen=True, gc=False):
    """[op, attempt, chunks, layers] in tla/machines/PrefillRun.tla."""

    op: str
    attempt: Any
    chunks: int
    layers: int


class EventTransfers(msgspec.Struct, frozen=True, gc=False):
    """[op, transfers] in tla/machines/PrefillRun.tla."""

    op: str
    transfers: frozenset[Any]


class EventTransfer(msgspec.Struct, frozen=True, gc=False):
    """[op, transfer] in tla/machines/PrefillRun.tla."""

    op: str
    transfer: Any


class Event(msgspec.Struct, frozen=True, gc=False):
    """[op] in tla/machines/PrefillRun.tla."""

    op: str


AnyEvent: TypeAlias = EventAttemptChunksLayers | Event | EventTransfer | EventTransfers

RECORDS: dict[frozenset[str], Any] = {
    frozenset(('attempt', 'chunk', 'chunks', 'layer', 'layers', 'open', 'phase')): State,
    frozenset(('attempt', 'chunks', 'layers', 'op')): EventAttemptChunksLayers,
    frozenset(('op', 'transfers')): EventTransfers,
    frozenset(('op', 'transfer')): EventTransfer,
    frozenset(('op',)): Event,
}
CONSTANTS: tuple[str, ...] = ("Attempts", "MaxChunks", "MaxLayers", "Transfers",)


def NoAttempt() -> int:
    """[tla/machines/PrefillRun.tla:15]"""
    return 0


def States(*, Attempts: Any, MaxChunks: Any, MaxLayers: Any, Transfers: Any) -> Set[State]:
    """[tla/machines/PrefillRun.tla:17]"""
    return Records(State, phase=frozenset(('idle', 'running', 'computed', 'done', 'failed')), attempt=Attempts | frozenset((NoAttempt(),)), chunks=interval(0, MaxChunks), layers=interval(0, MaxLayers), chunk=interval(1, MaxChunks + 1), layer=interval(1, MaxLayers), open=Powerset(Transfers))


def Initial() -> State:
    """[tla/machines/PrefillRun.tla:25]"""
    return State(phase='idle', attempt=NoAttempt(), chunks=0, layers=0, chunk=1, layer=1, open=frozenset())


def CanStart(s: State) -> bool:
    """[tla/machines/PrefillRun.tla:28]"""
    return s.phase == 'idle'


def Start(s: State, a: Any, chunks: int, layers: int) -> State:
    """[tla/machines/PrefillRun.tla:29]"""
    return State(phase='running', attempt=a, chunks=chunks, layers=layers, chunk=s.chunk, layer=s.layer, open=s.open)


def CanAct(s: State) -> bool:
    """May this run take or write a slot?

    [tla/machines/PrefillRun.tla:32]
    """
    return s.phase == 'running'


def CanAdvance(s: State) -> bool:
    """The step (chunk, layer) has been written and published as transfers ts.

    [tla/machines/PrefillRun.tla:35]
    """
    return s.phase == 'running'


def Advance(s: State, ts: frozenset[Any]) -> State:
    """[tla/machines/PrefillRun.tla:36]"""
    over = s.layer == s.layers
    return State(phase='computed' if over and s.chunk == s.chunks else s.phase, attempt=s.attempt, chunks=s.chunks, layers=s.layers, chunk=s.chunk + 1 if over else s.chunk, layer=1 if over else s.layer + 1, open=s.open | ts)


def CanClose(s: State, t: Any) -> bool:
    """Transfer t has its verdict.

    [tla/machines/PrefillRun.tla:44]
    """
    return t in s.open


def Close(s: State, t: Any) -> State:
    """[tla/machines/PrefillRun.tla:45]"""
    return State(phase=s.phase, attempt=s.attempt, chunks=s.chunks, layers=s.layers, chunk=s.chunk, layer=s.layer, open=s.open - {t})


def CanFail(s: State) -> bool:
    """[tla/machines/PrefillRun.tla:47]"""
    return s.phase in {'running', 'computed'}


def Fail(s: State) -> State:
    """[tla/machines/PrefillRun.tla:48]"""
    return State(phase='failed', attempt=s.attempt, chunks=s.chunks, layers=s.layers, chunk=s.chunk, layer=s.layer, open=s.open)


def CanFinish(s: State) -> bool:
    """[tla/machines/PrefillRun.tla:50]"""
    return s.phase == 'computed' and s.open == frozenset()


def Finish(s: State) -> State:
    """[tla/machines/PrefillRun.tla:51]"""
    return State(phase='done', attempt=s.attempt, chunks=s.chunks, layers=s.layers, chunk=s.chunk, layer=s.layer, open=s.open)


def Events(*, Attempts: Any, MaxChunks: Any, MaxLayers: Any, Transfers: Any) -> Set[AnyEvent]:
    """[tla/machines/PrefillRun.tla:53]"""
    return Records(EventAttemptChunksLayers, op=frozenset(('Start',)), attempt=Attempts, chunks=interval(1, MaxChunks), layers=interval(1, MaxLayers)) | Records(EventTransfers, op=frozenset(('Advance',)), transfers=Powerset(Transfers)) | Records(EventTransfer, op=frozenset(('Close',)), transfer=Transfers) | Records(Event, op=frozenset(('Fail', 'Finish')))


def Enabled(s: State, e: AnyEvent) -> bool:
    """[tla/machines/PrefillRun.tla:58]"""
    if e.op == 'Start':
        return CanStart(s)
    if e.op == 'Advance':
        return CanAdvance(s)
    if e.op == 'Close':
        return CanClose(s, e.transfer)
    if e.op == 'Fail':
        return CanFail(s)
    if e.op == 'Finish':
        return CanFinish(s)
    return no_case()


def Step(s: State, e: AnyEvent) -> State:
    """[tla/machines/PrefillRun.tla:65]"""
    if e.op == 'Start':
        return Start(s, e.attempt, e.chunks, e.layers)
    if e.op == 'Advance':
        return Advance(s, e.transfers)
    if e.op == 'Close':
        return Close(s, e.transfer)
    if e.op == 'Fail':
        return Fail(s)
    if e.op == 'Finish':
        return Finish(s)
    return no_case()
