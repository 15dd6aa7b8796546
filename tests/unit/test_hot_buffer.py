"""Residency equals a plain oracle slot by slot, decode over it equals the resident run bit by bit, places are
released once.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.engine import hot_buffer
from tidegate.engine.hot_buffer import Counts, HotBuffer, SparseKV
from tidegate.engine.model import Model, ModelConfig, ResidentKV, greedy, reference_generate
from tidegate.engine.model.reference import reference_prefill
from tidegate.engine.row_pool import RowPool

CAPACITY = 24


class Oracle:
    """One layer's hot buffer, said plainly: a list of [position, slot], next victim first."""

    def __init__(self, hot):
        self.entries = [[-1, slot] for slot in range(hot)]
        self.hits = self.misses = self.evictions = 0

    def step(self, positions, length):
        asked = []
        for position in positions:
            if 0 <= position < length and position not in asked:
                asked.append(position)
        hits = [entry for entry in self.entries if entry[0] in asked]
        rest = [entry for entry in self.entries if entry[0] not in asked]
        resident = [entry[0] for entry in hits]
        misses = []
        for position in asked:
            if position not in resident:
                victim = rest.pop(0)
                self.evictions += victim[0] >= 0
                misses.append([position, victim[1]])
        self.entries = rest + misses + hits
        self.hits += len(hits)
        self.misses += len(misses)
        slot_of = {position: slot for position, slot in self.entries if position >= 0}
        return [slot_of[position] if 0 <= position < length else -1 for position in positions]

    def forget(self, position):
        for entry in [entry for entry in self.entries if entry[0] == position]:
            self.entries.remove(entry)
            self.entries.insert(0, [-1, entry[1]])


def filled(hot, length, counts=None):
    """A hot buffer of two layers whose rows say which layer and position they are."""
    pool = RowPool(2, 2, CAPACITY, 3, torch.float32)
    place = pool.claim()
    for layer in range(2):
        place.rows[layer] = (torch.arange(CAPACITY) + 100.0 * layer)[:, None]
    buffer = HotBuffer(place, hot, counts)
    buffer.extend(length)
    return buffer


def check(hot, length, steps):
    """Run `steps` (positions to fetch, or one position to append) against the oracle, layer 1 a step behind layer 0."""
    counts = Counts()
    buffer, oracles, lengths, marks = filled(hot, length, counts), [Oracle(hot), Oracle(hot)], [length, length], [{}, {}]
    schedule = [(layer, i) for i in range(len(steps) + 1) for layer in (0, 1) if 0 <= i - layer < len(steps)]
    appended = 0
    for layer, i in schedule:
        step, oracle = steps[i - layer], oracles[layer]
        if isinstance(step, int):
            position = min(step, lengths[layer], CAPACITY - 1)
            buffer.append(layer, position, torch.full((3,), 1000.0 + i))
            oracle.forget(position)
            lengths[layer] = max(lengths[layer], position + 1)
            marks[layer][position] = 1000.0 + i
            appended += 1
            continue
        slots = buffer.resolve(layer, torch.tensor(step, dtype=torch.int64))
        assert slots.tolist() == oracle.step(step, lengths[layer])
        table = buffer._tables[layer]
        assert [[table.position_of[slot], slot] for slot in table.order] == oracle.entries
        for position, slot in oracle.entries:
            if position >= 0:
                assert buffer.rows[layer, slot, 0] == marks[layer].get(position, position + 100.0 * layer)
        rows = buffer.fetch(layer, torch.tensor(step, dtype=torch.int64))  # all hits now
        oracle.step(step, lengths[layer])
        want = [marks[layer].get(p, p + 100.0 * layer) if 0 <= p < lengths[layer] else 0.0 for p in step]
        assert rows[:, 2].tolist() == want
    totals = [sum(getattr(o, name) for o in oracles) for name in ("hits", "misses", "evictions")]
    assert [counts.hits, counts.misses, counts.evictions] == totals
    assert counts.bytes_loaded == 12 * counts.misses
    assert counts.bytes_appended == 12 * appended


