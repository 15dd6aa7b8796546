"""What runs ask of the host pool: blocks by content, reused while they are pinned, given back when nobody needs them."""

import queue
import threading

import numpy as np
import pytest

from tidegate.engine.copying import Fault, Outcome, Work
from tidegate.engine.pool_keys import stops_of
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_copies import PoolCopies, _Load, extent_layout
from tidegate.engine.slot_layout import plan_layout
from tidegate.engine.slots import SharedMemory
from tidegate.protocol.messages import Start, TransferId

BLOCK, CHUNK, LAYERS = 4, 8, 3
PROMPT = tuple(range(100, 121))  # 21 tokens: 3 chunks, 6 objects
BLOCKS = (3, 0, 5, 1, 7, 2)
OTHERS = (9, 11, 4, 6, 8, 10)


class Rig:
    """Copies over slots of 3 layers; calls are heard when `hear` is called, in this thread."""

    def __init__(self, extents=12, faults=None, pool=None, rank=0, ranks=1, lookahead=0):
        self.memory = SharedMemory.allocate(plan_layout([0, 1, 1], {"main": 6, "index": 2}, "int8", blocks=12, block_size=BLOCK))
        self.pool = pool or LocalPool(extent_layout(self.memory.layout), extents, faults=faults)
        self.calls = queue.Queue()
        self.copies = PoolCopies(self.pool, self.memory, span=self.span, post=self.calls.put, rank=rank, ranks=ranks, lookahead=lookahead)
        self.ended = []

    def span(self, run, chunk):
        return (chunk - 1) * CHUNK, min(chunk * CHUNK, len(PROMPT))

    def hear(self, count):
        for _ in range(count):
            self.calls.get(timeout=10)()

    def begin(self, run, prompt=PROMPT, blocks=BLOCKS):
        return self.copies.begin(run, Start("r", run, 1, len(prompt), prompt), blocks)

    def told(self, step, outcome):
        self.ended.append(outcome)

    def rows(self, chunk, slot, blocks=BLOCKS):
        first, end = self.span(0, chunk)
        return self.memory.token_views(slot, blocks[first // BLOCK : -(-end // BLOCK)], first, end)

    def save(self, run, chunk, seed=0, blocks=BLOCKS, layers=range(1, LAYERS + 1)):
        """Write and save a chunk; the outcomes, heard."""
        for layer in layers:
            slot = self.memory.layout.slot_of_layer[layer - 1]
            for number, view in enumerate(self.rows(chunk, slot, blocks)):
                view.fill_((7 * layer + 3 * chunk + number + seed) % 127)
            self.copies.save(TransferId(run, chunk, layer, 0), Work(slot, 1), self.told)
            self.hear(1)
        return self.ended[-len(layers) :]

    def whole(self, run, **options):
        for chunk in (1, 2, 3):
            assert all(outcome.ok for outcome in self.save(run, chunk, **options))
            self.copies.finish(run, chunk)

    def wipe(self):
        self.memory.bytes[:] = 255


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    close(rig)


def close(rig):
    rig.copies.drain()
    rig.hear(rig.calls.qsize())
    rig.copies.close()
    rig.memory.close()


def expected(rig, chunk, layer, seed=0):
    return [(7 * layer + 3 * chunk + number + seed) % 127 for number in range(len(rig.rows(chunk, 0)))]


def test_objects_end_where_blocks_chunks_and_prompts_do():
    assert stops_of(21, 4, 8) == [4, 8, 12, 16, 20, 21]
    assert stops_of(10, 4, 6) == [4, 6, 8, 10]
    assert stops_of(4, 4, 8) == stops_of(4, 8, 4) == [4]


def test_earlier_chunks_are_loaded_into_the_blocks_of_the_run(rig):
    assert rig.begin(1) == 0
    rig.whole(1)
    for layer in (1, 2, 3):
        rig.wipe()
        slot = rig.memory.layout.slot_of_layer[layer - 1]
        rig.copies.load(TransferId(1, 3, layer, 0), Work(slot, 2), rig.told)
        rig.hear(2)
        assert rig.ended[-1].ok
        for chunk in (1, 2):
            assert [int(view.unique().item()) for view in rig.rows(chunk, slot)] == expected(rig, chunk, layer)
        assert all((view == -1).all() for view in rig.rows(3, slot))
    assert rig.copies.bytes_loaded == 3 * 16 * 8
    rig.copies.end(1)


def test_what_an_earlier_run_left_is_filled_in_and_not_saved_again(rig):
    rig.begin(1)
    rig.whole(1)
    rig.copies.end(1)
    saved = rig.copies.bytes_saved
    assert rig.begin(2, blocks=OTHERS) == 20  # but for the object of the last token
    rig.wipe()
    rig.copies.fill(TransferId(2, 2, 3, 0), Work(1, 1), 8, 16, rig.told)
    rig.hear(1)
    assert [int(view.unique().item()) for view in rig.rows(2, 1, OTHERS)] == expected(rig, 2, 3)
    assert (rig.copies.bytes_reused, rig.copies.tokens_reused) == (8 * 8, 20)
    rig.whole(2, blocks=OTHERS)
    assert rig.copies.bytes_saved == saved  # the last token's object was stored too
    rig.copies.end(2)
    assert rig.pool.stats()["objects"] == 6


def test_where_rows_look_ahead_a_block_is_shared_only_with_the_token_after_it():
    rig = Rig(lookahead=1)
    rig.begin(1)
    rig.whole(1)
    rig.copies.end(1)
    for differs, shared in ((20, 16), (17, 16), (16, 12), (13, 12), (12, 8), (0, 0)):
        prompt = (*PROMPT[:differs], 99, *PROMPT[differs + 1 :])
        assert rig.begin(2 + differs, prompt) == shared, f"token {differs} differs"
        rig.copies.end(2 + differs)
    assert rig.begin(40) == 20, "its own beginning, whole"
    rig.copies.end(40)
    close(rig)


def test_a_prompt_that_is_not_told_shares_nothing(rig):
    for run in (1, 2):
        start = Start("r", run, 1, len(PROMPT), ())
        assert rig.copies.begin(run, start, BLOCKS) == 0
        rig.whole(run)
        rig.copies.end(run)
    assert rig.pool.stats()["objects"] == 12
    assert rig.begin(3) == 0


def test_two_runs_of_one_prompt_at_once_do_not_wait_for_each_other(rig):
    rig.begin(1)
    rig.begin(2, blocks=OTHERS)
    rig.save(1, 1, layers=[1])
    assert [outcome.bytes for outcome in rig.save(2, 1, seed=50, blocks=OTHERS)] == [64] * 3  # under a name of its own
    rig.copies.finish(2, 1)
    rig.save(1, 1, layers=[2, 3])
    rig.copies.finish(1, 1)
    assert [outcome.bytes for outcome in rig.save(1, 2)] == [64] * 3
    rig.copies.finish(1, 2)
    assert [outcome.bytes for outcome in rig.save(2, 2, blocks=OTHERS)] == [0] * 3  # stored by now
    rig.copies.finish(2, 2)
    for run, seed, blocks in ((1, 0, BLOCKS), (2, 50, OTHERS)):
        rig.wipe()
        rig.copies.load(TransferId(run, 2, 3, 0), Work(1, 1), rig.told)
        rig.hear(1)
        assert [int(view.unique().item()) for view in rig.rows(1, 1, blocks)] == expected(rig, 1, 3, seed)
        rig.copies.end(run)
    assert rig.pool.stats() | {"objects": 6, "evictable": 6, "holds": 0} == rig.pool.stats()


def test_a_full_pool_fails_the_save_and_says_so():
    rig = Rig(extents=3)
    rig.begin(1)
    assert all(outcome.ok for outcome in rig.save(1, 1))
    rig.copies.finish(1, 1)
    outcomes = rig.save(1, 2)
    assert [(outcome.ok, outcome.stopped) for outcome in outcomes] == [(False, True)] * 3
    assert "the pool is full: every one of its 3 blocks is in use; give it more" in outcomes[0].reason
    assert rig.pool.stats()["writing"] == 0  # the one that there was room for is given back
    rig.copies.end(1)
    rig.begin(2, PROMPT[::-1])
    assert all(outcome.ok for outcome in rig.save(2, 1))  # in the place of what nobody needs any more
    close(rig)


def test_a_failed_run_leaves_nothing_half_written(rig):
    rig.begin(1)
    rig.save(1, 1)
    rig.copies.finish(1, 1)
    rig.save(1, 2, layers=[1])
    rig.copies.remove(1, [2])
    rig.copies.end(1)
    assert rig.pool.stats() | {"objects": 2, "evictable": 2, "writing": 0} == rig.pool.stats()
    rig.copies.remove(7, [1])  # it never began
    rig.copies.end(7)


def test_pins_outlast_the_run_while_a_copy_is_under_way():
    hold = threading.Event()
    rig = Rig(faults=lambda kind, work: Fault(hold=hold) if kind == "load" else None)
    rig.begin(1)
    rig.whole(1)
    rig.copies.load(TransferId(1, 2, 2, 0), Work(1, 1), rig.told)
    rig.copies.end(1)
    assert rig.pool.stats()["evictable"] == 0
    hold.set()
    rig.hear(1)
    assert rig.ended[-1].ok
    assert rig.pool.stats()["evictable"] == 6
    close(rig)


def test_saves_that_end_after_the_run_still_count():
    hold = threading.Event()
    rig = Rig(faults=lambda kind, work: Fault(hold=hold) if kind == "save" and work.labels["pool_chunk"] == 3 else None)
    rig.begin(1)
    for chunk in (1, 2):
        rig.save(1, chunk)
        rig.copies.finish(1, chunk)
    for layer in (1, 2, 3):
        rig.copies.save(TransferId(1, 3, layer, 0), Work(0, 1), lambda step, outcome: step.layer == 3 and rig.copies.finish(1, 3))
    rig.copies.end(1)
    hold.set()
    rig.hear(3)
    assert rig.pool.stats() | {"objects": 6, "evictable": 6, "writing": 0} == rig.pool.stats()
    close(rig)


def test_a_drained_pool_copies_no_more_and_hears_what_has_ended():
    rig = Rig(faults=lambda kind, work: Fault(delay=0.05))
    rig.begin(1)
    rig.copies.save(TransferId(1, 1, 1, 0), Work(0, 1), rig.told)
    rig.copies.drain()
    rig.copies.save(TransferId(1, 1, 2, 0), Work(0, 1), rig.told)
    close(rig)
    assert [outcome.ok for outcome in rig.ended] == [True, False]
    assert "the pool is closed: nothing more is copied" in rig.ended[1].reason
    assert not rig.pool.path.exists()


def test_offsets_name_what_the_views_show(rig):
    """Where a block's rows lie is said twice, in views and in offsets; a mark made through one is found through the other."""
    rig.begin(1)
    for chunk in (1, 2, 3):
        for slot in (0, 1):
            rig.memory.bytes[:] = 0
            for view in rig.rows(chunk, slot):
                view.fill_(1)
            state = rig.copies._runs[1]
            objects = state.objects(*rig.span(1, chunk))
            seen = np.zeros_like(rig.memory.bytes)
            for rows, at in zip(state.rows[objects], rig.copies._offsets(state, objects, slot), strict=True):
                for area, offset in zip(rig.memory.layout.areas_of(slot), at, strict=True):
                    seen[offset : offset + rows * area.row_bytes] = 1
            assert (seen == rig.memory.bytes).all()


def test_a_load_of_several_chunks_is_the_sum_of_its_parts_and_fails_if_one_does() -> None:
    ended: list[Outcome] = []
    load = _Load(3, ended.append)
    load.part_ended(Outcome(True, True, copies=1, bytes=2, seconds=0.5))
    load.part_ended(Outcome(False, True, "no", seconds=1.0))
    assert not ended
    load.part_ended(Outcome(True, True, copies=1, bytes=4, seconds=0.25))
    assert ended == [Outcome(False, True, "no", copies=2, bytes=6, seconds=1.75)]


def test_a_fill_that_is_made_again_counts_once() -> None:
    failing = ["the first"]
    rig = Rig(faults=lambda kind, work: Fault("unknown") if kind == "fill" and failing and failing.pop() else None)
    rig.begin(1)
    rig.whole(1)
    assert rig.begin(2, blocks=OTHERS) == 20
    rig.wipe()
    rig.copies.fill(TransferId(2, 1, 1, 0), Work(0, 2), 0, 8, rig.told)
    rig.hear(2)
    assert rig.ended[-1].ok
    assert rig.copies.bytes_reused == 8 * 8
    for run in (1, 2):
        rig.copies.end(run)
    close(rig)


@pytest.fixture
def ranks():
    """Three ranks, each with its memory, over one pool."""
    first = Rig(ranks=3)
    rigs = [first, *(Rig(pool=first.pool, rank=rank, ranks=3) for rank in (1, 2))]
    yield rigs
    first.pool.drain()
    for one in rigs:
        one.hear(one.calls.qsize())
    for one in rigs:
        one.copies.close()
        one.memory.close()


def all_save(rigs, run, chunk, blocks=BLOCKS):
    for one in rigs:
        assert all(outcome.ok for outcome in one.save(run, chunk, blocks=blocks))


def test_each_rank_saves_its_share_and_loads_all(ranks):
    for one in ranks:
        one.begin(1)
    all_save(ranks, 1, 1)
    all_save(ranks, 1, 2)
    assert sum(one.copies.bytes_saved for one in ranks) == 16 * 8 * LAYERS, "nothing is written twice"
    assert all(one.copies.bytes_saved for one in ranks), "4 objects: each of three ranks has one"
    for one in ranks:
        one.wipe()
        one.copies.load(TransferId(1, 3, 2, 0), Work(1, 2), one.told)
        one.hear(2)
        assert one.ended[-1].ok, one.ended[-1].reason
        for chunk in (1, 2):
            assert [int(view.unique().item()) for view in one.rows(chunk, 1)] == expected(one, chunk, 2)
        one.copies.end(1)
    assert ranks[0].pool.stats()["objects"] == 4


def test_a_share_of_which_a_layer_was_not_saved_is_found_by_nobody_and_ends_nobody():
    first = Rig(ranks=2, faults=lambda kind, work: Fault("quiet") if kind == "save" and work.slot == 0 else None)
    rigs = [first, Rig(pool=first.pool, rank=1, ranks=2)]
    for one in rigs:
        one.begin(1)
        assert not any(outcome.ok for outcome in one.save(1, 1)), "what is spoilt by one layer takes no other"
    assert first.begin(2, blocks=OTHERS) == 0, "rows of the first layer would be read that nobody saved"
    for one in rigs:
        one.copies.end(1)
    first.copies.end(2)
    assert first.pool.stats()["objects"] == 0
    for one in rigs:
        close(one)


def test_all_ranks_are_backed_by_what_the_leader_found(ranks):
    for one in ranks:
        one.begin(1)
    for chunk in (1, 2, 3):
        all_save(ranks, 1, chunk)
    backed = ranks[0].begin(2, blocks=OTHERS)
    assert backed == 20
    for one in ranks[1:]:
        start = Start("r", 2, 1, len(PROMPT), PROMPT)
        assert one.copies.begin(2, start, OTHERS, backed) == backed
    for one in ranks:
        one.wipe()
        one.copies.fill(TransferId(2, 2, 3, 0), Work(1, 1), 8, 16, one.told)
        one.hear(1)
        assert [int(view.unique().item()) for view in one.rows(2, 1, OTHERS)] == expected(one, 2, 3)
        for run in (1, 2):
            one.copies.end(run)


def test_what_a_rank_had_to_save_under_another_name_is_found(ranks):
    for one in ranks:
        one.begin(1)
        one.begin(2, blocks=OTHERS)
    busy = [one.copies._runs[2].keys[0] for one in ranks][:1]
    ranks[0].pool.allocate(busy, [BLOCK])  # somebody is writing the prompt's first object just now
    all_save(ranks, 1, 1)
    for one in ranks:
        one.wipe()
        one.copies.load(TransferId(1, 2, 3, 0), Work(1, 2), one.told)
        one.hear(1)
        assert one.ended[-1].ok, one.ended[-1].reason
        assert [int(view.unique().item()) for view in one.rows(1, 1)] == expected(one, 1, 3)
        for run in (1, 2):
            one.copies.end(run)
    ranks[0].pool.remove(busy)


def test_what_another_rank_saved_and_is_gone_is_a_failed_load(ranks):
    for one in ranks:
        one.begin(1)
    all_save([ranks[0], ranks[2]], 1, 1)  # the one between them has failed, and had the second object
    for one in ranks:
        one.copies.load(TransferId(1, 2, 1, 0), Work(0, 2), one.told)
        one.hear(1)
        assert not one.ended[-1].ok
        assert "object 2 of run 1, which another rank saved, is not in the pool" in one.ended[-1].reason
        one.copies.end(1)
