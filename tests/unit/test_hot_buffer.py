"""Hot buffers equal a plain oracle slot by slot and their paged pool row by row, whatever blocks an attempt has; decode over them equals
the resident run bit by bit, with NaN wherever nobody wrote.
"""

import dataclasses
import random
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracle import Oracle

from tidegate.engine import hot_buffer
from tidegate.engine.decode_engine import DecodeEngine, RowKind
from tidegate.engine.decode_kv import AttemptBatch, AttemptStore
from tidegate.engine.hot_buffer import HotBuffers, Reader
from tidegate.engine.model import Model, ModelConfig, ResidentKV, Speculating, greedy, reference_generate, speculate
from tidegate.engine.model.reference import reference_prefill
from tidegate.engine.paged_rows import PagedRows

CAPACITY, ROW, ATTEMPT, BLOCK = 24, 1, 7, 4
BLOCKS = (8, 3, 12, 0, 9, 5)  # of a pool of 13; the others are NaN
KIND = RowKind("main", "float32", 3)


class Rig:
    """Hot buffers of two layers and two rows over rows that say which layer and position they are."""

    def __init__(self, hot, length, *, blocks=BLOCKS, attempt=ATTEMPT):
        self.pool = PagedRows(KIND, torch.full((2, 13, BLOCK, 3), float("nan")))
        for layer in range(2):
            for number, block in enumerate(blocks):
                self.pool.memory[layer, block] = (torch.arange(BLOCK) + BLOCK * number + 100.0 * layer)[:, None]
        self.buffers = HotBuffers([self.pool], rows=2, hot=hot, poison=True)
        self.reader = Reader(attempt, ROW, blocks, length, layers=2, block_size=BLOCK)

    @property
    def counts(self):
        return self.buffers.counts

    def rows(self, layer):
        return self.buffers.memory[0][layer, ROW]

    def append(self, layer, position, row):
        self.pool.write(layer, torch.tensor([self.reader.place(layer, position)]), row[None])
        self.reader.wrote(layer, position)

    def resolve(self, layer, positions):
        step = self.buffers.look_up(layer, [self.reader], positions[None])
        self.buffers.fetch(layer, [self.reader], step)
        return step.slots[0]

    def fetch(self, layer, positions):
        slots = self.resolve(layer, positions)
        return torch.where((slots < 0)[:, None], 0.0, self.rows(layer)[slots.clamp_min(0).long()])


def check(hot, length, steps):
    """Run `steps` (positions to fetch, or one position to append) against the oracle, layer 1 a step behind layer 0."""
    buffer, oracles, lengths, marks = Rig(hot, length), [Oracle(hot), Oracle(hot)], [length, length], [{}, {}]
    schedule = [(layer, i) for i in range(len(steps) + 1) for layer in (0, 1) if 0 <= i - layer < len(steps)]
    totals, keep = [0, 0, 0], [CAPACITY, CAPACITY]
    for layer, i in schedule:
        step, oracle = steps[i - layer], oracles[layer]
        if isinstance(step, int):
            position = min(step, lengths[layer], CAPACITY - 1)
            buffer.append(layer, position, torch.full((3,), 1000.0 + i))
            keep[layer] = min(keep[layer], position)
            lengths[layer] = position + 1
            marks[layer][position] = 1000.0 + i
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
    counts = buffer.counts
    assert [counts.hits, counts.misses, counts.evictions] == totals
    assert counts.bytes_loaded == 12 * counts.misses
    assert buffer.buffers.memory[0][:, 1 - ROW].isnan().all()  # the other row is somebody else's


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
    rig, seen = Rig(4, 8), []
    for attempt in (5, 6, 6):
        rig.pool.memory[:] = attempt + len(seen)
        rig.reader = Reader(attempt, ROW, BLOCKS, 8, layers=2, block_size=BLOCK)
        seen.append(rig.fetch(0, torch.tensor([3, 1])))
    assert [rows.unique().tolist() for rows in seen] == [[5.0], [7.0], [7.0]]  # the last is the same attempt: its rows are still hot


def test_readers_of_one_step_read_their_own_blocks():
    rig = Rig(4, 8)
    other = Reader(8, 0, (7,), 3, layers=2, block_size=BLOCK)
    rig.pool.memory[1, 7] = torch.tensor([70.0, 71.0, 72.0, 73.0])[:, None]
    step = rig.buffers.look_up(1, [rig.reader, other], torch.tensor([[7, 0, -1], [2, 3, 0]]))
    rig.buffers.fetch(1, [rig.reader, other], step)
    assert step.slots.tolist() == [[0, 1, -1], [0, -1, 1]]  # position 3 of the other is not written yet
    assert rig.buffers.memory[0][1, ROW, :2, 0].tolist() == [107.0, 100.0]
    assert rig.buffers.memory[0][1, 0, :2, 0].tolist() == [72.0, 70.0]


