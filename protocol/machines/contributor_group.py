"""Generated from tla/machines/ContributorGroup.tla by `tidegate gen`; do not edit.

The Prefill ranks (members) that feed one Decode rank with one
(chunk, layer) of an attempt.  The layer has succeeded only when every
member's read is committed; a member with no blocks still ends with a
verdict.  It has failed as soon as one member failed, but memory may be
given away only when it is quiet: no member's copy may still land.

sha256: 31252d16cfb4c6c7336adac2a456077423578ca8e99bb0882f877da917a6253b
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec

from tidegate.protocol._runtime import EMPTY, Powerset, Records, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[members, reading, done, failed] in tla/machines/ContributorGroup.tla."""

    members: frozenset[Any]
    reading: frozenset[Any]
    done: frozenset[Any]
    failed: frozenset[Any]


class EventMember(msgspec.Struct, frozen=True, gc=False):
    """[op, member] in tla/machines/ContributorGroup.tla."""

    op: str
    member: Any


RECORDS: dict[frozenset[str], Any] = {
    frozenset(('done', 'failed', 'members', 'reading')): State,
    frozenset(('member', 'op')): EventMember,
}
CONSTANTS: tuple[str, ...] = ("Members",)


def States(*, Members: Any) -> Set[State]:
    """[tla/machines/ContributorGroup.tla:11]"""
    return Records(State, members=Powerset(Members), reading=Powerset(Members), done=Powerset(Members), failed=Powerset(Members))


def Initial(members: Any) -> State:
    """[tla/machines/ContributorGroup.tla:16]"""
    return State(members=members, reading=EMPTY, done=EMPTY, failed=EMPTY)


def CanBegin(s: State, m: Any) -> bool:
    """[tla/machines/ContributorGroup.tla:18]"""
    return m in s.members


def Begin(s: State, m: Any) -> State:
    """[tla/machines/ContributorGroup.tla:19]"""
    return State(members=s.members, reading=s.reading | {m}, done=s.done, failed=s.failed)


def CanLanded(s: State, m: Any) -> bool:
    """m's copy is known to have stopped.

    [tla/machines/ContributorGroup.tla:22]
    """
    return m in s.reading


def Landed(s: State, m: Any) -> State:
    """[tla/machines/ContributorGroup.tla:23]"""
    return State(members=s.members, reading=s.reading - {m}, done=s.done, failed=s.failed)


def CanDone(s: State, m: Any) -> bool:
    """[tla/machines/ContributorGroup.tla:25]"""
    return m in s.members and m not in s.failed


def Done(s: State, m: Any) -> State:
    """[tla/machines/ContributorGroup.tla:26]"""
    return State(members=s.members, reading=s.reading, done=s.done | {m}, failed=s.failed)


def CanFail(s: State, m: Any) -> bool:
    """[tla/machines/ContributorGroup.tla:28]"""
    return m in s.members and m not in s.done


def Fail(s: State, m: Any) -> State:
    """[tla/machines/ContributorGroup.tla:29]"""
    return State(members=s.members, reading=s.reading, done=s.done, failed=s.failed | {m})


def CanSucceed(s: State) -> bool:
    """[tla/machines/ContributorGroup.tla:31]"""
    return s.done == s.members


def CanQuiet(s: State) -> bool:
    """[tla/machines/ContributorGroup.tla:32]"""
    return s.reading == EMPTY


def Events(*, Members: Any) -> Set[EventMember]:
    """[tla/machines/ContributorGroup.tla:34]"""
    return Records(EventMember, op=frozenset(('Begin', 'Landed', 'Done', 'Fail')), member=Members)


def Enabled(s: State, e: EventMember) -> bool:
    """[tla/machines/ContributorGroup.tla:36]"""
    if e.op == 'Begin':
        return CanBegin(s, e.member)
    if e.op == 'Landed':
        return CanLanded(s, e.member)
    if e.op == 'Done':
        return CanDone(s, e.member)
    if e.op == 'Fail':
        return CanFail(s, e.member)
    return no_case()


def Step(s: State, e: EventMember) -> State:
    """[tla/machines/ContributorGroup.tla:42]"""
    if e.op == 'Begin':
        return Begin(s, e.member)
    if e.op == 'Landed':
        return Landed(s, e.member)
    if e.op == 'Done':
        return Done(s, e.member)
    if e.op == 'Fail':
        return Fail(s, e.member)
    return no_case()
