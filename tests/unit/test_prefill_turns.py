"""Turns on Prefill: nobody gives way too early, whoever gives way goes on, and every prompt is computed; over a memory of blocks alone
(`test_prefill_preemption.py` has the real one)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engine.prefill_batches import Batches
from tidegate.engine.prefill_parts import Run
from tidegate.protocol.messages import Start

CHUNK = 10


class Memory:
    """Blocks of a chunk's tokens; who waits for them, first come, first served."""

    def __init__(self, chunks: Sequence[int], *, blocks: int, lanes: int, after: int, busy: frozenset[int] = frozenset()) -> None:
        self.lanes, self.free, self.after, self.busy = lanes, blocks, after, busy
        self.waiting = deque(Run(n, Start(str(n), n, 1, count * CHUNK, ()), count, ()) for n, count in enumerate(chunks, 1))
        self.ready_runs: deque[Run] = deque()
        self.left: dict[int, Run] = {}  # preempted
        self.due = {run.nonce: 1 for run in self.waiting}  # its next chunk
        self.made: Counter[int] = Counter()  # tokens since it got its blocks
        self.early: list[int] = []
        self.gave_way = 0
        self.batches = Batches(self, tokens=CHUNK * lanes, chunk_tokens=CHUNK, after=after)

    def _admit(self) -> None:
        while self.waiting and self.waiting[0].chunks <= self.free:
            run = self.waiting.popleft()
            self.free -= run.chunks
            self.made[run.nonce] = 0
            self.ready_runs.append(run._replace(chunk=self.due[run.nonce]))

    def next_run(self, *, wait: bool = True) -> Run | None:
        self._admit()
        return self.ready_runs.popleft() if self.ready_runs else None

    def ready(self, parts: Sequence[tuple[Run, int]]) -> list[bool]:
        return [True for _ in parts]

    def lacks_blocks(self) -> bool:
        return bool(self.waiting)

    def preempt(self, run: int) -> bool:
        if run in self.busy:
            return False
        self.gave_way += 1
        self.early += [run] * (self.made[run] < self.after)
        chunks, _ = self.parts[run]
        self.free += chunks.chunks
        self.left[run] = chunks
        return True

    def resume(self, run: int) -> None:
        self._admit()
        self.waiting.append(self.left.pop(run))

    @property
    def parts(self) -> dict[int, tuple[Run, int]]:
        return self.batches._going

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if (parts := self.batches.next_step()) is None:
                break
            for run, chunk in parts:
                assert chunk == self.due[run.nonce], "a chunk is computed twice, or left out"
                self.due[run.nonce] += 1
                self.made[run.nonce] += CHUNK
                self.free += run.chunks if chunk == run.chunks else 0
            self.batches.computed(parts, {})

    @property
    def done(self) -> bool:
        return not self.waiting and not self.ready_runs and not self.left and not self.parts


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(0, 6), st.integers(1, 3), st.integers(1, 40),
    st.frozensets(st.integers(1, 8), max_size=3),
)  # fmt: skip
def test_every_prompt_is_computed_and_nobody_gives_way_too_early(
    chunks: list[int], more: int, lanes: int, after: int, busy: frozenset[int]
) -> None:
    memory = Memory(chunks, blocks=max(chunks) + more, lanes=lanes, after=after, busy=busy)
    memory.run(sum(chunks) + 1)
    assert memory.done
    assert not memory.early
    assert memory.free == max(chunks) + more


def test_a_short_prompt_overtakes_a_long_one_and_nobody_gives_way_where_none_is_to() -> None:
    memory = Memory([6, 1], blocks=6, lanes=1, after=CHUNK)
    memory.run(2)
    assert (memory.due, memory.gave_way) == ({1: 2, 2: 2}, 1)
    memory = Memory([6, 1], blocks=6, lanes=1, after=0)
    memory.run(7)
    assert (memory.done, memory.gave_way) == (True, 0)
    memory = Memory([5, 1], blocks=6, lanes=2, after=CHUNK)
    memory.run(6)
    assert (memory.done, memory.gave_way) == (True, 0)


def early(turns: Any) -> None:
    turns._after = 1


def forgets(turns: Any) -> None:
    turns._engine = _Forgetful(turns._engine)


class _Forgetful:
    """Resumes nobody."""

    def __init__(self, engine: Any) -> None:
        self.lacks_blocks, self.preempt, self.resume = engine.lacks_blocks, engine.preempt, lambda run: None


def keeps(turns: Any) -> None:
    """Who gave way is computed all the same."""
    gives_way = turns.gives_way
    turns.gives_way = lambda going: gives_way(going) and None


@pytest.mark.parametrize("plant", [early, forgets, keeps])
def test_planted_a_policy_that_breaks_its_rules_is_seen(plant: Callable[[Any], None]) -> None:
    memory = Memory([6, 6, 1], blocks=6, lanes=1, after=2 * CHUNK)
    plant(memory.batches._turns)
    try:
        memory.run(14)
    except (AssertionError, KeyError):
        return
    assert memory.early or not memory.done or memory.free != 6
