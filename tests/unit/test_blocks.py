"""Blocks of runs: owned by one at a time, the same from admission to end, first come, first served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engine.blocks import BlockAllocator


def test_a_run_waits_in_line_and_says_what_for():
    blocks = BlockAllocator(6, 4)
    for run, tokens in ((1, 16), (2, 12), (3, 4)):
        blocks.ask(run, tokens)
    assert blocks.admitted() == [1]
    assert blocks.admitted() == []  # run 3 would fit, and is not before run 2
    assert (blocks.of(1), blocks.free) == ((0, 1, 2, 3), 2)
    assert blocks.why(1) == ""
    assert blocks.why(2) == "run 2 waits for blocks: it needs 3, 2 of 6 are free (run 1: 4)"
    assert "run 2, which is before it, needs 3" in blocks.why(3)
    blocks.give_back(1)
    assert blocks.admitted() == [2, 3]
    assert (blocks.of(2), blocks.of(3)) == ((4, 5, 0), (1,))
    assert blocks.holding(2, 3, 9) == (4, 5, 0)
    assert blocks.holding(2, 4, 5) == (5,)
    with pytest.raises(KeyError):
        blocks.of(1)


def test_a_run_that_leaves_the_line_lets_the_next_one_in():
    blocks = BlockAllocator(2, 4)
    blocks.ask(1, 4)
    blocks.admitted()
    blocks.ask(2, 8)
    blocks.ask(3, 4)
    blocks.give_back(2)
    assert blocks.admitted() == [3]
    blocks.give_back(9)  # never had any
    assert blocks.free == 0


def test_what_can_never_fit_and_what_asks_twice_is_refused():
    blocks = BlockAllocator(2, 4)
    assert blocks.can_ever_hold(8)
    assert not blocks.can_ever_hold(9)
    with pytest.raises(ValueError, match="run 1 has 9 tokens, all 2 blocks of 4 hold 8"):
        blocks.ask(1, 9)
    blocks.ask(1, 4)
    for _ in range(2):
        with pytest.raises(ValueError, match="asked for its blocks already"):
            blocks.ask(1, 4)
        blocks.admitted()
    with pytest.raises(ValueError, match="both start at 1"):
        BlockAllocator(0, 4)


@given(st.lists(st.one_of(st.tuples(st.just("ask"), st.integers(1, 30)), st.tuples(st.just("end"), st.integers(0, 40))), max_size=60))
def test_no_block_has_two_owners_and_none_is_lost(events):
    blocks, alive, next_run = BlockAllocator(7, 5), {}, 1
    for what, number in events:
        if what == "ask":
            blocks.ask(next_run, number)
            next_run += 1
        elif alive:
            run = sorted(alive)[number % len(alive)]
            blocks.give_back(run)
            del alive[run]
        alive |= {run: blocks.of(run) for run in blocks.admitted()}
        owned = [block for run in alive for block in blocks.of(run)]
        assert len(set(owned)) == len(owned) == 7 - blocks.free
        assert all(blocks.of(run) == ids for run, ids in alive.items())
