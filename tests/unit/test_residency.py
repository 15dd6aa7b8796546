"""Residency, whatever it runs on, equals a plain oracle slot by slot; on an error nothing has changed."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_oracle import Pair, drifting
from kernel_tools import implementations, sparse

from tidegate.kernels import dispatch
from tidegate.kernels.residency import Residency

implementation = pytest.mark.parametrize("name", implementations())


@st.composite
def lives(draw):
    """(rows, hot, steps): small numbers, so that everything meets everything."""
    rows, hot, k = draw(st.integers(1, 3)), draw(st.integers(1, 20)), draw(st.integers(0, 24))
    position, length = st.integers(-2, 30), st.integers(0, 28)
    entry = st.tuples(st.lists(position, min_size=k, max_size=k), length, st.integers(1, 2), st.integers(0, 30) | st.just(99))
    who = st.lists(st.integers(0, rows - 1), min_size=1, unique=True)
    step = st.tuples(who, st.lists(entry, min_size=rows, max_size=rows), st.booleans(), st.integers(1, 4))
    return rows, hot, draw(st.lists(step, max_size=8))


@implementation
@settings(max_examples=120, deadline=None)
@given(lives())
def test_any_life_equals_the_oracle(name, life):
    rows, hot, steps = life
    pair = Pair(rows, hot)
    with dispatch.forced(name):
        for who, entries, rolled_back, threads in steps:
            if rolled_back:
                pair.truncate([e[3] for e in entries[: len(who)]], [e[2] for e in entries[: len(who)]], who)
            pair.step([(row, *entry) for row, entry in zip(who, entries, strict=False)], threads=threads)


@implementation
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("hot", "k"), [(16, 16), (33, 20), (64, 64), (65, 65), (130, 64), (257, 200), (400, 333)])
def test_drifting_rows_equal_the_oracle(name, hot, k, dtype):
    pair = Pair(3, hot)
    with dispatch.forced(name):
        for t, (asked, length) in enumerate(drifting(hot, hot, k, 9)):
            back = 40 if t == 5 else 0  # speculation of 40 tokens rolled back
            entries = [(r, asked[r], length - back, 7 + (t >= 4 and r == 1), length - 1 - back) for r in (2, 0, 1)]
            pair.step(entries, dtype, threads=1 + t % 4)


@implementation
def test_all_hits_then_all_misses(name):
    with dispatch.forced(name):
        pair = Pair(1, 64)
        low, high = list(range(64)), list(range(64, 128))
        for asked in (low, low[::-1], high, low, high + low[:0]):
            pair.step([(0, asked, 128, 1, 128)])


@implementation
def test_a_new_attempt_in_the_row_begins_empty(name):
    with dispatch.forced(name):
        table = Residency(2, 8)
        asked = torch.arange(8).repeat(2, 1)
        table.step(asked, [8, 8], [1, 1])
        again = table.step(asked, [8, 8], [2, 1])
        assert again.misses.tolist() == [8, 0]
        assert table.attempts.tolist() == [2, 1]


@implementation
def test_rejected_speculation_is_not_taken_for_resident(name):
    """Rolled back by truncate, by a step at the shorter length, or by `keep` once the length has grown again."""
    for way in ("truncate", "shorter", "keep"):
        with dispatch.forced(name):
            table = Residency(1, 8)
            table.step(torch.tensor([[1, 9, 2, 8]]), [10], [1])
            if way == "truncate":
                table.truncate([8], [1])
                assert table.positions.tolist() == [[-1] * 6 + [1, 2]]
            elif way == "shorter":
                table.step(torch.tensor([[1]]), [8], [1])
            said = table.step(torch.tensor([[1, 9, 2, 8]]), [10], [1], keep=[8] if way == "keep" else None)
            assert said.miss_positions.tolist() == [[9, 8, -1, -1]]
            assert said.evictions.tolist() == [0]


BAD = [
    ({"rows": [0, 2]}, "entry 1 names row 2: the table has rows 0..2"),
    ({"rows": [-1, 0]}, "entry 0 names row -1"),
    ({"rows": [1, 1]}, "entry 1 names row 1 again"),
    ({"lengths": [9, -1]}, r"entry 1 has length -1: lengths are 0..2\*\*31"),
    ({"lengths": [2**31, 9]}, "entry 0 has length 2147483648"),
    ({"attempts": [0, 1]}, "entry 0 has attempt 0: nonces begin at 1"),
    ({"attempts": [1, -5]}, "entry 1 has attempt -5"),
    ({"keep": [4, -3]}, "entry 1 keeps -3 positions"),
    ({"asked": torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 3, 3]])}, "entry 0 asks for 5 distinct positions of a hot buffer of 4"),
    ({"asked": torch.tensor([[0.0], [1.0]])}, "asked is torch.float32 of shape"),
    ({"asked": torch.tensor([0, 1])}, r"asked is torch.int64 of shape \(2,\)"),
    ({"lengths": [9]}, r"lengths is torch.int64 of shape \(1,\): give 2 integers"),
    ({"attempts": [1.5, 2.0]}, "attempts is torch.float32"),
    ({"keep": torch.tensor([True, True])}, "keep is torch.bool"),
]


@implementation
@pytest.mark.parametrize(("wrong", "message"), BAD)
def test_a_bad_value_is_named_and_changes_nothing(name, wrong, message):
    table = Residency(2, 4)
    good = {"asked": torch.tensor([[0, 1], [2, 3]]), "lengths": [9, 9], "attempts": [1, 1]}
    with dispatch.forced(name):
        table.step(**good)
        before = [table.positions.clone(), table.slots.clone(), table.attempts.clone()]
        with pytest.raises(ValueError, match=message):
            table.step(**good | {"asked": torch.tensor([[3, 2], [1, 0]]), "attempts": [4, 4]} | wrong)
        if "asked" not in wrong and "lengths" not in wrong:
            with pytest.raises(ValueError, match=message):
                table.truncate(wrong.get("keep", [0, 0]), wrong.get("attempts", [1, 1]), rows=wrong.get("rows"))
    assert all(torch.equal(a, b) for a, b in zip(before, (table.positions, table.slots, table.attempts), strict=True))


@implementation
@example(2**31 - 1)
@example(2**40)
@example(-(2**40))
@example(2**32 + 1)
@given(st.integers(-(2**63), 2**63 - 1))
def test_any_number_may_be_asked(name, position):
    with dispatch.forced(name):
        said = Residency(1, 2).step(torch.tensor([[1, position]]), [4], [1])
    assert said.slots.tolist() == [[0, {0: 1, 1: 0, 2: 1, 3: 1}.get(position, -1)]]


@implementation
def test_nothing_asked(name):
    with dispatch.forced(name):
        pair = Pair(2, 3)
        for entry in ([(1, [], 5, 1, 5)], [(1, [-1, 9], 5, 1, 5)], [(1, [0, 1], 0, 1, 0)]):
            pair.step(entry)
        assert pair.table.step(torch.zeros(0, 4, dtype=torch.int64), [], []).slots.shape == (0, 4)


def test_tables_that_cannot_be():
    for rows, hot in ((0, 1), (1, 0), (1, 2**31)):
        with pytest.raises(ValueError, match=f"a table of {rows} rows of {hot} entries"):
            Residency(rows, hot)


@implementation
def test_a_table_larger_than_32_bits_of_bytes(name):
    """3.9 GiB of rows, of which one page in each array is touched."""
    table, rows, hot = Residency(1, 1), 1 << 18, 4001
    table.positions, table.slots = (sparse(rows * hot * 4).view(torch.int32).view(rows, hot) for _ in range(2))
    table.attempts = torch.zeros(rows, dtype=torch.int64)
    asked = torch.tensor([[5, 3, 5, 9]])
    with dispatch.forced(name):
        for misses in (2, 0):
            said = table.step(asked, [8], [3], rows=[rows - 1])
            assert said.slots.tolist() == [[0, 1, 0, -1]]
            assert said.misses.tolist() == [misses]
    assert table.positions[rows - 1, -2:].tolist() == [5, 3]
    assert table.positions[: 1 << 8].max() == 0
