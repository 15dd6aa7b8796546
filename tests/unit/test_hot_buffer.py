"""A hot buffer equals a plain oracle slot by slot and its pool row by row, decode over it equals the resident run bit by bit,
places are released once.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracle import Oracle

from tidegate.engine import hot_buffer, row_pool
from tidegate.engine.hot_buffer import Counts, HotBuffer, HotRows, SparseKV
from tidegate.engine.model import Model, ModelConfig, ResidentKV, greedy, reference_generate
from tidegate.engine.model.reference import reference_prefill
from tidegate.engine.row_pool import RowPool

CAPACITY, ROW, ATTEMPT = 24, 1, 7


def filled(hot, length, counts=None):
    """A hot buffer of two layers whose rows say which layer and position they are."""
    pool = RowPool(2, 2, CAPACITY, 3, torch.float32)
    place = pool.claim()
    for layer in range(2):
        place.rows[layer] = (torch.arange(CAPACITY) + 100.0 * layer)[:, None]
    buffer = HotBuffer(place, HotRows(2, 2, hot, 3, torch.float32), ROW, ATTEMPT, counts)
    buffer.extend(length)
    return buffer


def check(hot, length, steps):
    """Run `steps` (positions to fetch, or one position to append) against the oracle, layer 1 a step behind layer 0."""
    counts = Counts()
    buffer, oracles, lengths, marks = filled(hot, length, counts), [Oracle(hot), Oracle(hot)], [length, length], [{}, {}]
    schedule = [(layer, i) for i in range(len(steps) + 1) for layer in (0, 1) if 0 <= i - layer < len(steps)]
    appended, totals, keep = 0, [0, 0, 0], [CAPACITY, CAPACITY]
    for layer, i in schedule:
        step, oracle = steps[i - layer], oracles[layer]
        if isinstance(step, int):
            position = min(step, lengths[layer], CAPACITY - 1)
            buffer.append(layer, position, torch.full((3,), 1000.0 + i))
            keep[layer] = min(keep[layer], position)
            lengths[layer] = max(lengths[layer], position + 1)
            marks[layer][position] = 1000.0 + i
            appended += 1
            continue
        slots, missed, _, hits, evictions = oracle.step(step, lengths[layer], ATTEMPT, keep[layer])
        keep[layer] = CAPACITY
        totals = [a + b for a, b in zip(totals, (hits, len(missed), evictions), strict=True)]
        assert buffer.resolve(layer, torch.tensor(step, dtype=torch.int64)).tolist() == slots
        for position, slot in oracle.entries:
            if position >= 0:
                assert buffer.rows(layer)[slot, 0] == marks[layer].get(position, position + 100.0 * layer)
        rows = buffer.fetch(layer, torch.tensor(step, dtype=torch.int64))  # all hits now
        totals[0] += oracle.step(step, lengths[layer], ATTEMPT, CAPACITY)[3]
        want = [marks[layer].get(p, p + 100.0 * layer) if 0 <= p < lengths[layer] else 0.0 for p in step]
        assert rows[:, 2].tolist() == want
    assert [counts.hits, counts.misses, counts.evictions] == totals
    assert counts.bytes_loaded == 12 * counts.misses
    assert counts.bytes_appended == 12 * appended
    assert buffer._hot.memory[:, 1 - ROW].isnan().all()  # the other row is somebody else's


TOP_K = st.lists(st.integers(-2, CAPACITY + 2), max_size=9)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 4), st.integers(0, CAPACITY), st.lists(TOP_K | st.integers(0, CAPACITY), max_size=12))
def test_hot_buffers_equal_the_oracle(spare, length, steps):
    hot = max([len({p for p in step if p >= 0}) for step in steps if isinstance(step, list)] + [1]) + spare
    check(hot, length, steps)


# capacity == k; short rows; padding; duplicates; a row that is written again; a new one
STEPS = [[0, 1, 2, 3], [3, -1, 7], [9, 9, 4, 5], [], [5, 8, 3, 9], [-1, -2], 5, [4, 5, 9, 0], 10, [10, 5], [23, 24, 25, 1], [1, 0, 4, 5]]


def test_hot_buffers_equal_the_oracle_at_capacity_k():
    check(4, 10, STEPS)


def rows_written_again_stay(monkeypatch):
    step = hot_buffer.Residency.step
    monkeypatch.setattr(hot_buffer.Residency, "step", lambda *args, keep, **rest: step(*args, **rest))


def misses_are_not_fetched(monkeypatch):
    monkeypatch.setattr(hot_buffer.RowPath, "copy_misses", lambda *args: None)


def misses_go_to_another_row(monkeypatch):
    fetch, elsewhere = hot_buffer.RowPath.copy_misses, torch.tensor([1 - ROW])
    monkeypatch.setattr(hot_buffer.RowPath, "copy_misses", lambda path, s, *rest: fetch(path, s._replace(rows=elsewhere), *rest))


def everything_is_fetched(monkeypatch):
    step = hot_buffer.Residency.step

    def planted(self, *args, **known):
        self.attempts.zero_()
        return step(self, *args, **known)

    monkeypatch.setattr(hot_buffer.Residency, "step", planted)


PLANTED = [rows_written_again_stay, misses_are_not_fetched, misses_go_to_another_row, everything_is_fetched]


@pytest.mark.parametrize("plant", PLANTED)
def test_the_oracle_sees_a_planted_bug(monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(4, 10, STEPS)


def test_the_next_attempt_in_a_row_begins_empty():
    """With hot rows taken for its own it would read the last one's: the same positions, other bytes."""
    hot, pool = HotRows(1, 1, 4, 3, torch.float32), RowPool(1, 1, CAPACITY, 3, torch.float32)
    place, seen = pool.claim(), []
    for attempt in (5, 6):
        place.rows[:] = attempt
        buffer = HotBuffer(place, hot, 0, attempt)
        buffer.extend(8)
        seen.append(buffer.fetch(0, torch.tensor([3, 1])).clone())
    assert [rows.unique().tolist() for rows in seen] == [[5.0], [6.0]]


