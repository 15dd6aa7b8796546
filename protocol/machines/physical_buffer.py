"""Generated from tla/machines/PhysicalBuffer.tla by `tidegate gen`; do not edit.

The gate of one physical layer buffer (a slot) of a Prefill rank.

Many layers share the slot, one after the other.  Each new owner begins
a new epoch.  The contents of an epoch may be overwritten only when
everybody who needs them has ended: the attention that computes with
them, the save to the host pool, every remote read (transfer) that was
named for this epoch, and the owner itself, if it wants to write more.
Those are kept as sets of names, never as counters: a second report of
one reader cannot stand for the first report of another.

A load from the pool overwrites the slot too, so it passes the same
gate.  A slot of a layer that shares with nobody (an independent layer)
is claimed once a run and extended chunk by chunk: new rows overwrite
nothing, so Extend asks for ownership and not for an open gate.

free -> loading -> computing -> draining -> free

sha256: 2579747e2f227dcd9cc677a6985abf0bc952e0b2191d98b1acb5e5d478341f8c
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import Any, TypeAlias

import msgspec

from tidegate.protocol._runtime import BOOLEAN, EMPTY, Powerset, Records, interval, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[phase, epoch, owner, attending, saves, transfers] in tla/machines/PhysicalBuffer.tla."""

    phase: str
    epoch: int
    owner: Any
    attending: frozenset[Any]
    saves: frozenset[Any]
    transfers: frozenset[Any]


class EventRunLoad(msgspec.Struct, frozen=True, gc=False):
    """[op, run, load] in tla/machines/PhysicalBuffer.tla."""

    op: str
    run: Any
    load: bool


class EventRun(msgspec.Struct, frozen=True, gc=False):
    """[op, run] in tla/machines/PhysicalBuffer.tla."""

    op: str
    run: Any


class EventRunWorkTransfersKeep(msgspec.Struct, frozen=True, gc=False):
    """[op, run, work, transfers, keep] in tla/machines/PhysicalBuffer.tla."""

    op: str
    run: Any
    work: Any
    transfers: frozenset[Any]
    keep: bool


class EventWork(msgspec.Struct, frozen=True, gc=False):
    """[op, work] in tla/machines/PhysicalBuffer.tla."""

    op: str
    work: Any


class EventTransfer(msgspec.Struct, frozen=True, gc=False):
    """[op, transfer] in tla/machines/PhysicalBuffer.tla."""

    op: str
    transfer: Any


class Event(msgspec.Struct, frozen=True, gc=False):
    """[op] in tla/machines/PhysicalBuffer.tla."""

    op: str


AnyEvent: TypeAlias = EventRunWorkTransfersKeep | EventRunLoad | Event | EventRun | EventTransfer | EventWork

RECORDS: dict[frozenset[str], Any] = {
    frozenset(('attending', 'epoch', 'owner', 'phase', 'saves', 'transfers')): State,
    frozenset(('load', 'op', 'run')): EventRunLoad,
    frozenset(('op', 'run')): EventRun,
    frozenset(('keep', 'op', 'run', 'transfers', 'work')): EventRunWorkTransfersKeep,
    frozenset(('op', 'work')): EventWork,
    frozenset(('op', 'transfer')): EventTransfer,
    frozenset(('op',)): Event,
}
CONSTANTS: tuple[str, ...] = ("MaxEpoch", "Runs", "Transfers", "Works",)


@cache
def NoRun() -> int:
    """[tla/machines/PhysicalBuffer.tla:23]"""
    return 0


def States(*, MaxEpoch: Any, Runs: Any, Transfers: Any, Works: Any) -> Set[State]:
    """[tla/machines/PhysicalBuffer.tla:25]"""
    return Records(State, phase=frozenset(('free', 'loading', 'computing', 'draining')), epoch=interval(0, MaxEpoch), owner=Runs | frozenset((NoRun(),)), attending=Powerset(Works), saves=Powerset(Works), transfers=Powerset(Transfers))


@cache
def Initial() -> State:
    """[tla/machines/PhysicalBuffer.tla:32]"""
    return State(phase='free', epoch=0, owner=NoRun(), attending=EMPTY, saves=EMPTY, transfers=EMPTY)


def CanClaim(s: State) -> bool:
    """THE GATE.  Run r takes the slot for new contents; load says that a load from the pool comes first.

    [tla/machines/PhysicalBuffer.tla:36]
    """
    return s.phase == 'free'


def Claim(s: State, r: Any, load: bool) -> State:
    """[tla/machines/PhysicalBuffer.tla:37]"""
    return State(phase='loading' if load else 'computing', epoch=s.epoch + 1, owner=r, attending=s.attending, saves=s.saves, transfers=s.transfers)


def CanLoadEnded(s: State) -> bool:
    """The load has ended.  If the owner has left meanwhile, nobody will compute here.

    [tla/machines/PhysicalBuffer.tla:41]
    """
    return s.phase == 'loading'


def LoadEnded(s: State) -> State:
    """[tla/machines/PhysicalBuffer.tla:42]"""
    return State(phase='draining' if s.owner == NoRun() else 'computing', epoch=s.epoch, owner=s.owner, attending=s.attending, saves=s.saves, transfers=s.transfers)


def CanExtend(s: State, r: Any) -> bool:
    """The owner appends another chunk to an independent layer.

    [tla/machines/PhysicalBuffer.tla:45]
    """
    return s.phase == 'draining' and s.owner == r


def Extend(s: State, r: Any) -> State:
    """[tla/machines/PhysicalBuffer.tla:46]"""
    return State(phase='computing', epoch=s.epoch, owner=s.owner, attending=s.attending, saves=s.saves, transfers=s.transfers)


