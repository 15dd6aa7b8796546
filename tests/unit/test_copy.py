"""copy_ranges, whatever it runs on, equals a plain loop, and a range outside either buffer moves nothing."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from kernel_tools import implementations, sparse

from tidegate.kernels import copy, dispatch

implementation = pytest.mark.parametrize("name", implementations())


def columns(ranges):
    return [list(c) for c in zip(*ranges, strict=True)] if ranges else [[], [], []]


@implementation
@example([(0, 0, 4), (9, 9, 0), (4, 4, 4)], 1)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 24)), max_size=12), st.integers(1, 4))
def test_ranges_equal_a_plain_loop(name, ranges, threads):
    source = np.arange(64, dtype=np.uint8)
    want, got = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    copies, end = 0, (-1, -1)
    for d, s, n in ranges:
        want[d : d + n] = source[s : s + n]
        if n:  # an empty range parts no neighbours
            copies += (d, s) != end
            end = (d + n, s + n)
    with dispatch.forced(name):
        assert copy.copy_ranges(got, source, *columns(ranges), threads=threads) == copies
    assert (got == want).all()


@implementation
def test_neighbours_become_one_copy(name):
    source, target = np.arange(32, dtype=np.uint8), np.zeros(32, np.uint8)
    with dispatch.forced(name):
        assert copy.copy_ranges(target, source, [0, 4, 8, 20], [8, 12, 16, 0], [4, 4, 4, 4]) == 2
    assert target[:12].tolist() == list(range(8, 20))


@implementation
@pytest.mark.parametrize("overlap", [0, 100_000])
def test_threads_share_large_copies_and_keep_the_order_of_overlaps(name, overlap):
    source, sizes = np.random.default_rng(1).integers(0, 256, 3 << 20, np.uint8), [700_001, 1, 900_000, 300_007]
    want, got, at, columns = np.zeros(3 << 20, np.uint8), np.zeros(3 << 20, np.uint8), 5, ([], [], [])
    for i, n in enumerate(sizes):
        for column, value in zip(columns, (at, (i + 1) * 500_003 % 2_000_000, n), strict=True):
            column.append(value)
        want[at : at + n] = source[columns[1][-1] : columns[1][-1] + n]
        at += max(1, n - overlap)
    with dispatch.forced(name):
        assert copy.copy_ranges(got, source, *columns, threads=4) == 4
    assert (got == want).all()


@implementation
def test_threads_leave_no_byte_out(name):
    source = np.random.default_rng(2).integers(0, 256, (1 << 20) + 1, np.uint8)
    got = np.zeros_like(source)
    with dispatch.forced(name):
        copy.copy_ranges(got, source, [0], [0], [len(source)], threads=4)  # three threads would have the same, one a byte more
    assert (got == source).all()


@implementation
def test_offsets_beyond_32_bits(name):
    source, target = sparse(5 << 30), sparse(9 << 30)
    source[(5 << 30) - 70_000 :] = 3
    with dispatch.forced(name):
        assert copy.copy_ranges(target, source, [(9 << 30) - 70_000], [(5 << 30) - 70_000], [70_000]) == 1
    assert target[-70_000:].min() == 3
    assert target[: 1 << 20].max() == 0


def test_tensors_of_another_device():
    """No such device is at hand: meta tensors show that they go the way of the device copies, with the same checks."""
    target = torch.zeros(4, 8, device="meta")
    assert copy.copy_ranges(target, torch.ones(64), [0, 4, 64], [0, 4, 128], [4, 8, 64]) == 2
    with pytest.raises(ValueError, match=r"range 0 .*destination of 128 bytes"):
        copy.copy_ranges(target, torch.ones(64), [128], [0], [4])


BAD = [
    ([60], [0], [5]),
    ([0], [60], [5]),
    ([-1], [0], [1]),
    ([0], [-1], [1]),
    ([0], [0], [-1]),
    ([2**63 - 1], [0], [2]),
    ([0], [0], [2**63 - 1]),
]


@implementation
@pytest.mark.parametrize("bad", BAD)
def test_a_range_outside_moves_nothing_and_is_named(name, bad):
    source, target = np.ones(64, np.uint8), np.zeros(64, np.uint8)
    with dispatch.forced(name), pytest.raises(ValueError, match=r"range 1 .*nothing was copied"):
        copy.copy_ranges(target, source, *([0, *column] if i < 2 else [4, *column] for i, column in enumerate(bad)))
    assert not target.any()


@implementation
@given(st.lists(st.tuples(*[st.sampled_from([-(2**63), -1, 0, 1, 59, 60, 63, 64, 65, 2**63 - 1])] * 3), max_size=5))
def test_the_first_range_outside_is_found(name, ranges):
    """d + n and s + n in Python's integers, which do not wrap."""
    fits = [n >= 0 and d >= 0 and s >= 0 and d + n <= 64 and s + n <= 60 for d, s, n in ranges]
    with dispatch.forced(name):
        if all(fits):
            copy.checked_ranges(64, 60, *columns(ranges))
        else:
            with pytest.raises(ValueError, match=f"range {fits.index(False)} "):
                copy.checked_ranges(64, 60, *columns(ranges))


SPANS = st.lists(st.integers(0, 24), max_size=10, unique=True).map(lambda ends: np.array(sorted(ends)[: len(ends) // 2 * 2]).reshape(-1, 2))


@implementation
@example([(2**62, 2**62)], np.array([[0, 9]]))
@given(st.lists(st.tuples(st.integers(0, 26), st.integers(0, 8)), max_size=6), SPANS)
def test_the_first_range_that_leaves_the_spans_is_found(name, ranges, spans):
    inside = [n == 0 or any(first <= at and at + n <= stop for first, stop in spans.tolist()) for at, n in ranges]
    at, n = (np.array(column, np.int64) for column in (columns(ranges) if ranges else ([], [])))
    with dispatch.forced(name):
        assert copy.first_astray(at, n, spans.astype(np.int64)) == (-1 if all(inside) else inside.index(False))


def test_offsets_beyond_64_bits_are_refused():
    with pytest.raises(ValueError, match="below 2\\*\\*63"):
        copy.copy_ranges(np.zeros(4, np.uint8), np.ones(4, np.uint8), np.array([2**63], np.uint64), [0], [1])


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match="2, 1 and 1 entries"):
        copy.copy_ranges(np.zeros(4, np.uint8), np.ones(4, np.uint8), [0, 1], [0], [1])


def test_tensors_and_read_only_buffers():
    source = torch.arange(8, dtype=torch.bfloat16)
    target = torch.zeros(8, dtype=torch.bfloat16)
    copy.copy_ranges(target, source, [4], [0], [4])
    assert target.tolist() == [0, 0, 0, 1, 0, 0, 0, 0] or target[2:4].tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        copy.copy_ranges(bytes(8), source, [0], [0], [4])
    with pytest.raises(ValueError, match="not contiguous"):
        copy.copy_ranges(torch.zeros(4, 4).t(), source, [0], [0], [4])
    with pytest.raises(ValueError, match="share memory"):
        copy.copy_ranges(target, target[2:], [0], [0], [4])
