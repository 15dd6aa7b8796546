"""The sessions of several Prefill ranks under one owner: steps are entered together, what fails at one is stopped at all."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.engine.prefill_group import PrefillGroup
from tidegate.protocol.effects import BeginLoad, BeginSave, Effect, RunEnded, Send
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import Abort, ReadDone, Ready, Retire, RunFailed, Start, TransferId
from tidegate.protocol.prefill import PrefillSession
from tidegate.protocol.topology import SlotPlan

RANKS = 3


class Rig:
    """Two layers that share a slot, two chunks; `hands` write when they are told to, and no sooner."""

    def __init__(self) -> None:
        pool: dict[tuple[int, int], Any] = {}
        plan, nonces = SlotPlan(layers=2, shared=frozenset((1, 2)), shared_slots=1), iter(range(1, 9))
        run = lambda _: next(nonces)  # noqa: E731
        self.group = PrefillGroup([
            PrefillSession(plan=plan, chunk_tokens=4, new_run=run, member=member, members=RANKS, pool=pool) for member in range(RANKS)
        ])  # fmt: skip
        self.effects: list[Effect] = []
        self.start(5)

    def start(self, attempt: int) -> None:
        self.did(self.group.receive(Start("r", attempt, 1, 8, ())))

    def did(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        return effects

    def step(self, member: int, chunk: int = 1, layer: int = 1, run: int = 1) -> TransferId:
        return TransferId(run, chunk, layer, member)

    def claim(self, run: int = 1) -> None:
        self.did(self.group.claim(run))

    def compute(self, chunk: int, layer: int, run: int = 1) -> None:
        """The whole step, at every rank, up to the end of its saves and reads."""
        self.claim(run)
        for member in range(RANKS) if chunk > 1 else ():
            self.did(self.group.load_end(self.step(member, chunk, layer, run), True))
        self.group.enter(self.step(0, chunk, layer, run))
        self.did(self.group.write(run))
        for member in range(RANKS):
            step = self.step(member, chunk, layer, run)
            if member:
                self.did(self.group.hand_wrote(step))
            self.did(self.group.layer_done(step))
            self.did(self.group.save_end(step, True))
            ready = next(e.message for e in self.effects if isinstance(e, Send) and getattr(e.message, "transfer", None) == step)
            assert isinstance(ready, Ready)
            self.did(self.group.receive(ReadDone(step, ready.slot, ready.epoch, ready.incarnation, 1)))

    def ends(self) -> list[tuple[int, str]]:
        return [(e.run, e.verdict) for e in self.effects if isinstance(e, RunEnded)]


def test_a_run_goes_through_all_ranks_and_ends_once() -> None:
    rig = Rig()
    for chunk in (1, 2):
        for layer in (1, 2):
            rig.compute(chunk, layer)
    assert rig.ends() == [(1, "done")]
    loads = [e.transfer.member for e in rig.effects if isinstance(e, BeginLoad)]
    assert loads == [0, 1, 2, 0, 1, 2], "each rank loads, each layer of the later chunk"
    assert sum(isinstance(e, BeginSave) for e in rig.effects) == 4 * RANKS


def test_of_a_run_that_is_forgotten_nothing_is_written() -> None:
    rig = Rig()
    rig.did(rig.group.receive(Abort("r", 5, "enough")))
    assert not rig.group.can_write(1), "it has failed"
    rig.did(rig.group.receive(Retire("r", 5)))
    rig.did(rig.group.forget(1))
    assert (rig.group.runs, rig.group.can_write(1)) == ({}, False)
    assert (rig.group._over, rig.group._done) == (set(), {}), "a group that has served a million runs remembers the live ones"


def test_a_step_is_entered_only_when_every_rank_has_its_load() -> None:
    rig = Rig()
    rig.compute(1, 1)
    rig.compute(1, 2)
    rig.claim()
    for member in (2, 0, 1):
        assert not rig.group.can_write(1), "a rank waits for its load"
        rig.group.load_end(rig.step(member, 2), True)
    assert rig.group.can_write(1)


def test_nothing_is_claimed_for_a_rank_that_still_writes() -> None:
    rig = Rig()
    rig.start(6)
    rig.claim()
    rig.group.enter(rig.step(0))
    rig.did(rig.group.hand_wrote(rig.step(2)))
    rig.did(rig.group.receive(Abort("r", 5, "gone", 0)))
    assert rig.ends() == [(1, "failed")]
    rig.claim(2)
    assert [session.slots[0, 1].phase for session in rig.group.sessions] == ["computing", "free", "draining"]
    rig.did(rig.group.hand_wrote(rig.step(1)))  # it had not heard
    assert rig.step(1) not in rig.group.sessions[1].readies
    assert not rig.group.was_published(rig.step(1))
    assert rig.group.was_published(rig.step(2))
    rig.claim(2)
    assert rig.group.sessions[1].slots[0, 1].phase == "computing"


def test_lane_and_nonce_of_a_run_that_is_over_stay_its_own_while_a_rank_still_writes() -> None:
    rig = Rig()
    rig.claim()
    rig.group.enter(rig.step(0))
    rig.did(rig.group.receive(Abort("r", 5, "gone", 0)))
    rig.did(rig.group.receive(Retire("r", 5)))
    for member in (2, 1):
        assert all(session.can_release_lane(1) and session.can_forget(1) for session in rig.group.sessions), "no session knows of it"
        assert not rig.group.can_release_lane(1), "its blocks would be given away under the writes of a rank"
        assert not rig.group.can_forget(1), "what the rank says next would be about a run that never was"
        rig.did(rig.group.hand_wrote(rig.step(member)))
    assert rig.group.can_release_lane(1)
    assert rig.group.can_forget(1)


@pytest.mark.parametrize("member", range(RANKS))
def test_what_fails_at_one_rank_is_stopped_at_all_and_said_once(member: int) -> None:
    rig = Rig()
    rig.compute(1, 1)
    rig.compute(1, 2)
    rig.claim()
    rig.did(rig.group.load_end(rig.step(member, 2), False))
    assert rig.ends() == [(1, "failed")]
    assert [session.runs[1].phase for session in rig.group.sessions] == ["failed"] * RANKS
    told = [e.message.member for e in rig.effects if isinstance(e, Send) and isinstance(e.message, RunFailed)]
    assert told == [member]


def test_the_others_take_a_gate_only_after_their_leader() -> None:
    rig = Rig()
    for session in rig.group.sessions[1:]:
        assert session.can_claim(1)
    rig.start(6)
    rig.did(rig.group.leader.claim(2))  # out of turn: the others' gates are free, and stay so for run 1
    rig.claim(1)
    assert [session.slots[0, 1].owner for session in rig.group.sessions] == [2, 0, 0]
    rig.claim(2)
    assert [session.slots[0, 1].owner for session in rig.group.sessions] == [2, 2, 2]


def test_a_step_that_nobody_entered_is_not_written() -> None:
    rig = Rig()
    rig.claim()
    with pytest.raises(ValueError, match="not entered"):
        rig.group.hand_wrote(rig.step(1))


def test_a_message_for_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="members 0 to 2"):
        Rig().group.receive(Abort("r", 5, "", RANKS))
