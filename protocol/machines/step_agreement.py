"""Generated from tla/machines/StepAgreement.tla by `tidegate gen`; do not edit.

Whether the ranks of a Prefill instance may compute the next step of a
run.  The step is computed together: each rank waits inside it for all
others (a collective).  So no rank enters before every rank is ready:
has claimed its own slot, has loaded, and its run has not ended.  A
rank that entered alone would wait inside for one whose gate is shut,
and for ever for one whose run has failed, and with it all requests
behind it.

Once one has entered, all were ready and will come: a rank whose run
fails meanwhile takes part all the same, and publishes nothing.

sha256: d795801e406d69fdfc615ddf73caec023e7fd35b2683956379367b6c48f8df7f
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec

from tidegate.protocol._runtime import EMPTY, Powerset, Records, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[members, ready, entered] in tla/machines/StepAgreement.tla."""

    members: frozenset[Any]
    ready: frozenset[Any]
    entered: frozenset[Any]


class EventMember(msgspec.Struct, frozen=True, gc=False):
    """[op, member] in tla/machines/StepAgreement.tla."""

    op: str
    member: Any


RECORDS: dict[frozenset[str], Any] = {
    frozenset(('entered', 'members', 'ready')): State,
    frozenset(('member', 'op')): EventMember,
}
CONSTANTS: tuple[str, ...] = ("Members",)


def States(*, Members: Any) -> Set[State]:
    """[tla/machines/StepAgreement.tla:16]"""
    return Records(State, members=Powerset(Members), ready=Powerset(Members), entered=Powerset(Members))


def Initial(members: Any) -> State:
    """[tla/machines/StepAgreement.tla:20]"""
    return State(members=members, ready=EMPTY, entered=EMPTY)


def CanReady(s: State, m: Any) -> bool:
    """[tla/machines/StepAgreement.tla:22]"""
    return m in s.members


def Ready(s: State, m: Any) -> State:
    """[tla/machines/StepAgreement.tla:23]"""
    return State(members=s.members, ready=s.ready | {m}, entered=s.entered)


def CanWithdraw(s: State, m: Any) -> bool:
    """The run of m has ended: it does not become ready any more.

    [tla/machines/StepAgreement.tla:26]
    """
    return m in s.ready


def Withdraw(s: State, m: Any) -> State:
    """[tla/machines/StepAgreement.tla:27]"""
    return State(members=s.members, ready=s.ready - {m}, entered=s.entered)


def CanEnter(s: State) -> bool:
    """May the step be computed?

    [tla/machines/StepAgreement.tla:30]
    """
    return s.entered != EMPTY or s.ready == s.members


def Enter(s: State, m: Any) -> State:
    """[tla/machines/StepAgreement.tla:31]"""
    return State(members=s.members, ready=s.ready, entered=s.entered | {m})


def Events(*, Members: Any) -> Set[EventMember]:
    """[tla/machines/StepAgreement.tla:33]"""
    return Records(EventMember, op=frozenset(('Ready', 'Withdraw', 'Enter')), member=Members)


def Enabled(s: State, e: EventMember) -> bool:
    """[tla/machines/StepAgreement.tla:35]"""
    if e.op == 'Ready':
        return CanReady(s, e.member)
    if e.op == 'Withdraw':
        return CanWithdraw(s, e.member)
    if e.op == 'Enter':
        return CanEnter(s)
    return no_case()


def Step(s: State, e: EventMember) -> State:
    """[tla/machines/StepAgreement.tla:40]"""
    if e.op == 'Ready':
        return Ready(s, e.member)
    if e.op == 'Withdraw':
        return Withdraw(s, e.member)
    if e.op == 'Enter':
        return Enter(s, e.member)
    return no_case()
