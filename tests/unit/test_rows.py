"""Rows appended to and fetched from a paged pool, whatever it runs on, equal a plain loop; a bad row moves nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracle import PRODUCT, parts
from kernel_tools import implementations, sparse

from tidegate.kernels import dispatch
from tidegate.kernels.residency import Residency
from tidegate.kernels.rows import append_rows, fetch_misses, fetch_rows

implementation = pytest.mark.parametrize("name", implementations())
def guard_rows(guards, kinds):
    return [g.view(-1, w * d.itemsize)[at] for g, (d, w) in zip(guards, kinds, strict=True) for at in (slice(4), slice(-4, None))]


def equal(a, b):
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b, strict=True))


def expected(targets, sources, pairs):
    """What a plain loop makes of `targets`, as flat rows."""
    flat = [t.clone().view(-1, t.shape[-1]) for t in targets]
    for target, source in pairs:
        for t, s in zip(flat, sources, strict=True):
            t[target] = s.view(-1, s.shape[-1])[source]
    return [f.view(t.shape) for f, t in zip(flat, targets, strict=True)]


KINDS = st.lists(
    st.tuples(st.sampled_from([torch.bfloat16, torch.float32, torch.int8, torch.float64]), st.sampled_from([1, 3, 33, 64, 65, 129])),
    min_size=1, max_size=3,
)  # fmt: skip


@implementation
@settings(max_examples=60, deadline=None)
@given(KINDS, st.lists(st.integers(-1, 19), max_size=30), st.integers(1, 4))
def test_append_equals_a_loop(name, kinds, slots, threads):
    guards, pool = parts(kinds, 5, 4)
    _, rows = parts(kinds, len(slots), seed=1)
    want = expected(pool, rows, [(slot, i) for i, slot in enumerate(slots) if slot >= 0])
    edges = [edge.clone() for edge in guard_rows(guards, kinds)]
    with dispatch.forced(name):
        append_rows(pool, torch.tensor(slots, dtype=torch.int64), rows, threads=threads)
    assert equal(pool, want)
    assert equal(edges, guard_rows(guards, kinds))


@implementation
@settings(max_examples=60, deadline=None)
@given(KINDS, st.lists(st.tuples(st.integers(0, 11), st.integers(0, 19)), max_size=40), st.integers(1, 4))
def test_fetch_equals_a_loop(name, kinds, pairs, threads):
    (_, hot), (_, pool) = parts(kinds, 3, 4), parts(kinds, 20, seed=1)
    want = expected(hot, pool, pairs)
    to, of = (torch.tensor([p[side] for p in pairs], dtype=torch.int64) for side in (0, 1))
    with dispatch.forced(name):
        fetch_rows(hot, to, pool, of, threads=threads)
    assert equal(hot, want)


@implementation
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_misses_come_from_their_blocks(name, data):
    hot_rows, hot, block, n, k = 4, 6, data.draw(st.sampled_from([1, 3, 8])), data.draw(st.integers(1, 3)), 5
    length = data.draw(st.integers(0, 24))
    width = -(-24 // block)
    table = torch.tensor(data.draw(st.lists(st.permutations(range(width)), min_size=n, max_size=n)), dtype=torch.int32)
    asked = torch.tensor(data.draw(st.lists(st.lists(st.integers(-1, 25), min_size=k, max_size=k), min_size=n, max_size=n)))
    (_, buffers), (_, pool) = parts(PRODUCT, hot_rows, hot), parts(PRODUCT, width, block, seed=1)
    rows = data.draw(st.permutations(range(hot_rows)))[:n]
    residency = Residency(hot_rows, hot)
    with dispatch.forced(name):
        step = residency.step(asked, [length] * n, [1] * n, rows=rows)
        pairs = []
        for i, row in enumerate(rows):
            for position, slot in zip(step.miss_positions[i].tolist(), step.miss_slots[i].tolist(), strict=True):
                if position >= 0:
                    pairs.append((row * hot + slot, int(table[i, position // block]) * block + position % block))
        want = expected(buffers, pool, pairs)
        fetch_misses(buffers, pool, step, table.to(data.draw(st.sampled_from([torch.int32, torch.int64]))), block, threads=2)
    assert equal(buffers, want)
    for i, row in enumerate(rows):  # I10: a hot slot equals its token's row
        for position, slot in zip(asked[i].tolist(), step.slots[i].tolist(), strict=True):
            if slot >= 0:
                at = int(table[i, position // block])
                assert equal([b[row, slot] for b in buffers], [p[at, position % block] for p in pool])


@implementation
def test_rows_that_lie_apart(name):
    """K and V as two views of one wider row, as an engine may keep them."""
    pool, hot = torch.arange(60.0).view(10, 6), torch.zeros(4, 6)
    with dispatch.forced(name):
        fetch_rows([hot[:, :4], hot[:, 4:]], torch.tensor([3, 0]), [pool[:, :4], pool[:, 4:]], torch.tensor([9, 2]))
    assert hot.tolist() == [pool[2].tolist(), [0.0] * 6, [0.0] * 6, pool[9].tolist()]


def a_step(**changed):
    step = Residency(2, 3).step(torch.tensor([[0, 5, 1], [7, -1, 2]]), [8, 8], [1, 1])
    return step._replace(**changed)


OUTSIDE = [
    (lambda h, p, r: append_rows(p, torch.tensor([0, 6]), r), "entry 1 goes to row 6: the destination has rows 0..6"),
    (lambda h, p, r: append_rows(p, torch.tensor([0, -2]), r), "entry 1 goes to row -2"),
    (lambda h, p, r: append_rows(p, torch.tensor([0, 2**40]), r), f"entry 1 goes to row {2**40}"),
    (lambda h, p, r: fetch_rows(h, torch.tensor([0, -1]), p, torch.tensor([0, 1])), "entry 1 goes to row -1"),
    (lambda h, p, r: fetch_rows(h, torch.tensor([0, 6]), p, torch.tensor([0, 1])), "entry 1 goes to row 6"),
    (lambda h, p, r: fetch_rows(h, torch.tensor([0, 1]), p, torch.tensor([0, 6])), "entry 1 comes from row 6: the source has rows 0..6"),
    (lambda h, p, r: fetch_rows(h, torch.tensor([0, 1]), p, torch.tensor([0, -1])), "entry 1 comes from row -1"),
    (lambda h, p, r: fetch_misses(h, p, a_step(), torch.tensor([[0, 1, 2], [0, 1, 2]]), 2), "misses position 7: its block table"),
    (lambda h, p, r: fetch_misses(h, p, a_step(), torch.tensor([[0, 1, 2, 0], [1, 1, 1, 3]]), 2), "position 7, which is in block 3: "),
    (lambda h, p, r: fetch_misses(h, p, a_step(), torch.tensor([[0, 1, -1, 0], [1, 1, 1, 2]]), 2), "position 5, which is in block -1"),
    (lambda h, p, r: fetch_misses(h, p, a_step(rows=torch.tensor([0, 2])), torch.zeros(2, 4).int(), 2), "entry 1 names row 2"),
    (lambda h, p, r: fetch_misses(h, p, a_step(miss_slots=torch.full((2, 3), 3).int()), torch.zeros(2, 4).int(), 2), "in slot 3: "),
    (lambda h, p, r: fetch_misses(h, p, a_step(miss_positions=torch.full((2, 3), -4).int()), torch.zeros(2, 4).int(), 2), "position -4"),
    (lambda h, p, r: fetch_misses(h, p, a_step(counts=torch.full((3, 2), 4).int()), torch.zeros(2, 4).int(), 2), "misses position 4"),
]  # fmt: skip


@implementation
@pytest.mark.parametrize(("call", "message"), OUTSIDE)
def test_a_row_outside_moves_nothing_and_is_named(name, call, message):
    (hot_guard, hot), (pool_guard, pool), (_, rows) = (parts(PRODUCT, *shape) for shape in ((2, 3), (3, 2), (2,)))
    for guard in (*hot_guard, *pool_guard):
        guard.fill_(7)
    with dispatch.forced(name), pytest.raises(ValueError, match=message):
        call(hot, pool, rows)
    assert all((guard == 7).all() for guard in (*hot_guard, *pool_guard))


HOT, POOL, ROWS = (parts(PRODUCT, *shape)[1] for shape in ((2, 3), (3, 2), (2,)))
TWO = torch.tensor([0, 1])
UNFIT = [
    (lambda: append_rows(POOL, TWO, ROWS[:1]), "they must agree in number, dtype and width"),
    (lambda: append_rows(POOL, TWO, [r.float() for r in ROWS]), "pool has parts torch.bfloat16"),
    (lambda: append_rows(POOL, torch.tensor([0]), ROWS), "1 target rows for 2 source rows"),
    (lambda: append_rows(POOL, TWO.int(), ROWS), "target rows is torch.int32"),
    (lambda: append_rows([], TWO, []), "pool has no part"),
    (lambda: append_rows(POOL, TWO, [r.t() for r in ROWS]), "a row's elements must be adjacent"),
    (lambda: append_rows([POOL[0], POOL[1][:2]], TWO, ROWS), "the same number of rows"),
    (lambda: append_rows([POOL[0].transpose(0, 1)], TWO, ROWS[:1]), "rows must lie at equal distances"),
    (lambda: append_rows([POOL[0][None]], TWO, ROWS[:1]), "give .rows, width. or .blocks, block, width."),
    (lambda: append_rows(POOL, TWO, [p[0] for p in POOL]), "pool and rows share memory"),
    (lambda: fetch_rows(HOT, TWO, POOL, TWO[:1]), "2 target rows for 1 source rows"),
    (lambda: fetch_rows(HOT, TWO, POOL, TWO[None]), r"source rows is torch.int64 of shape \(1, 2\)"),
    (lambda: fetch_misses(HOT, POOL, a_step(), torch.zeros(1, 4).int(), 2), "one line for each of 2 rows"),
    (lambda: fetch_misses(HOT, POOL, a_step(), torch.zeros(2, 4).int(), 0), "block_size is 0"),
    (lambda: fetch_misses([h[0] for h in HOT], POOL, a_step(), torch.zeros(2, 4).int(), 2), "hot is .rows, hot, width."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), UNFIT)
def test_parts_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@implementation
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_beyond_31_and_32_bits_of_bytes(name, threads):
    """A pool of 8 GiB of which a few pages are touched; the bytes are looked for in the file's memory itself."""
    width, n = 576, (8 << 30) // 1152
    memory = sparse(n * 1152)
    pool = [memory.view(torch.bfloat16).view(n, width)]
    numbers = [2**31 // 1152, 2**31 // 1152 + 1, 2**32 // 1152, 2**32 // 1152 + 1, n - 1, 3]
    rows = [torch.arange(len(numbers) * width).view(-1, width).bfloat16()]
    hot = [torch.zeros(len(numbers), width, dtype=torch.bfloat16)]
    with dispatch.forced(name):
        append_rows(pool, torch.tensor(numbers), rows, threads=threads)
        for number, row in zip(numbers, rows[0], strict=True):
            assert torch.equal(memory[number * 1152 : (number + 1) * 1152].view(torch.bfloat16), row)
        fetch_rows(hot, torch.arange(len(numbers)), pool, torch.tensor(numbers), threads=threads)
    assert torch.equal(hot[0], rows[0])


@implementation
def test_misses_beyond_31_bits(name):
    """Position 2**22 of a row whose last block lies 4.5 GiB into the pool."""
    width, block = 576, 128
    blocks = (9 << 29) // (block * width * 2)
    pool = [sparse(blocks * block * width * 2).view(torch.bfloat16).view(blocks, block, width)]
    position = (1 << 22) + 5
    table = torch.zeros(1, position // block + 1, dtype=torch.int32)
    table[0, -1] = blocks - 1
    pool[0][blocks - 1, position % block] = 3.5
    hot = [torch.zeros(1, 2, width, dtype=torch.bfloat16)]
    with dispatch.forced(name):
        step = Residency(1, 2).step(torch.tensor([[position]]), [position + 1], [1])
        fetch_misses(hot, pool, step, table, block)
    assert (hot[0][0, step.slots[0, 0]] == 3.5).all()
