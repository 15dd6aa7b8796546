"""Generated from tla/machines/PrefillRun.tla by `tidegate gen`; do not edit.

One prefill of one attempt: which (chunk, layer) comes next, which of
its transfers are open, and its one verdict.

running -> computed -> done, and from either of the first two -> failed.
A run is done only when it has computed everything and every transfer
has ended with done; a transfer that ends otherwise fails the run.
A failed run computes nothing more, but its open transfers stay open
until each has its own verdict: a failure is no proof that nobody reads.
It is forgotten once Decode has retired its attempt, every transfer has
its verdict, and no copy of it is under way: nobody can ask about it any
more.  Its nonce stays used.

sha256: 67740b5fd9ce95926f5326e201a323d24ac723bfa6076d01538190d5f81f95f3
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import Any, TypeAlias

import msgspec

from tidegate.protocol._runtime import BOOLEAN, EMPTY, Powerset, Records, interval, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[phase, attempt, chunks, layers, chunk, layer, open, retired] in tla/machines/PrefillRun.tla."""

    phase: str
    attempt: Any
    chunks: int
    layers: int
    chunk: int
    layer: int
    open: frozenset[Any]
    retired: bool


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


class EventHeld(msgspec.Struct, frozen=True, gc=False):
    """[op, held] in tla/machines/PrefillRun.tla."""

    op: str
    held: frozenset[Any]


class Event(msgspec.Struct, frozen=True, gc=False):
    """[op] in tla/machines/PrefillRun.tla."""

    op: str


AnyEvent: TypeAlias = EventAttemptChunksLayers | EventHeld | Event | EventTransfer | EventTransfers

RECORDS: dict[frozenset[str], Any] = {
    frozenset(('attempt', 'chunk', 'chunks', 'layer', 'layers', 'open', 'phase', 'retired')): State,
    frozenset(('attempt', 'chunks', 'layers', 'op')): EventAttemptChunksLayers,
    frozenset(('op', 'transfers')): EventTransfers,
    frozenset(('op', 'transfer')): EventTransfer,
    frozenset(('held', 'op')): EventHeld,
    frozenset(('op',)): Event,
}
CONSTANTS: tuple[str, ...] = ("Attempts", "MaxChunks", "MaxLayers", "Transfers",)


@cache
def NoAttempt() -> int:
    """[tla/machines/PrefillRun.tla:18]"""
    return 0


def States(*, Attempts: Any, MaxChunks: Any, MaxLayers: Any, Transfers: Any) -> Set[State]:
    """[tla/machines/PrefillRun.tla:20]"""
    return Records(State, phase=frozenset(('idle', 'running', 'computed', 'done', 'failed', 'forgotten')), attempt=Attempts | frozenset((NoAttempt(),)), chunks=interval(0, MaxChunks), layers=interval(0, MaxLayers), chunk=interval(1, MaxChunks + 1), layer=interval(1, MaxLayers), open=Powerset(Transfers), retired=BOOLEAN)


@cache
def Initial() -> State:
    """[tla/machines/PrefillRun.tla:29]"""
    return State(phase='idle', attempt=NoAttempt(), chunks=0, layers=0, chunk=1, layer=1, open=EMPTY, retired=False)


@cache
def Forgotten() -> State:
    """All that is left of a run: its nonce was used.

    [tla/machines/PrefillRun.tla:32]
    """
    return (lambda _0: State(phase='forgotten', attempt=_0.attempt, chunks=_0.chunks, layers=_0.layers, chunk=_0.chunk, layer=_0.layer, open=_0.open, retired=_0.retired))(Initial())


def CanStart(s: State) -> bool:
    """[tla/machines/PrefillRun.tla:34]"""
    return s.phase == 'idle'


def Start(s: State, a: Any, chunks: int, layers: int) -> State:
    """[tla/machines/PrefillRun.tla:35]"""
    return State(phase='running', attempt=a, chunks=chunks, layers=layers, chunk=s.chunk, layer=s.layer, open=s.open, retired=s.retired)


def CanAct(s: State) -> bool:
    """May this run take or write a slot?

    [tla/machines/PrefillRun.tla:38]
    """
    return s.phase == 'running'


def CanGiveWay(s: State, own: Any, idle: Any, stored: Any) -> bool:
    """Between two chunks the run may leave the slots of its own, which it would have extended, and load them again when it goes on.
    own: those slots; idle: the slots that it may extend, so none of these is taken for its next chunk; stored: chunks of it that the pool has.

    [tla/machines/PrefillRun.tla:42]
    """
    return s.phase == 'running' and s.layer == 1 and own <= idle and interval(1, s.chunk - 1) <= stored


