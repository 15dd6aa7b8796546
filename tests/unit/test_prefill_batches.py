"""Steps of several runs against a real Decode side: rows arrive, one that fails leaves the others to go on, room changes hands only when
nobody reads or saves there any more, and who is in the next step."""

import queue
import threading
import time

import pytest
from embed_decode import BLOCK, CHUNK, LAYERS
from prefill_tools import LONG, compute_stream, opened

from tidegate.engine.config import FaultSpec
from tidegate.engine.faults import Injector
from tidegate.engine.prefill_batches import Batches
from tidegate.engine.prefill_calls import PrefillCalls
from tidegate.engine.prefill_engine import Run, RunOver
from tidegate.protocol.messages import Start
from tidegate.protocol.prefill import PrefillSession


def step(rig, parts):
    """One step of several runs, computed by the rig; run -> why it left."""
    engine, over = rig.engine, {}
    steps = engine.start_all(parts)
    try:
        for layer in range(LAYERS):
            places = engine.wait_for_all(layer)
            here = [pair for pair in zip(steps, places, strict=True) if not isinstance(pair[1], RunOver)]
            over |= {run.nonce: place for (run, _), place in zip(parts, places, strict=True) if isinstance(place, RunOver)}
            for what, name in ((rig.write, "write"), (rig.attend, "attend")):
                for one, place in here:
                    if rig.compute is None:
                        what(place, layer, one)
                    else:
                        rig.compute.run(lambda what=what, place=place, layer=layer, one=one: what(place, layer, one), name)
                if name == "write":
                    engine.kv_written(layer)
            engine.layer_done(layer)
    except RunOver as last:
        over |= {run.nonce: last for run, _ in parts if run.nonce not in over}
    return over


def serve(rig, runs, tokens=1000):
    """Step after step until so many runs are computed; (steps, runs that failed)."""
    batches, steps, failed = Batches(rig.engine, tokens=tokens, chunk_tokens=CHUNK), [], {}
    left = set()
    while len(left) < runs:
        parts = batches.next_step()
        over = step(rig, parts)
        batches.computed(parts, over)
        steps.append([(run.start.request, chunk) for run, chunk in parts])
        failed |= {run.start.request: str(over[run.nonce]) for run, _ in parts if run.nonce in over}
        left |= {run.nonce for run, chunk in parts if chunk == run.chunks or run.nonce in over}
    return steps, failed