def CanWrite(s: State, r: Any) -> bool:
    """The owner has written its rows (kv_written).  From here on the contents are needed by attention w, by save w
    and by the transfers ts; keep says that the owner will extend them.

    [tla/machines/PhysicalBuffer.tla:50]
    """
    return s.phase == 'computing' and s.owner == r


def Write(s: State, w: Any, ts: frozenset[Any], keep: bool) -> State:
    """[tla/machines/PhysicalBuffer.tla:51]"""
    return State(phase='draining', epoch=s.epoch, owner=s.owner if keep else NoRun(), attending=s.attending | {w}, saves=s.saves | {w}, transfers=s.transfers | ts)


def CanAttended(s: State, w: Any) -> bool:
    """Attention w no longer needs the contents (layer_done).

    [tla/machines/PhysicalBuffer.tla:58]
    """
    return w in s.attending


def Attended(s: State, w: Any) -> State:
    """[tla/machines/PhysicalBuffer.tla:59]"""
    return State(phase=s.phase, epoch=s.epoch, owner=s.owner, attending=s.attending - {w}, saves=s.saves, transfers=s.transfers)


def CanSaveEnded(s: State, w: Any) -> bool:
    """Save w has ended, well or badly.

    [tla/machines/PhysicalBuffer.tla:62]
    """
    return w in s.saves


def SaveEnded(s: State, w: Any) -> State:
    """[tla/machines/PhysicalBuffer.tla:63]"""
    return State(phase=s.phase, epoch=s.epoch, owner=s.owner, attending=s.attending, saves=s.saves - {w}, transfers=s.transfers)


def CanTransferEnded(s: State, t: Any) -> bool:
    """Transfer t has a verdict.

    [tla/machines/PhysicalBuffer.tla:66]
    """
    return t in s.transfers


def TransferEnded(s: State, t: Any) -> State:
    """[tla/machines/PhysicalBuffer.tla:67]"""
    return State(phase=s.phase, epoch=s.epoch, owner=s.owner, attending=s.attending, saves=s.saves, transfers=s.transfers - {t})


def CanLeave(s: State, r: Any) -> bool:
    """The owner will write no more: it failed, or it ended.

    [tla/machines/PhysicalBuffer.tla:70]
    """
    return s.owner == r


def Leave(s: State, r: Any) -> State:
    """[tla/machines/PhysicalBuffer.tla:71]"""
    return State(phase='draining' if s.phase == 'computing' else s.phase, epoch=s.epoch, owner=NoRun(), attending=s.attending, saves=s.saves, transfers=s.transfers)


def CanRelease(s: State) -> bool:
    """The gate opens.

    [tla/machines/PhysicalBuffer.tla:75]
    """
    return (
        s.phase == 'draining'
        and s.owner == NoRun()
        and s.attending == EMPTY
        and s.saves == EMPTY
        and s.transfers == EMPTY
    )


def Release(s: State) -> State:
    """[tla/machines/PhysicalBuffer.tla:80]"""
    return State(phase='free', epoch=s.epoch, owner=s.owner, attending=s.attending, saves=s.saves, transfers=s.transfers)


def Events(*, Runs: Any, Transfers: Any, Works: Any) -> Set[AnyEvent]:
    """[tla/machines/PhysicalBuffer.tla:82]"""
    return Records(EventRunLoad, op=frozenset(('Claim',)), run=Runs, load=BOOLEAN) | Records(EventRun, op=frozenset(('Extend', 'Leave')), run=Runs) | Records(EventRunWorkTransfersKeep, op=frozenset(('Write',)), run=Runs, work=Works, transfers=Powerset(Transfers), keep=BOOLEAN) | Records(EventWork, op=frozenset(('Attended', 'SaveEnded')), work=Works) | Records(EventTransfer, op=frozenset(('TransferEnded',)), transfer=Transfers) | Records(Event, op=frozenset(('LoadEnded', 'Release')))


def Enabled(s: State, e: AnyEvent, *, MaxEpoch: Any) -> bool:
    """[tla/machines/PhysicalBuffer.tla:89]"""
    if e.op == 'Claim':
        return CanClaim(s) and s.epoch < MaxEpoch
    if e.op == 'LoadEnded':
        return CanLoadEnded(s)
    if e.op == 'Extend':
        return CanExtend(s, e.run)
    if e.op == 'Write':
        return CanWrite(s, e.run)
    if e.op == 'Attended':
        return CanAttended(s, e.work)
    if e.op == 'SaveEnded':
        return CanSaveEnded(s, e.work)
    if e.op == 'TransferEnded':
        return CanTransferEnded(s, e.transfer)
    if e.op == 'Leave':
        return CanLeave(s, e.run)
    if e.op == 'Release':
        return CanRelease(s)
    return no_case()


def Step(s: State, e: AnyEvent) -> State:
    """[tla/machines/PhysicalBuffer.tla:100]"""
    if e.op == 'Claim':
        return Claim(s, e.run, e.load)
    if e.op == 'LoadEnded':
        return LoadEnded(s)
    if e.op == 'Extend':
        return Extend(s, e.run)
    if e.op == 'Write':
        return Write(s, e.work, e.transfers, e.keep)
    if e.op == 'Attended':
        return Attended(s, e.work)
    if e.op == 'SaveEnded':
        return SaveEnded(s, e.work)
    if e.op == 'TransferEnded':
        return TransferEnded(s, e.transfer)
    if e.op == 'Leave':
        return Leave(s, e.run)
    if e.op == 'Release':
        return Release(s)
    return no_case()