def test_only_missing_rows_are_copied(monkeypatch):
    buffer, loaded, fetch = filled(4, 10), [], hot_buffer.RowPath.copy_misses

    def watched(path, step, *rest):
        loaded.append(step.miss_positions[0, : step.misses[0]].tolist())
        before = path.to[0].clone()
        fetch(path, step, *rest)
        changed = (path.to[0].view(torch.int32) != before.view(torch.int32)).any(-1).nonzero()
        assert {slot for _, slot in changed.tolist()} <= set(step.miss_slots[0, : step.misses[0]].tolist())

    monkeypatch.setattr(hot_buffer.RowPath, "copy_misses", watched)
    for step in ([0, 1, 2], [2, 3, 1], [3, 1, 2], [9, 1]):
        buffer.resolve(0, torch.tensor(step))
    assert loaded == [[0, 1, 2], [3], [], [9]]


def test_more_rows_than_fit_are_refused_and_change_nothing():
    buffer = filled(3, 10)
    buffer.resolve(0, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="4 distinct positions of a hot buffer of 3"):
        buffer.resolve(0, torch.tensor([1, 2, 3, 4]))
    assert buffer.resolve(0, torch.tensor([1, 2, 2, -1, 11])).tolist() == [0, 1, 1, -1, -1]
    assert buffer.counts.misses == 2


def test_hot_rows_that_cannot_be():
    with pytest.raises(ValueError, match="0 slots, width 3: each must be at least 1"):
        HotRows(1, 2, 0, 3, torch.float32)
    with pytest.raises(ValueError, match=r"a place of 2 layers, width 3, over hot buffers of shape \(2, 1, 4, 5\)"):
        HotBuffer(RowPool(1, 2, CAPACITY, 3, torch.float32).claim(), HotRows(1, 2, 4, 5, torch.float32), 0, 1)