def test_only_missing_rows_are_copied(monkeypatch):
    buffer, loaded, fetch = Rig(4, 10), [], hot_buffer.RowPath.copy_misses

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
    buffer = Rig(3, 10)
    buffer.resolve(0, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="4 distinct positions of a hot buffer of 3"):
        buffer.resolve(0, torch.tensor([1, 2, 3, 4]))
    assert buffer.resolve(0, torch.tensor([1, 2, 2, -1, 11])).tolist() == [0, 1, 1, -1, -1]
    assert buffer.counts.misses == 2


def test_hot_rows_that_cannot_be():
    with pytest.raises(ValueError, match="0 slots: each must be at least 1"):
        HotBuffers([Rig(1, 1).pool], rows=1, hot=0)


def test_rows_come_in_order_and_not_past_the_blocks():
    buffer = Rig(3, 10)
    for position in (11, -1):
        with pytest.raises(ValueError, match=rf"attempt 7 layer 0 position {position}: rows 0\.\.10 are there"):
            buffer.append(0, position, torch.zeros(3))
    buffer = Rig(3, CAPACITY)
    with pytest.raises(ValueError, match="its blocks hold 24"):
        buffer.append(0, CAPACITY, torch.zeros(3))
    with pytest.raises(ValueError, match="has 25 tokens, its 6 blocks of 4 hold 24"):
        Reader(1, 0, BLOCKS, CAPACITY + 1, layers=2, block_size=BLOCK)


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


