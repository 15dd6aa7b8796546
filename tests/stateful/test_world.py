"""hypothesis on the simulator's harness: interleavings, duplicates, losses, aborts; it shrinks what it finds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import Effect
from tidegate.protocol.messages import TransferId
from tidegate.spec.bounds import Bounds
from tidegate.spec.schedule import drain
from tidegate.spec.world import Label, World

HOSTILE = {"loss": 2, "dup": 2, "fail": 1, "unknown": 1, "save": 1, "load": 1, "evict": 1, "abort": 1}


class Hostile(RuleBasedStateMachine):
    """Rules are what the World offers, by kind, so that shrinking drops what does not matter."""

    decode: type[DecodeSession] = DecodeSession

    @initialize(chunks=st.integers(1, 2), lease=st.booleans(), blocks=st.integers(1, 2))
    def begin(self, chunks: int, lease: bool, blocks: int) -> None:
        self.world = World(Bounds(
            layers=3, shared=frozenset((1, 2)), chunks=chunks, runs=4, attempts=2, blocks=blocks, read_lease=lease,
            revoke=int(lease), **HOSTILE,  # type: ignore[arg-type]
        ), decode=self.decode)  # fmt: skip

    def _take(self, data: Any, moves: list[Label]) -> None:
        if moves:
            self.world.apply(data.draw(st.sampled_from(moves)))
            assert not self.world.violations()

    @precondition(lambda self: hasattr(self, "world"))
    @rule(data=st.data())
    def progress(self, data: Any) -> None:
        w = self.world
        self._take(data, [*w.worker(), *w.device(), *w.remote(), *w.client()])

    @precondition(lambda self: hasattr(self, "world"))
    @rule(data=st.data())
    def message(self, data: Any) -> None:
        self._take(data, list(self.world.network()))

    @precondition(lambda self: hasattr(self, "world"))
    @rule(data=st.data())
    def again_or_fault(self, data: Any) -> None:
        self._take(data, [*self.world.resend(), *self.world.faults()])

    def teardown(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.violations()


CI = settings(max_examples=80, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))


def test_hostile_world() -> None:
    run_state_machine_as_test(Hostile, settings=CI)


class ReclaimsEarly(DecodeSession):
    def read_end(self, transfer: TransferId, how: str, reason: str = "") -> list[Effect]:
        return super().read_end(transfer, "quiet" if how == "unknown" else how, reason)


def test_a_planted_bug_is_found() -> None:
    class Planted(Hostile):
        decode = ReclaimsEarly

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Planted, settings=settings(CI, max_examples=400, phases=[Phase.generate], derandomize=True))


SMALL = Bounds(layers=2, shared=frozenset((1, 2)), chunks=2, abort=1, loss=1, dup=3)


def plain(m: Label) -> bool:
    """Neither a fault nor a repetition."""
    if m[0] in ("SaveEnd", "LoadEnd"):
        return bool(m[-1])
    return m[0] not in ("Lose", "Abort", "ResendReady", "ResendReport") and m[-1] is not True


def fixed_schedule() -> list[Label]:
    """The labels of one run without a fault: always the first thing that is not a repetition."""
    w, out = World(SMALL), []
    while moves := [m for m in w.moves() if plain(m)]:
        out.append(moves[0])
        w.apply(moves[0])
    assert ("Finish", 1) in out
    return out


def test_an_abort_at_every_point_of_a_schedule_leaves_nothing() -> None:
    points = 0
    w = World(SMALL)
    for label in [*fixed_schedule(), None]:
        if ("Abort", 1) in w.moves():
            twin = w.clone()
            twin.apply(("Abort", 1))
            assert drain(twin) == [], twin.decode.story
            points += 1
        if label:
            w.apply(label)
    assert points > 20


@pytest.mark.parametrize("fate", ["lost", "doubled", "late"])
def test_every_message_of_a_schedule_lost_doubled_or_late(fate: str) -> None:
    """Late: everything else that can happen happens first."""
    w, messages = World(SMALL), 0
    for label in fixed_schedule():
        if label[0] == "Deliver" and not (fate == "lost" and label[1][0] == "START"):
            twin = w.clone()
            twin.apply(("Lose", label[1]) if fate == "lost" else ("Deliver", label[1], fate == "doubled"))
            if fate == "doubled":
                twin.apply(("Deliver", label[1], False)) if label[1][0] != "START" else twin.net.pop(label[1])
            if fate == "late":
                twin = w.clone()
                held = twin.net.pop(label[1])
                for _ in range(30):
                    others = [m for m in twin.moves() if m[0] not in ("Abort", "Lose") and m[-1] not in (True, False)]
                    if not others:
                        break
                    twin.apply(others[0])
                twin.net[label[1]] = held
            assert drain(twin) == [], (label, twin.prefill.story, twin.decode.story)
            messages += 1
        w.apply(label)
    assert messages >= 12
