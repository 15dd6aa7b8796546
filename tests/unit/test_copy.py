"""copy_ranges: native and fallback agree, and a range outside either buffer moves nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tidegate.kernels import copy


def columns(ranges):
    return [list(c) for c in zip(*ranges, strict=True)] if ranges else [[], [], []]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 24)), max_size=12))
def test_native_and_fallback_equal_a_plain_loop(ranges):
    source = np.arange(64, dtype=np.uint8)
    want = np.zeros(64, np.uint8)
    for d, s, n in ranges:
        want[d : d + n] = source[s : s + n]
    checked = copy.checked_ranges(64, 64, *columns(ranges))
    fallback, native = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    runs = copy.copy_runs(fallback, source, *checked)
    assert (fallback == want).all()
    assert copy.copy_ranges(native, source, *columns(ranges)) == runs
    assert (native == want).all()


def test_neighbours_become_one_copy():
    source, target = np.arange(32, dtype=np.uint8), np.zeros(32, np.uint8)
    assert copy.copy_ranges(target, source, [0, 4, 8, 20], [8, 12, 16, 0], [4, 4, 4, 4]) == 2
    assert target[:12].tolist() == list(range(8, 20))


BAD = [
    ([60], [0], [5]),
    ([0], [60], [5]),
    ([-1], [0], [1]),
    ([0], [-1], [1]),
    ([0], [0], [-1]),
    ([2**63 - 1], [0], [2]),
    ([0], [0], [2**63 - 1]),
]


@pytest.mark.parametrize("bad", BAD)
def test_a_range_outside_moves_nothing_and_is_named(bad):
    source, target = np.ones(64, np.uint8), np.zeros(64, np.uint8)
    with pytest.raises(ValueError, match=r"range 1 .*nothing was copied"):
        copy.copy_ranges(target, source, *([0, *column] if i < 2 else [4, *column] for i, column in enumerate(bad)))
    assert not target.any()


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