def complete(engine, prompt, rows, new_tokens):
    """An attempt whose rows are put where a pull would have put them."""
    attempt = engine.admit("r", prompt, new_tokens=new_tokens)
    engine.owner.ask(lambda: None)  # it has its memory now
    one, n = engine.memory.owned[attempt], len(prompt)
    for pages, resident in zip(engine.memory.pages.values(), rows, strict=True):
        assert pages.memory[:, list(one.blocks)].isnan().all()
        for layer in range(engine.memory.layers):
            for token in range(n):
                pages.memory[layer, one.blocks[token // 16], token % 16] = resident[layer, token]
    engine.core.readers[attempt] = Reader(attempt, one.row, one.blocks, n, layers=engine.memory.layers, block_size=16)
    return attempt


@contextmanager
def decoding(model, hot, n):
    """An engine with three complete requests of `model`, and of each (prompt, attempt); no two have blocks that lie in a row."""
    config = model.config
    prompts = [torch.randint(0, 256, (n + 3 * i,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(3)]
    kinds = [RowKind("main", "bfloat16", config.main_width), RowKind("index", "bfloat16", config.index_width)]
    engine = DecodeEngine(kinds, layers=config.cache_layers, blocks=24, block_size=16, rows=3, hot=hot, poison=True)
    engine.open()
    try:
        for attempt in [engine.admit("gone", [1] * size, new_tokens=0) for size in (17, 40)]:
            engine.abort(attempt, "made room")
        requests = []
        for prompt in prompts:
            resident = ResidentKV(config, 120)
            reference_prefill(model, prompt, 32, resident)
            requests.append((prompt, complete(engine, prompt, (resident.main, resident.index), 8)))
        yield engine, requests
    finally:
        engine.stats = engine.close()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("hot", "n"), [(12, 90), (17, 90), (120, 90), (12, 5)])
def test_decode_from_the_hot_buffer_gives_the_resident_tokens(hot, n):
    model = Model.random(SMALL, 3)
    with decoding(model, hot, n) as (engine, given):
        requests = [(prompt[-1], len(prompt) - 1, attempt) for prompt, attempt in given]
        tokens, logits = [], []
        for _ in range(8):
            logits.append(model.decode_step(AttemptBatch(engine, requests)))
            tokens.append(greedy(logits[-1]))
            requests = [(token, position + 1, attempt) for token, (_, position, attempt) in zip(tokens[-1], requests, strict=True)]
    stats = engine.stats
    for i, (prompt, _) in enumerate(given):
        want, want_logits = reference_generate(model, prompt, 32, 8)
        assert [step[i] for step in tokens] == want
        assert torch.equal(torch.stack(logits)[:, i], want_logits)
    assert stats["hits"] + stats["misses"] == sum(min(12, len(prompt) + i) for prompt, _ in given for i in range(8)) * 3
    assert (stats["evictions"] > 0) == (hot < 120)
    assert stats["bytes_appended"] == 3 * 8 * 3 * SMALL.main_width * 2


# --- several tokens of one attempt in a step, some of which are refused


def speculated(hot, store):
    """Tokens and logits of three requests, whose drafts are right now and then; `store` makes their storage of an engine."""
    model, draw = Model.random(dataclasses.replace(SMALL, num_nextn_predict_layers=1), 3), random.Random(1)
    with decoding(model, hot, 60) as (engine, given):
        wanted = [reference_generate(model, prompt, 32, 8) for prompt, _ in given]
        requests = [Speculating(attempt, prompt[-1], len(prompt) - 1, len(prompt) + 7) for prompt, attempt in given]
        found = [([], []) for _ in requests]
        while going := [i for i, one in enumerate(requests) if one.position < one.end]:
            for i in going:
                right = wanted[i][0][len(found[i][0]) :][: requests[i].end - requests[i].position - 1]
                requests[i].drafts = [token if draw.random() < 0.6 else 7 for token in right[:3]]
            for i, (tokens, logits) in zip(going, speculate(model, [requests[i] for i in going], store(engine), drafts=1), strict=True):
                found[i][0].extend(tokens)
                found[i][1].append(logits)
                one = requests[i]
                assert set(engine.core.readers[one.key].lengths) == {one.position}, "every layer has the known tokens' rows and no more"
    return [(tokens, torch.cat(logits)) for tokens, logits in found], wanted


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("hot", [12, 30])
def test_refused_drafts_leave_nothing_in_pool_and_hot_buffer(hot):
    for (tokens, logits), (want, want_logits) in zip(*speculated(hot, AttemptStore), strict=True):
        assert tokens == want
        assert torch.equal(logits, want_logits)


class LaterTokensFirst(AttemptBatch):
    """The look-up of an attempt's second token stands before that of its first, and what it found is taken for the first's."""

    def fetch(self, layer, positions):
        for some in self._rounds[1:]:
            for i in some:
                positions[i - 1] = positions[i]
        return super().fetch(layer, positions)


@pytest.mark.usefixtures("one_thread")
def test_the_check_sees_tokens_of_one_attempt_taken_for_each_other(monkeypatch):
    monkeypatch.setattr(AttemptStore, "batch", lambda self, steps: LaterTokensFirst(self._engine, steps))
    found, wanted = speculated(12, AttemptStore)
    assert any(not torch.equal(logits, want) for (_, logits), (_, want) in zip(found, wanted, strict=True))


@pytest.mark.usefixtures("one_thread")
def test_the_check_sees_rows_that_are_not_rolled_back(monkeypatch):
    monkeypatch.setattr(AttemptStore, "rollback", lambda self, request, length: None)
    with pytest.raises(AssertionError, match="known tokens' rows and no more"):
        speculated(12, AttemptStore)


@pytest.mark.usefixtures("one_thread")
def test_the_check_sees_hot_copies_of_refused_drafts(monkeypatch):
    """The pool is rolled back and the hot buffer is not: a row at a refused draft's position is read as it was."""

    def rollback(self, length):
        self.lengths = [min(before, length) for before in self.lengths]

    def wrote(self, layer, position):
        self.lengths[layer] = position + 1

    def equal():
        return [torch.equal(logits, want) for (_, logits), (_, want) in zip(*speculated(30, AttemptStore), strict=True)]

    monkeypatch.setattr(Reader, "rollback", rollback)
    assert all(equal()), "what is written again leaves the hot buffer too"
    monkeypatch.setattr(Reader, "wrote", wrote)
    assert not all(equal())


def test_rows_that_are_rolled_back_are_not_found():
    rig = Rig(8, 12)
    assert rig.fetch(0, torch.tensor([4, 9, 10]))[:, 0].tolist() == [4.0, 9.0, 10.0]
    rig.reader.rollback(10)
    assert rig.reader.lengths == [10, 10]
    assert rig.fetch(0, torch.tensor([4, 9, 10]))[:, 0].tolist() == [4.0, 9.0, 0.0]
    assert rig.fetch(1, torch.tensor([10]))[:, 0].tolist() == [0.0]
    rig.append(0, 10, torch.full((3,), 77.0))
    assert rig.fetch(0, torch.tensor([10, 4]))[:, 0].tolist() == [77.0, 4.0]
    with pytest.raises(ValueError, match=r"position 11: rows 0\.\.10 are there"):
        rig.append(1, 11, torch.zeros(3))
    with pytest.raises(ValueError, match="rolled back to -1"):
        rig.reader.rollback(-1)
