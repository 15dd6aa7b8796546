"""Generated from tla/machines/Transfer.tla by `tidegate gen`; do not edit.

One remote read that one Decode rank owes for one (slot, epoch, run), as
Prefill sees it.  It is held from its publication until its one verdict:
  done     Decode reported READ_DONE while the transfer was held;
  failed   Decode reported READ_FAILED, or refused to read;
  revoked  Prefill took the buffer back (only with read_lease);
  lost     the Decode that was to read it is gone for good (Peer).
A verdict never changes.  Whatever report arrives, however late and how
often, Reply gives the same answer, for ever: COMMITTED exactly if the
verdict is done.  Decode believes a read only after COMMITTED, so a
revoked buffer may be overwritten although no word came from Decode.
When to revoke is a policy of the session (seed mode: never); that it is
safe is this machine's doing.

sha256: 59c166c8cf9341280d653099da710b973df94b4bc36d424274a45089eba6b281
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import Any

import msgspec

from tidegate.protocol._runtime import Records, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[phase] in tla/machines/Transfer.tla."""

    phase: str


class Event(msgspec.Struct, frozen=True, gc=False):
    """[op] in tla/machines/Transfer.tla."""

    op: str


RECORDS: dict[frozenset[str], Any] = {
    frozenset(('phase',)): State,
    frozenset(('op',)): Event,
}
CONSTANTS: tuple[str, ...] = ()


@cache
def States() -> Set[State]:
    """[tla/machines/Transfer.tla:17]"""
    return Records(State, phase=frozenset(('idle', 'held', 'done', 'failed', 'revoked', 'lost')))


@cache
def Initial() -> State:
    """[tla/machines/Transfer.tla:19]"""
    return State(phase='idle')


def CanPublish(s: State) -> bool:
    """READY is sent for the first time.

    [tla/machines/Transfer.tla:22]
    """
    return s.phase == 'idle'


def Publish(s: State) -> State:
    """[tla/machines/Transfer.tla:23]"""
    return State(phase='held')


def CanDone(s: State) -> bool:
    """READ_DONE arrived, and the contents were still held: what was read is right.

    [tla/machines/Transfer.tla:26]
    """
    return s.phase == 'held'


def Done(s: State) -> State:
    """[tla/machines/Transfer.tla:27]"""
    return State(phase='done')


def CanFail(s: State) -> bool:
    """READ_FAILED arrived: Decode will not use what it read, if it read.

    [tla/machines/Transfer.tla:30]
    """
    return s.phase == 'held'


def Fail(s: State) -> State:
    """[tla/machines/Transfer.tla:31]"""
    return State(phase='failed')


def CanRevoke(s: State) -> bool:
    """Prefill takes the buffer back.

    [tla/machines/Transfer.tla:34]
    """
    return s.phase == 'held'


def Revoke(s: State) -> State:
    """[tla/machines/Transfer.tla:35]"""
    return State(phase='revoked')


def CanLose(s: State) -> bool:
    """The Decode that was to read it is gone, and will never report.

    [tla/machines/Transfer.tla:38]
    """
    return s.phase == 'held'


def Lose(s: State) -> State:
    """[tla/machines/Transfer.tla:39]"""
    return State(phase='lost')


def Reply(s: State) -> str:
    """The answer to any report about this transfer.

    [tla/machines/Transfer.tla:42]
    """
    if s.phase == 'done':
        return 'COMMITTED'
    return 'REVOKED'


@cache
def Events() -> Set[Event]:
    """[tla/machines/Transfer.tla:44]"""
    return Records(Event, op=frozenset(('Publish', 'Done', 'Fail', 'Revoke', 'Lose')))


def Enabled(s: State, e: Event) -> bool:
    """[tla/machines/Transfer.tla:46]"""
    if e.op == 'Publish':
        return CanPublish(s)
    if e.op == 'Done':
        return CanDone(s)
    if e.op == 'Fail':
        return CanFail(s)
    if e.op == 'Revoke':
        return CanRevoke(s)
    if e.op == 'Lose':
        return CanLose(s)
    return no_case()


def Step(s: State, e: Event) -> State:
    """[tla/machines/Transfer.tla:53]"""
    if e.op == 'Publish':
        return Publish(s)
    if e.op == 'Done':
        return Done(s)
    if e.op == 'Fail':
        return Fail(s)
    if e.op == 'Revoke':
        return Revoke(s)
    if e.op == 'Lose':
        return Lose(s)
    return no_case()