@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("buffers", [2, LAYERS])
def test_rows_of_runs_of_any_length_arrive_from_steps_of_several(tmp_path, buffers, lags):
    lengths = {"a": LONG, "b": 5, "c": CHUNK, "d": 1, "e": 2 * CHUNK, "f": BLOCK}
    options = {"buffers": buffers, "blocks": 24, "lanes": 3}
    with compute_stream() as stream, opened(tmp_path / "pool", **options, compute=stream if lags else None) as rig:
        for name, tokens in lengths.items():
            rig.inbox.ask(name, tokens)
        steps, failed = serve(rig, len(lengths))
        assert sorted(rig.outcome() for _ in lengths) == [(name, "") for name in lengths]
    assert not failed
    assert max(map(len, steps)) > 1, "no step had several runs"
    due = [(name, chunk) for name, tokens in lengths.items() for chunk in range(1, -(-tokens // CHUNK) + 1)]
    assert sorted(part for parts in steps for part in parts) == due
    assert rig.stats["blocks_free"] == 24
    assert rig.stats["slots_free"] == rig.stats["slots"]


def refuse(rig, request, chunk, layer):
    """Have Decode refuse this read."""
    peer = rig.inbox.engine.core.peers
    parts = peer.parts

    def refusing(ready, destination, prompt):
        if (ready.request, ready.transfer.chunk, ready.transfer.layer) == (request, chunk, layer):
            raise ValueError("refused on purpose")
        return parts(ready, destination, prompt)

    peer.parts = refusing


@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("layer", [1, 3, LAYERS])
def test_a_run_that_fails_leaves_the_step_and_its_mates_go_on(tmp_path, layer, lags):
    with compute_stream() as compute, opened(tmp_path / "pool", lanes=3, compute=compute if lags else None) as rig:
        refuse(rig, "b", 2, layer)
        attend = rig.attend  # what a run that has failed attends to is nobody's any more
        rig.attend = lambda place, layer, one: None if one.run.start.request == "b" else attend(place, layer, one)
        for name in "abc":
            rig.inbox.ask(name, 2 * CHUNK if name == "b" else LONG)
        _, failed = serve(rig, 3)
        outcomes = dict(rig.outcome() for _ in "abc")
        assert outcomes["a"] == outcomes["c"] == ""
        assert "refused on purpose" in outcomes["b"]
        assert failed.keys() <= {"b"}
        rig.inbox.ask("d", LONG)
        serve(rig, 1)
        assert rig.outcome() == ("d", "")
    assert rig.stats["blocks_free"] == 20


def test_when_every_run_of_a_step_has_failed_the_step_is_over(tmp_path):
    with opened(tmp_path / "pool", lanes=2) as rig:
        for name in "ab":
            rig.inbox.ask(name, 2 * CHUNK)
        runs = [rig.engine.next_run() for _ in "ab"]
        rig.engine.start_all([(run, 1) for run in runs])
        rig.engine.wait_for_all(0)
        for attempt in rig.inbox.asked:
            assert rig.inbox.engine.abort(attempt, "enough")
        for _ in runs:
            rig.hears("prefill run failed")
        with pytest.raises(RunOver):
            rig.engine.kv_written(0)
        assert [isinstance(one, RunOver) for one in rig.engine.start_all([(run, 1) for run in runs])] == [True, True]
        rig.inbox.ask("c", 5)
        rig.prefill(rig.engine.next_run())
        assert {rig.outcome() for _ in "abc"} == {("a", "enough"), ("b", "enough"), ("c", "")}


def test_a_run_that_is_forgotten_before_its_step_is_begun_is_over(tmp_path):
    with opened(tmp_path / "pool", lanes=2) as rig:
        for name in "ab":
            rig.inbox.ask(name, 2 * CHUNK)
        runs = [rig.engine.next_run() for _ in "ab"]
        for attempt in rig.inbox.asked:
            assert rig.inbox.engine.abort(attempt, "enough")
        while rig.engine.core.session.runs:  # RETIRE is on its way
            time.sleep(0.01)
        assert ["failed" in str(one) for one in rig.engine.start_all([(run, 1) for run in runs])] == [True, True]
        assert not any(rig.engine.core.session.can_write(run.nonce) for run in runs)


@pytest.mark.parametrize("waits", [True, False])
def test_what_was_queued_for_a_run_that_leaves_has_ended_when_the_others_go_on(tmp_path, monkeypatch, waits):
    hold = threading.Event()
    if not waits:
        monkeypatch.setattr(PrefillCalls, "_abandon", lambda self: None)
    with compute_stream() as compute, opened(tmp_path / "pool", lanes=2, buffers=LAYERS, compute=compute) as rig:
        refuse(rig, "a", 1, 1)
        rig.attention = lambda layer, chunk: hold.wait(10) if layer == 1 else None
        for name in "ab":
            rig.inbox.ask(name, 5)
        runs = {run.start.request: run for run in (rig.engine.next_run() for _ in "ab")}
        steps = rig.engine.start_all([(runs[name], 1) for name in "ab"])
        for layer in (0, 1):
            for place, one in zip(rig.engine.wait_for_all(layer), steps, strict=True):
                compute.run(lambda place=place, layer=layer, one=one: rig.write(place, layer, one), "write")
            rig.engine.kv_written(layer)
            compute.run(lambda layer=layer: rig.attention(layer, 1), "attend")
            rig.engine.layer_done(layer)
        rig.hears("prefill run failed")
        release = threading.Timer(0.2, hold.set)
        release.start()
        gone, place = rig.engine.wait_for_all(2)
        assert isinstance(gone, RunOver)
        assert not isinstance(place, RunOver)
        assert (compute.pending == 0) is waits
        release.join()
        hold.set()


def test_two_runs_of_one_lane_are_never_in_one_step(tmp_path):
    with opened(tmp_path / "pool") as rig:
        for name in "ab":
            rig.inbox.ask(name, 5)
        runs = [rig.engine.next_run() for _ in "ab"]
        with pytest.raises(ValueError, match=r"a step of 2 runs in lanes \[1, 1\]"):
            rig.engine.start_all([(run, 1) for run in runs])
        with pytest.raises(ValueError, match="a step of 0 runs"):
            rig.engine.start_all([])
        for run in runs:
            rig.prefill(run)
        assert {rig.outcome() for _ in "ab"} == {("a", ""), ("b", "")}


@pytest.mark.parametrize("planted", [False, True])
def test_blocks_go_to_another_lane_only_when_nothing_is_saved_from_them_any_more(tmp_path, monkeypatch, planted):
    """The first prompt is done while its last layer is still being saved; the second needs its blocks."""
    if planted:
        monkeypatch.setattr(PrefillSession, "can_release_lane", lambda self, lane: True)
    faults = Injector([FaultSpec(where="save", layer=LAYERS, nth=1, delay=0.5)])
    with opened(tmp_path / "pool", lanes=2, buffers=LAYERS, blocks=2, copy_faults=faults.copies()) as rig:
        for name in "ab":
            rig.inbox.ask(name, 2 * BLOCK)
        rig.prefill(rig.engine.next_run())
        assert rig.outcome() == ("a", "")
        second = rig.engine.next_run()
        held = [slot.saves for slot in rig.engine.core.session.slots.values() if slot.saves]
        assert bool(held) is planted, "the blocks were given away while they are saved from"
        rig.prefill(second)
        assert rig.outcome() == ("b", "")


def test_lanes_are_used_again_and_no_more_of_them_than_runs_at_once(tmp_path):
    with opened(tmp_path / "pool", lanes=2) as rig:
        for name in "abcdef":
            rig.inbox.ask(name, 5)
            if name in "bdf":
                serve(rig, 2)
                assert {rig.outcome()[1] for _ in "ab"} == {""}
        assert {lane for _, lane in rig.engine.core.session.slots} == {1, 2}


class Fixed:
    """Runs that are there, and of whom some are ready."""

    lanes = 3

    def __init__(self, *tokens):
        self.queue = queue.SimpleQueue()
        for number, count in enumerate(tokens, 1):
            self.queue.put(Run(number, Start(str(number), number, 1, count, ()), -(-count // 10), ()))
        self.queue.put(None)
        self.unready = set()

    def next_run(self, *, wait=True):
        assert wait or not self.queue.empty()
        run = self.queue.get()
        if run is None:
            self.queue.put(None)
        return run

    def ready(self, parts):
        return [run.nonce not in self.unready for run, _ in parts]


def order(runs, tokens):
    batches = Batches(runs, tokens=tokens, chunk_tokens=10)
    while parts := batches.next_step():
        yield [(run.nonce, chunk) for run, chunk in parts]
        batches.computed(parts, {})


def test_a_step_takes_what_fits_first_come_first_served():
    assert list(order(Fixed(25, 5, 5, 10, 3), 15)) == [
        [(1, 1), (2, 1)], [(1, 2), (3, 1)], [(1, 3), (4, 1)], [(5, 1)],
    ]  # fmt: skip


def test_one_chunk_fits_always():
    assert list(order(Fixed(10, 10), 1)) == [[(1, 1)], [(2, 1)]]


def test_those_that_wait_for_a_gate_hold_up_nobody():
    runs = Fixed(20, 10)
    runs.unready = {1}
    steps = order(runs, 100)
    assert next(steps) == [(2, 1)]
    runs.unready = set()
    assert list(steps) == [[(1, 1)], [(1, 2)]]