TOP_K = st.lists(st.integers(-2, CAPACITY + 2), max_size=9)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 4), st.integers(0, CAPACITY), st.lists(TOP_K | st.integers(0, CAPACITY), max_size=12))
def test_residency_equals_the_oracle(spare, length, steps):
    hot = max([len({p for p in step if p >= 0}) for step in steps if isinstance(step, list)] + [1]) + spare
    check(hot, length, steps)


# capacity == k; short rows; padding; duplicates; eviction of the untouched before the missed; a hit keeps its old order
STEPS = [
    [0, 1, 2, 3],
    [3, -1, 7],
    [9, 9, 4, 5],
    [],
    [5, 8, 3, 9],
    [-1, -2],
    5,
    [4, 5, 9, 0],
    [23, 24, 25, 1],
    [1, 0, 4, 5],
    [6, 7, 8, 5],
]


def test_residency_equals_the_oracle_at_capacity_k():
    check(4, 10, STEPS)


def hits_newest_in_top_k_order(table):
    step = table.step

    def planted(asked):
        answer = step(asked)
        hit = [slot for slot in table.slot_of[asked] if slot not in answer[1]]
        table.order[len(table.order) - len(hit) :] = hit
        return answer

    table.step = planted


def misses_newest(table):
    step = table.step

    def planted(asked):
        answer = step(asked)
        table.order = hot_buffer.np.concatenate([[s for s in table.order if s not in answer[1]], answer[1]]).astype(int)
        return answer

    table.step = planted


def victims_stay_mapped(table):
    step = table.step

    def planted(asked):
        gone = table.position_of[table.order[0]]
        answer = step(asked)
        if len(answer[0]) and gone >= 0:
            table.slot_of[gone] = answer[1][0]
        return answer

    table.step = planted


def forgets_nothing(table):
    table.forget = lambda position: None


PLANTED = [hits_newest_in_top_k_order, misses_newest, victims_stay_mapped, forgets_nothing]


@pytest.mark.parametrize("plant", PLANTED)
def test_the_oracle_sees_a_planted_bug(monkeypatch, plant):
    make = hot_buffer._Residency.__init__

    def planted(table, *args):
        make(table, *args)
        plant(table)

    monkeypatch.setattr(hot_buffer._Residency, "__init__", planted)
    with pytest.raises(AssertionError):
        check(4, 10, STEPS)


def test_only_missing_rows_are_copied(monkeypatch):
    buffer, loaded = filled(4, 10), []
    monkeypatch.setattr(buffer, "_load", lambda layer, missed, slots: loaded.append(missed.tolist()))
    for step in ([0, 1, 2], [2, 3, 1], [3, 1, 2], [9, 1]):
        buffer.resolve(0, torch.tensor(step))
    assert loaded == [[0, 1, 2], [3], [], [9]]


def test_more_rows_than_fit_are_refused_and_change_nothing():
    buffer = filled(3, 10)
    buffer.resolve(0, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="4 rows asked of a hot buffer of 3"):
        buffer.resolve(0, torch.tensor([1, 2, 3, 4]))
    assert buffer.resolve(0, torch.tensor([1, 2, 2, -1, 11])).tolist() == [0, 1, 1, -1, -1]
    assert buffer.counts.misses == 2


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
    place = object.__new__(hot_buffer.Place)
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
    counts, requests = Counts(), []
    for prompt in prompts:
        resident, main, index = ResidentKV(SMALL, 120), mains.claim(), indices.claim()
        reference_prefill(model, prompt, 32, resident)
        mains.poison(main)
        indices.poison(index)
        main.rows[:, : len(prompt)], index.rows[:, : len(prompt)] = (
            x[:, : len(prompt)] for x in (resident.main, resident.index)
        )
        requests.append((prompt[-1], len(prompt) - 1, SparseKV(main, index, len(prompt), hot, counts)))
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
