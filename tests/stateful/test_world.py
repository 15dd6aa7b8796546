"""hypothesis on the simulator's harness: interleavings, duplicates, losses, aborts; it shrinks what it finds."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from stateful.tools import AGAIN, plain, rest, told, well

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import BeginRead, Effect, Send
from tidegate.protocol.messages import ReadDone, Ready, TransferId
from tidegate.spec.bounds import FAULTS, Bounds
from tidegate.spec.world import ARGUMENTS, Label, World

MOST = 4
"""Kinds of fault that strike in one example: with all of them at once hardly anything would come to a good end."""
DEATHS = ("crash_decode", "crash_prefill")
"""What a dead side was asked nobody answers: it is retired, or asked again for ever."""
CHOICES = st.lists(st.integers(0, 15), min_size=4, max_size=30)


class Hostile(RuleBasedStateMachine):
    """Long stretches of ordinary work, in any order, and a fault or a repetition between them; both by their place in what
    the World offers, so that shrinking drops what does not matter.

    taken: the labels of the latest example, which after a failure is the shrunk one."""

    decode: type[DecodeSession] = DecodeSession
    taken: list[Label]

    @initialize(
        chunks=st.integers(1, 2), lease=st.booleans(), blocks=st.integers(1, 2), members=st.integers(1, 2), lanes=st.integers(1, 2),
        choices=CHOICES,
        faults=st.sets(st.sampled_from(FAULTS), min_size=1, max_size=MOST),
    )  # fmt: skip
    def begin(
        self, chunks: int, lease: bool, blocks: int, members: int, lanes: int, choices: list[int], faults: set[str]
    ) -> None:
        budgets = {fault: 2 for fault in faults if lease or fault != "revoke"}
        self.world = World(Bounds(
            layers=3, shared=frozenset((1, 2)), chunks=chunks, runs=4, attempts=2, blocks=blocks, members=members,
            decode_ranks=members, lanes=lanes, read_lease=lease,
            retiring=chunks == 1 or not faults.isdisjoint(DEATHS), giving_way=chunks == 2,
            **budgets,  # type: ignore[arg-type]
        ), decode=self.decode)  # fmt: skip
        type(self).taken = []
        self.work(choices)

    def _take(self, moves: list[Label], choice: int) -> None:
        if moves:
            label = moves[choice % len(moves)]
            self.taken.append(label)
            self.world.apply(label)
            assert not self.world.violations(), told(self.world, self.world.violations())

    @rule(choices=CHOICES)
    def work(self, choices: list[int]) -> None:
        for choice in choices:
            self._take([m for m in self.world.moves() if plain(m) or m[0] == "Forward"], choice)

    @rule(choice=st.integers(0, 31), choices=CHOICES)
    def disturb(self, choice: int, choices: list[int]) -> None:
        self._take([m for m in self.world.moves() if not well(m)], choice)
        self.work(choices)

    @rule(choice=st.integers(0, 7))
    def repeat(self, choice: int) -> None:
        self._take([m for m in self.world.moves() if m[0] in AGAIN], choice)

    def teardown(self) -> None:
        if hasattr(self, "world") and not self.world.violations():
            wrong = rest(self.world)
            assert not wrong, told(self.world, wrong)


CI = settings(max_examples=400, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck))


def test_hostile_world() -> None:
    class Counted(Hostile):
        ends: ClassVar[Counter[tuple[int, int]]] = Counter()
        operations: ClassVar[set[str]] = set()

        def teardown(self) -> None:
            super().teardown()
            self.operations.update(label[0] for label in self.taken)
            self.ends[len(self.world.oracle.finished), len(self.world.oracle.failed)] += 1

    run_state_machine_as_test(Counted, settings=settings(CI, derandomize=True))
    assert Counted.operations >= set(ARGUMENTS) - {"OrphanEnd"}  # a copy that outlives its Decode is seldom left to end by itself
    finished, both, failed = (Counted.ends[end] for end in ((2, 0), (1, 1), (0, 2)))
    assert min(finished, both, failed) >= 20, f"attempts finish, fail, and do both side by side: {Counted.ends}"


class ReclaimsEarly(DecodeSession):
    """Takes a copy of unknown fate for one that has stopped."""

    def read_end(self, transfer: TransferId, how: str, reason: str = "") -> list[Effect]:
        return super().read_end(transfer, "quiet" if how == "unknown" else how, reason)


class ReportsAtOnce(DecodeSession):
    """Says READ_DONE as soon as the read has begun."""

    def _on_ready(self, ready: Ready, effects: list[Effect]) -> None:
        super()._on_ready(ready, effects)
        done = ReadDone(ready.transfer, ready.slot, ready.epoch, ready.incarnation, self.incarnation)
        effects += [Send(done)] * (BeginRead(ready) in effects)


FOUND = settings(CI, derandomize=True, database=None, report_multiple_bugs=False, phases=[Phase.generate])


@pytest.mark.parametrize(
    ("bug", "words"),
    [(ReclaimsEarly, "blocks . are given back while .* may still land in them"), (ReportsAtOnce, "its own bytes never landed right")],
)  # fmt: skip
def test_a_planted_bug_is_found(bug: type[DecodeSession], words: str) -> None:
    class Planted(Hostile):
        decode = bug

    with pytest.raises(AssertionError, match=words):
        run_state_machine_as_test(Planted, settings=FOUND)