def test_rows_come_in_order_and_not_past_the_place():
    buffer = filled(3, 10)
    for position in (11, -1):
        with pytest.raises(ValueError, match=rf"position {position}: rows 0\.\.10 are there"):
            buffer.append(0, position, torch.zeros(3))
    buffer.extend(CAPACITY)
    with pytest.raises(ValueError, match="place holds 24"):
        buffer.append(0, CAPACITY, torch.zeros(3))
    for length in (CAPACITY - 1, CAPACITY + 1):
        with pytest.raises(ValueError, match="it is 24 now"):
            buffer.extend(length)
    with pytest.raises(ValueError, match=r"goes to row 24: the destination has rows 0..24"):
        buffer.place.append(0, CAPACITY, torch.zeros(3))


# --- places


def test_places_are_apart_and_released_once():
    pool = RowPool(3, 2, 5, 4, torch.bfloat16)
    one, two, three = (pool.claim() for _ in range(3))
    assert pool.claim() is None
    for place in (one, two, three):
        pool.poison(place)
        assert place.rows.isnan().all()
    flat = pool.memory.reshape(-1).view(torch.uint8)
    offset, length = two.byte_range(1, 2, 3)
    flat[offset : offset + length] = 0
    assert (two.rows[1, 2:] == 0).all()
    assert pool.memory.isnan().sum() == pool.memory.numel() - 12
    pool.release(two)
    with pytest.raises(ValueError, match="released once"):
        pool.release(two)
    with pytest.raises(ValueError, match="released once"):
        pool.release(RowPool(1, 1, 1, 1, torch.int8).claim())
    assert pool.claim().number == two.number
    for layer, first, count in ((2, 0, 1), (-1, 0, 1), (0, 3, 3), (0, -1, 1), (0, 0, -1)):
        with pytest.raises(ValueError, match="a place has 2 layers of 5"):
            one.byte_range(layer, first, count)


def test_byte_ranges_beyond_32_bits():
    place = object.__new__(row_pool.Place)
    place.number, place.rows = 40, torch.empty(61, 131072, 576, dtype=torch.bfloat16, device="meta")
    assert place.byte_range(60, 131071, 1) == (((40 * 61 + 60) * 131072 + 131071) * 1152, 1152)


# --- decode

SMALL = ModelConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    first_k_dense_replace=2,
    q_lora_rank=32,
    kv_lora_rank=96,
    qk_rope_head_dim=16,
    index_topk=12,
    index_head_dim=32,
)


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("hot", "n"), [(12, 90), (17, 90), (120, 90), (12, 5)])
def test_decode_from_the_hot_buffer_gives_the_resident_tokens(hot, n):
    model = Model.random(SMALL, 3)
    prompts = [torch.randint(0, 256, (n + 3 * i,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(3)]
    mains, indices = (RowPool(3, 3, 120, width, torch.bfloat16) for width in (SMALL.main_width, SMALL.index_width))
    counts, requests, rows = Counts(), [], HotRows(3, 3, hot, SMALL.main_width, torch.bfloat16)
    for attempt, prompt in enumerate(prompts, 1):
        resident, main, index = ResidentKV(SMALL, 120), mains.claim(), indices.claim()
        reference_prefill(model, prompt, 32, resident)
        mains.poison(main)
        indices.poison(index)
        main.rows[:, : len(prompt)], index.rows[:, : len(prompt)] = (
            x[:, : len(prompt)] for x in (resident.main, resident.index)
        )
        requests.append((prompt[-1], len(prompt) - 1, SparseKV(main, index, len(prompt), rows, attempt, counts)))
    tokens, logits = [], []
    for _ in range(8):
        logits.append(model.decode_step(requests))
        tokens.append(greedy(logits[-1]))
        requests = [(token, position + 1, kv) for token, (_, position, kv) in zip(tokens[-1], requests, strict=True)]
    for i, prompt in enumerate(prompts):
        want, want_logits = reference_generate(model, prompt, 32, 8)
        assert [step[i] for step in tokens] == want
        assert torch.equal(torch.stack(logits)[:, i], want_logits)
    assert counts.hits + counts.misses == sum(min(12, len(prompt) + i) for prompt in prompts for i in range(8)) * 3
    assert (counts.evictions > 0) == (hot < 120)
