"""Turns: nobody gives way too early, a prompt loses its blocks once at most, and everybody ends; over a memory of rows and blocks alone
(`test_decode_preemption.py` has the real one)."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engine.decode_turns import Turns


class Memory:
    """Rows and blocks; who waits, first come, first served, but those that were preempted before all others."""

    def __init__(self, wanted: list[int], *, rows: int, blocks: int, after: int) -> None:
        self.after, self.rows, self.blocks = after, rows, blocks
        self.nonces, self.wanted = itertools.count(1), wanted
        self.new = deque(self.asked(n, tokens) for n, tokens in enumerate(wanted))
        self.back: deque[Any] = deque()
        self.running: list[Any] = []
        self.made: Counter[int] = Counter()  # attempt -> tokens since it got its row
        self.lost: Counter[int] = Counter()
        self.done: set[int] = set()
        self.early: list[int] = []
        self.owner = SimpleNamespace(ask=lambda call: call())
        self.turns = Turns(self, self, after=after)  # type: ignore[arg-type]

    def asked(self, prompt: int, wanted: int, *, dropped: bool = False) -> Any:
        return SimpleNamespace(attempt=next(self.nonces), prompt=prompt, tokens=[], wanted=wanted, dropped=dropped)

    def lacks(self) -> str:
        if self.back:
            return "" if self.rows else "row"
        return "" if not self.new else "blocks" if not self.blocks else "row" if not self.rows else ""

    def _leaves(self, attempt: int) -> Any:
        one = next(one for one in self.running if one.attempt == attempt)
        self.running.remove(one)
        self.rows += 1
        self.early += [attempt] * (self.made.pop(attempt, 0) < self.after)
        return one

    def preempt(self, attempt: int) -> None:
        self.parked = self._leaves(attempt)

    def resume(self, attempt: int) -> None:
        self.admit()  # who waits has the row now
        self.back.append(self.parked)

    def drop(self, one: Any) -> None:
        self._leaves(one.attempt)
        self.blocks += 1
        self.lost[one.prompt] += 1
        self.new.append(self.asked(one.prompt, one.wanted, dropped=True))

    def admit(self) -> None:
        while self.rows and (self.back or (self.new and self.blocks)):
            self.blocks -= not self.back
            self.running.append(self.back.popleft() if self.back else self.new.popleft())
            self.rows -= 1

    def step(self) -> None:
        self.admit()
        for one in self.turns.going(self.running):
            one.tokens.append(0)
            self.made[one.attempt] += 1
            if len(one.tokens) == one.wanted:
                self.running.remove(one)
                self.made.pop(one.attempt)
                self.done.add(one.prompt)
                self.rows, self.blocks = self.rows + 1, self.blocks + 1


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 3), st.integers(0, 3), st.integers(1, 4))
def test_everybody_ends_and_nobody_gives_way_too_early_or_loses_twice(wanted: list[int], rows: int, more: int, after: int) -> None:
    memory = Memory(wanted, rows=rows, blocks=rows + more, after=after)
    for _ in range(4 * sum(wanted) + 4 * len(wanted)):
        memory.step()
    assert memory.done == set(range(len(wanted)))
    assert not memory.early
    assert max(memory.lost.values(), default=0) <= 1
    assert (memory.rows, memory.blocks) == (rows, rows + more)


def test_nobody_gives_way_where_nobody_waits_or_none_is_to() -> None:
    for memory in (Memory([5, 5], rows=2, blocks=2, after=1), Memory([5, 5, 5], rows=1, blocks=1, after=0)):
        for _ in range(20):
            memory.step()
        assert len(memory.done) == len(memory.wanted)
        assert (memory.turns.preempted, memory.turns.dropped) == (0, 0)


def test_a_short_one_overtakes_a_long_one() -> None:
    for memory, gave in (Memory([12, 2], rows=1, blocks=2, after=4), (1, 0)), (Memory([12, 2], rows=1, blocks=1, after=4), (0, 1)):
        while 1 not in memory.done:
            memory.step()
        assert (memory.turns.preempted, memory.turns.dropped) == gave
        assert 0 not in memory.done


def early(turns: Any) -> None:
    turns._after = 1


def stale(turns: Any) -> None:
    """It counts on from where it was before it gave way."""
    going = turns.going

    def counts_on(running: Sequence[Any]) -> list[Any]:
        before = dict(turns._since)
        out = going(running)
        turns._since |= {attempt: since for attempt, since in before.items() if attempt not in turns._since}
        return out

    turns.going = counts_on


def twice(turns: Any) -> None:
    drop = turns._drop
    turns._drop = lambda may: drop([SimpleNamespace(**vars(one) | {"dropped": False}) for one in may])


@pytest.mark.parametrize("plant", [early, stale, twice])
def test_planted_a_policy_that_breaks_its_rules_is_seen(plant: Callable[[Any], None]) -> None:
    wanted, rows, blocks = ([12, 12, 12], 1, 1) if plant is twice else ([1, 2, 1, 1, 1], 2, 3) if plant is stale else ([12, 12], 1, 2)
    memory = Memory(wanted, rows=rows, blocks=blocks, after=1 if plant is stale else 4)
    plant(memory.turns)
    for _ in range(60):
        memory.step()
    assert max(memory.lost.values()) > 1 if plant is twice else memory.early