def CanAdvance(s: State) -> bool:
    """The step (chunk, layer) has been written and published as transfers ts.

    [tla/machines/PrefillRun.tla:48]
    """
    return s.phase == 'running'


def Advance(s: State, ts: frozenset[Any]) -> State:
    """[tla/machines/PrefillRun.tla:49]"""
    over = s.layer == s.layers
    return State(phase='computed' if over and s.chunk == s.chunks else s.phase, attempt=s.attempt, chunks=s.chunks, layers=s.layers, chunk=s.chunk + 1 if over else s.chunk, layer=1 if over else s.layer + 1, open=s.open | ts, retired=s.retired)


def CanClose(s: State, t: Any) -> bool:
    """Transfer t has its verdict.

    [tla/machines/PrefillRun.tla:57]
    """
    return t in s.open


def Close(s: State, t: Any) -> State:
    """[tla/machines/PrefillRun.tla:58]"""
    return State(phase=s.phase, attempt=s.attempt, chunks=s.chunks, layers=s.layers, chunk=s.chunk, layer=s.layer, open=s.open - {t}, retired=s.retired)


def CanFail(s: State) -> bool:
    """[tla/machines/PrefillRun.tla:60]"""
    return s.phase in {'running', 'computed'}


def Fail(s: State) -> State:
    """[tla/machines/PrefillRun.tla:61]"""
    return State(phase='failed', attempt=s.attempt, chunks=s.chunks, layers=s.layers, chunk=s.chunk, layer=s.layer, open=s.open, retired=s.retired)


def CanFinish(s: State) -> bool:
    """[tla/machines/PrefillRun.tla:63]"""
    return s.phase == 'computed' and s.open == EMPTY


def Finish(s: State) -> State:
    """[tla/machines/PrefillRun.tla:64]"""
    return State(phase='done', attempt=s.attempt, chunks=s.chunks, layers=s.layers, chunk=s.chunk, layer=s.layer, open=s.open, retired=s.retired)


def CanRetire(s: State) -> bool:
    """RETIRE: nobody will read anything of this run, or ask about it, again.  It ends as it would have.

    [tla/machines/PrefillRun.tla:67]
    """
    return s.phase not in {'idle', 'forgotten'}


def Retire(s: State) -> State:
    """[tla/machines/PrefillRun.tla:68]"""
    return State(phase=s.phase, attempt=s.attempt, chunks=s.chunks, layers=s.layers, chunk=s.chunk, layer=s.layer, open=s.open, retired=True)


def Untold(s: State) -> bool:
    """Decode may not know that it has failed: worth saying again.

    [tla/machines/PrefillRun.tla:71]
    """
    return s.phase == 'failed' and not s.retired


def CanForget(s: State, held: frozenset[Any]) -> bool:
    """held: the attentions, saves and loads of this run that are under way.

    [tla/machines/PrefillRun.tla:74]
    """
    return s.retired and s.phase in {'done', 'failed'} and s.open == EMPTY and held == EMPTY


def Forget(s: State) -> State:
    """[tla/machines/PrefillRun.tla:78]"""
    return Forgotten()


def Events(*, Attempts: Any, MaxChunks: Any, MaxLayers: Any, Transfers: Any) -> Set[AnyEvent]:
    """[tla/machines/PrefillRun.tla:80]"""
    return Records(EventAttemptChunksLayers, op=frozenset(('Start',)), attempt=Attempts, chunks=interval(1, MaxChunks), layers=interval(1, MaxLayers)) | Records(EventTransfers, op=frozenset(('Advance',)), transfers=Powerset(Transfers)) | Records(EventTransfer, op=frozenset(('Close',)), transfer=Transfers) | Records(EventHeld, op=frozenset(('Forget',)), held=Powerset(Transfers)) | Records(Event, op=frozenset(('Fail', 'Finish', 'Retire')))


def Enabled(s: State, e: AnyEvent) -> bool:
    """[tla/machines/PrefillRun.tla:86]"""
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
    if e.op == 'Retire':
        return CanRetire(s)
    if e.op == 'Forget':
        return CanForget(s, e.held)
    return no_case()


def Step(s: State, e: AnyEvent) -> State:
    """[tla/machines/PrefillRun.tla:95]"""
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
    if e.op == 'Retire':
        return Retire(s)
    if e.op == 'Forget':
        return Forget(s)
    return no_case()
