"""A run that gives its blocks to others between two chunks: every row of it is where it belongs when it goes on, in whatever blocks; nobody
has its blocks while they are read or saved from; and the pool has room for whoever begins."""

import time

import pytest
from embed_decode import BLOCK, LAYERS
from prefill_tools import LONG, compute_stream, opened

from tidegate.engine.config import FaultSpec
from tidegate.engine.faults import Injector
from tidegate.engine.prefill_copies import PoolCopies
from tidegate.engine.prefill_engine import RunOver
from tidegate.engine.prefill_parking import Parking
from tidegate.engine.prefill_places import Places
from tidegate.engine.prefill_waits import Answers
from tidegate.protocol.prefill import PrefillSession

NEED = -(-LONG // BLOCK)  # blocks of a prompt
ALL = NEED + 3  # blocks for one prompt only, in which none gets those that it had before


def chunks(rig, run, first, last):
    for chunk in range(first, last + 1):
        step = rig.engine.start(run, chunk)
        for layer in range(LAYERS):
            rig.layer(layer, step)


def ask(rig, name):
    """A long prompt that has nothing in common with those of other names."""
    with rig.inbox._lock:
        attempt = rig.inbox.engine.admit(name, range(1000 * ord(name), 1000 * ord(name) + LONG), new_tokens=1)
        rig.inbox.asked[attempt] = name, LONG


def asked(rig, *names, says="waits for"):
    """The first of them has its blocks, the other waits."""
    for name in names:
        ask(rig, name)
    for _ in names[1:]:
        rig.hears(says)
    return rig.engine.next_run()


@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize(("lanes", "buffers"), [(1, 2), (2, 2), (2, LAYERS)])
def test_a_run_goes_on_in_other_blocks_with_every_row_it_had(tmp_path, lanes, buffers, lags):
    """Before each of its chunks but the first another prompt has had its blocks, which are all there are."""
    with (
        compute_stream() as stream,
        opened(tmp_path / "pool", lanes=lanes, buffers=buffers, blocks=ALL, compute=stream if lags else None) as rig,
    ):
        run, homes = asked(rig, "a"), []
        for chunk, other in enumerate("bc", 1):
            homes.append(run.blocks)
            ask(rig, other)
            rig.hears("waits for blocks")
            chunks(rig, run, chunk, chunk)
            if lags:
                rig.engine.wait_for_save()
            assert rig.engine.lacks_blocks()
            assert rig.engine.preempt(run.nonce)
            rig.engine.resume(run.nonce)
            mate = rig.engine.next_run()
            assert mate.start.request == other
            chunks(rig, mate, 1, mate.chunks)
            assert rig.outcome() == (other, "")
            run = rig.engine.next_run()
            assert (run.start.request, run.chunk) == ("a", chunk + 1)
        assert homes[0] != homes[1] != run.blocks, "it was in the same blocks again, so this says nothing"
        chunks(rig, run, run.chunk, run.chunks)
        assert rig.outcome() == ("a", "")
    assert (rig.stats["preempted"], rig.stats["gave_way"], rig.stats["resumed"]) == (2, 2, 2)
    assert (rig.stats["blocks_free"], rig.stats["slots_free"]) == (ALL, rig.stats["slots"])


@pytest.mark.parametrize("planted", [False, True])
def test_one_that_is_preempted_again_before_it_has_gone_on_gives_way_again(tmp_path, monkeypatch, planted):
    if planted:
        monkeypatch.setattr(Parking, "_has_left", lambda self, run: False)
    with opened(tmp_path / "pool", blocks=ALL) as rig:
        run = asked(rig, "a", "b")
        chunks(rig, run, 1, 1)
        for times, other in enumerate("bc", 1):
            assert rig.engine.preempt(run.nonce)
            if planted and times == 2:
                time.sleep(0.5)
                assert rig.engine.core.parking.gave_way == 1, "it leaves slots that it has not"
                return
            mate = rig.engine.next_run()
            assert mate.start.request == other
            rig.engine.resume(run.nonce)
            chunks(rig, mate, 1, mate.chunks)
            assert rig.outcome() == (other, "")
            run = rig.engine.next_run()
            assert (run.start.request, run.chunk) == ("a", 2)
            if other == "b":
                ask(rig, "c")
                rig.hears("waits for blocks")
        chunks(rig, run, 2, run.chunks)
        assert rig.outcome() == ("a", "")
    assert (rig.stats["preempted"], rig.stats["gave_way"], rig.stats["resumed"]) == (2, 2, 2)


def test_planted_a_load_into_the_blocks_that_a_run_had_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(PoolCopies, "move", lambda self, run, blocks: None)
    with opened(tmp_path / "pool", blocks=ALL) as rig:
        run = asked(rig, "a", "b")
        chunks(rig, run, 1, 1)
        assert rig.engine.preempt(run.nonce)
        mate = rig.engine.next_run()
        chunks(rig, mate, 1, 1)
        rig.engine.resume(run.nonce)
        chunks(rig, mate, 2, mate.chunks)
        back = rig.engine.next_run()
        assert back.blocks != run.blocks
        with pytest.raises(AssertionError, match="chunk 2 layer"):
            chunks(rig, back, 2, 2)


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize("what", ["save", "read"])
def test_nobody_has_its_blocks_while_they_are_saved_from_or_read(tmp_path, monkeypatch, what, planted):
    """The last layer of the chunk is saved, or read, slowly; another prompt waits for the blocks."""
    if planted:
        monkeypatch.setattr(PrefillSession, "can_release_lane", lambda self, lane, given_way=0: True)
        monkeypatch.setattr(PrefillSession, "stored", lambda self, run: set(range(1, 10)))
        monkeypatch.setattr(Answers, "held", lambda self: [])
    slow = Injector([FaultSpec(where=what, layer=LAYERS, nth=1, delay=3.0 if planted else 0.5)])
    with opened(
        tmp_path / "pool", lanes=2, buffers=LAYERS, blocks=NEED, copy_faults=slow.copies() if what == "save" else None,
        read_faults=slow if what == "read" else None,
    ) as rig:  # fmt: skip
        run = asked(rig, "a", "b")
        chunks(rig, run, 1, 1)
        assert rig.engine.preempt(run.nonce)
        rig.engine.next_run()
        lane, slots = rig.engine.core.session.lanes[run.nonce], rig.engine.core.session.slots
        used = [state for (_, k), state in slots.items() if k == lane and (state.saves or state.transfers)]
        assert bool(used) is planted, "the blocks were given away while they are in use"


def test_it_can_give_way_between_two_chunks_only(tmp_path):
    with opened(tmp_path / "pool", blocks=NEED) as rig:
        run = asked(rig, "a", "b")
        with pytest.raises(ValueError, match="is not preempted"):
            rig.engine.resume(run.nonce)
        assert not rig.engine.preempt(run.nonce), "its first chunk is to come"
        step = rig.engine.start(run, 1)
        for layer in range(LAYERS):
            if layer == 2:
                assert not rig.engine.preempt(run.nonce), "it is in the middle of a chunk"
            rig.layer(layer, step)
        assert rig.engine.ready([(run, 2)]) == [True]
        assert not rig.engine.preempt(run.nonce), "its next chunk has its slot"
        chunks(rig, run, 2, 2)
        assert rig.engine.preempt(run.nonce)
        with pytest.raises(ValueError, match="is preempted"):
            rig.engine.preempt(run.nonce)
        mate = rig.engine.next_run()
        rig.engine.resume(run.nonce)
        chunks(rig, mate, 1, mate.chunks)
        chunks(rig, rig.engine.next_run(), 3, 3)
        assert sorted(rig.outcome() for _ in "ab") == [("a", ""), ("b", "")]
        assert not rig.engine.preempt(run.nonce), "it is over"
        rig.engine.resume(run.nonce)


@pytest.mark.parametrize("when", ["leaving", "parked", "resumed"])
def test_a_preempted_run_that_is_aborted_leaves_nothing_behind(tmp_path, when):
    faults = Injector([FaultSpec(where="read", layer=LAYERS, nth=1, delay=0.3)] if when == "leaving" else [])
    with opened(tmp_path / "pool", blocks=NEED, lanes=2, read_faults=faults) as rig:
        run = asked(rig, "a", "b")
        chunks(rig, run, 1, 1)
        assert rig.engine.preempt(run.nonce)
        mate = None if when == "leaving" else rig.engine.next_run()
        if when == "resumed":
            rig.engine.resume(run.nonce)
        attempt = next(iter(rig.inbox.asked))
        assert rig.inbox.engine.abort(attempt, "enough")
        rig.hears("prefill run failed")
        mate = mate or rig.engine.next_run()
        assert mate.start.request == "b"
        chunks(rig, mate, 1, mate.chunks)
        assert sorted(rig.outcome() for _ in "ab") == [("a", "enough"), ("b", "")]
    assert (rig.stats["blocks_free"], rig.stats["slots_free"]) == (NEED, rig.stats["slots"])


def test_a_run_whose_rows_the_pool_has_lost_keeps_its_blocks_and_ends_as_it_would_have(tmp_path):
    faults = Injector([FaultSpec(where="save", layer=2, nth=1, mode="quiet")])
    with opened(tmp_path / "pool", blocks=NEED, copy_faults=faults.copies()) as rig:
        run = asked(rig, "a", "b")
        chunks(rig, run, 1, 1)
        rig.engine.wait_for_save()
        assert rig.engine.preempt(run.nonce)
        rig.engine.resume(run.nonce)
        back = rig.engine.next_run()
        assert (back.start.request, back.chunk, back.blocks) == ("a", 2, run.blocks)
        with pytest.raises(RunOver):
            chunks(rig, back, 2, 2)
        chunks(rig, rig.engine.next_run(), 1, 3)
        assert {name: bool(why) for name, why in (rig.outcome() for _ in "ab")} == {"a": True, "b": False}
    assert (rig.stats["gave_way"], rig.stats["resumed"]) == (0, 1)


@pytest.mark.parametrize("planted", [False, True])
def test_a_prompt_begins_when_the_pool_has_room_for_all_of_it(tmp_path, monkeypatch, planted):
    """Blocks for both, and a pool for one: what a later chunk needs is not there for the second, were it let in."""
    if planted:
        monkeypatch.setattr(PoolCopies, "reserve", lambda self, run, tokens: True)
    with opened(tmp_path / "pool", blocks=2 * NEED, extents=NEED + 2, lanes=2) as rig:
        if planted:
            for name in "ab":
                ask(rig, name)
            runs = [rig.engine.next_run() for _ in "ab"]
            chunks(rig, runs[0], 1, 2)
            with pytest.raises(RunOver):
                chunks(rig, runs[1], 1, 3)
            return
        run = asked(rig, "a", "b", says="waits for room in the host pool")
        assert not rig.engine.lacks_blocks(), "nobody need give way: blocks are free"
        chunks(rig, run, 1, 3)
        chunks(rig, rig.engine.next_run(), 1, 3)
        assert sorted(rig.outcome() for _ in "ab") == [("a", ""), ("b", "")]


@pytest.mark.parametrize("planted", [False, True])
def test_a_run_that_has_begun_goes_before_one_that_waits_for_the_pool(tmp_path, monkeypatch, planted):
    """The second prompt lacks room in the pool, which the first one holds: were the first to wait behind it, both would for ever."""
    if planted:

        def behind(self, run, tokens):
            if not self._no_pool and (run in self._begun or self._reserve(run, tokens)):
                return True
            self._no_pool.add(run)
            return False

        monkeypatch.setattr(Places, "_has_pool", behind)
    with opened(tmp_path / "pool", blocks=NEED, extents=NEED + 2) as rig:
        run = asked(rig, "a", "b")
        chunks(rig, run, 1, 1)
        assert rig.engine.preempt(run.nonce)
        rig.engine.resume(run.nonce)
        if planted:
            while rig.engine.blocks.free < NEED:
                time.sleep(0.01)
            assert rig.engine.next_run(wait=False) is None
            return
        back = rig.engine.next_run()
        assert back.start.request == "a"
        chunks(rig, back, 2, 3)
        chunks(rig, rig.engine.next_run(), 1, 3)
        assert sorted(rig.outcome() for _ in "ab") == [("a", ""), ("b", "")]
