"""The embedding API against a real Decode side in another thread: every way to call it, every way to call it wrongly, and what
becomes of runs that fail."""

import queue
import threading
import time

import pytest
import torch
from embed_decode import CHUNK, LAYERS, WIDTHS
from prefill_tools import LONG, compute_stream, opened

from tidegate.engine.config import FaultSpec
from tidegate.engine.copying import Fault, Outcome
from tidegate.engine.faults import Injector
from tidegate.engine.prefill_engine import PrefillEngine, RunOver, layer_memory
from tidegate.engine.slot_layout import plan_layout
from tidegate.protocol.messages import Abort, TransferId
from tidegate.protocol.topology import SlotPlan


@pytest.mark.parametrize(("style", "prefetch"), [("plain", 1), ("plain", 0), ("together", 1), ("together", 0)])
def test_rows_arrive_however_it_is_embedded(tmp_path, style, prefetch):
    with opened(tmp_path / "pool", style=style, prefetch=prefetch) as rig:
        rig.inbox.ask("a", LONG)
        rig.inbox.ask("b", 5)
        for _ in range(2):
            rig.prefill(rig.engine.next_run())
        assert sorted(rig.outcome() for _ in range(2)) == [("a", ""), ("b", "")]
        rig.engine.stop()
        assert rig.engine.next_run() is None
        assert rig.engine.failed_blocks() == set()
    assert [ended.verdict for ended in rig.engine.finished()] == ["done", "done"]
    assert rig.engine.finished() == []
    assert (rig.stats["gates"], rig.stats["blocks_free"], rig.stats["slots_free"]) == (4 * LAYERS, 20, 3)
    assert rig.stats["save_s"] > 0
    assert rig.stats["load_s"] > 0


def slow_writes(name):
    return 0.02 if name == "write" else 0.005


@pytest.mark.parametrize("style", ["plain", "together"])
def test_rows_arrive_from_a_compute_stream_that_lags_behind(tmp_path, style):
    with compute_stream(slow_writes) as compute, opened(tmp_path / "pool", style=style, compute=compute) as rig:
        for name in "ab":
            rig.inbox.ask(name, LONG)
        for _ in range(2):
            rig.prefill(rig.engine.next_run())
        assert sorted(rig.outcome() for _ in range(2)) == [("a", ""), ("b", "")]


def test_published_before_the_compute_stream_has_come_there_is_wrong(tmp_path, monkeypatch):
    """The event that kv_written records is what holds READY and the save back."""
    monkeypatch.setattr(PrefillEngine, "_after_compute", lambda self, call: call())
    hold = threading.Event()
    with compute_stream() as compute, opened(tmp_path / "pool", compute=compute) as rig:
        rig.write = lambda place, layer, step: hold.wait(10)
        rig.attend = lambda place, layer, step: None
        rig.inbox.ask("a", CHUNK)
        rig.prefill(rig.engine.next_run())
        assert rig.outcome() == ("a", "the main rows of layer 0 are wrong")
        hold.set()


class Loads:
    """Faults that inject nothing and tell which loads began."""

    def __init__(self):
        self.begun = queue.SimpleQueue()

    def __call__(self, kind, work):
        if kind == "load":
            self.begun.put((work.labels["chunk"], work.labels["layer"]))


def test_the_next_slot_is_loaded_while_attention_runs(tmp_path):
    loads = Loads()
    with opened(tmp_path / "pool", copy_faults=loads) as rig:
        seen = []
        rig.attention = lambda layer, chunk: seen.append(loads.begun.get(timeout=10)) if chunk == 2 and layer < LAYERS - 1 else None
        rig.inbox.ask("a", 2 * CHUNK)
        rig.prefill(rig.engine.next_run())
        assert rig.outcome() == ("a", "")
    assert seen == [(2, layer) for layer in range(2, LAYERS + 1)]  # during the attention of the layer before


def test_without_prefetch_a_slot_is_loaded_when_it_is_asked_for(tmp_path):
    loads = Loads()
    with opened(tmp_path / "pool", copy_faults=loads, prefetch=0) as rig:
        early = []
        rig.attention = lambda layer, chunk: early.append(loads.begun.qsize())
        rig.inbox.ask("a", 2 * CHUNK)
        rig.prefill(rig.engine.next_run())
        assert rig.outcome() == ("a", "")
    assert early[LAYERS:] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("poison", [True, False])
def test_poison_shows_a_load_that_moved_nothing(tmp_path, poison):
    """Each layer has a slot to itself, so what it left there of the earlier chunk would pass for what should be loaded."""
    with opened(tmp_path / "pool", buffers=LAYERS, poison=poison) as rig:
        rig.copies.load = lambda step, work, on_end: rig.engine.owner.post(lambda: on_end(step, Outcome(True, True)))
        rig.inbox.ask("a", 2 * CHUNK)
        run = rig.engine.next_run()
        if not poison:
            rig.prefill(run)
            return
        with pytest.raises(AssertionError, match="chunk 2 layer 1 main"):
            rig.prefill(run)
        assert all((view[run.blocks[0]] == -1).all() for view in [rig.memory.view(rig.plan.slot_of(2), "main")])


def test_a_failed_run_says_so_and_leaves_nothing_behind(tmp_path):
    with opened(tmp_path / "pool", blocks=14) as rig:
        parts = rig.inbox.engine.core.peers.parts

        def failing(ready, destination, prompt):
            if ready.request == "a" and ready.transfer.chunk == 2:
                raise ValueError("refused on purpose")
            return parts(ready, destination, prompt)

        rig.inbox.engine.core.peers.parts = failing
        rig.inbox.ask("a", LONG)
        rig.inbox.ask("b", LONG)
        run = rig.engine.next_run()
        rig.hears("waits for blocks: it needs 9, 5 of 14 are free")
        with pytest.raises(RunOver, match=f"run {run.nonce} is failed"):
            rig.prefill(run)
        assert rig.outcome() == ("a", f"reading run {run.nonce} chunk 2 layer 1 member 0 failed: refused on purpose")
        assert rig.engine.failed_blocks() == set(run.blocks)
        assert rig.engine.failed_blocks() == set()
        with pytest.raises(RunOver):
            rig.engine.start(run, 1)
        [(nonce, verdict, reason)] = rig.engine.finished()
        assert (nonce, verdict) == (run.nonce, "failed")
        assert "refused on purpose" in reason
        rig.prefill(rig.engine.next_run())
        assert rig.outcome() == ("b", "")
    assert (rig.stats["blocks_free"], rig.stats["slots_free"]) == (14, 3)


@pytest.mark.parametrize("waits", [True, False])
def test_when_a_run_is_over_what_was_queued_for_it_has_ended(tmp_path, monkeypatch, waits):
    """Attention hangs until the run has failed, and then a little longer; without `_abandon` the next run would not wait for it."""
    hold = threading.Event()
    if not waits:
        monkeypatch.setattr(PrefillEngine, "_abandon", lambda self: None)
    with compute_stream() as compute, opened(tmp_path / "pool", compute=compute) as rig:
        rig.inbox.engine.core.peers.parts = lambda *asked: (_ for _ in ()).throw(ValueError("no"))
        rig.attention = lambda layer, chunk: hold.wait(10)
        rig.inbox.ask("a", LONG)
        run = rig.engine.next_run()
        end = threading.Thread(target=lambda: (rig.hears("prefill run failed"), time.sleep(0.1), waits and hold.set()))
        end.start()
        with pytest.raises(RunOver):
            rig.prefill(run)
        assert (compute.pending == 0) is waits
        end.join()
        hold.set()


def counted(monkeypatch, thing, name):
    """Calls of `thing.name` from now on, as they are made."""
    calls, real = [], getattr(thing, name)
    monkeypatch.setattr(thing, name, lambda *arguments: (calls.append(arguments), real(*arguments))[1])
    return calls


@pytest.mark.parametrize(("prefetch", "asked"), [(1, 1), (0, LAYERS)])
def test_a_step_that_was_claimed_ahead_is_not_asked_for(tmp_path, monkeypatch, prefetch, asked):
    with opened(tmp_path / "pool", buffers=LAYERS, prefetch=prefetch) as rig:
        claims = counted(monkeypatch, rig.engine.core, "claim")
        rig.inbox.ask("a", CHUNK)
        rig.prefill(rig.engine.next_run())
        assert rig.outcome() == ("a", "")
    assert len(claims) == asked
    assert not rig.engine.core.open


def given_up(rig):
    rig.inbox.engine.abort(next(iter(rig.inbox.asked)), "enough")  # Decode may have heard of it before
    rig.hears("prefill run failed")


def test_a_step_that_was_claimed_ahead_is_not_given_to_a_run_that_has_failed(tmp_path):
    with opened(tmp_path / "pool", buffers=LAYERS) as rig:
        rig.inbox.ask("a", CHUNK)
        rig.layer(0, rig.engine.start(rig.engine.next_run(), 1))
        assert [step.layer for step in rig.engine.core.open] == [2]
        given_up(rig)
        with pytest.raises(RunOver):
            rig.engine.wait_for_layer(1)


def test_a_run_that_has_failed_waits_for_no_slot_ahead(tmp_path):
    with opened(tmp_path / "pool", buffers=2) as rig:
        core = rig.engine.core
        rig.inbox.ask("a", CHUNK)
        run = rig.engine.next_run()
        rig.engine.start(run, 1)
        rig.engine.wait_for_layer(0)

        def all_at_once():
            for layer in (1, 2, 3):
                core.written(TransferId(run.nonce, 1, layer))
            assert list(core._ahead) == [run.nonce], "the slot of its fourth layer, which is the second's, is still read"
            core.execute(core.receive(Abort("a", run.start.attempt, "enough")))
            assert (core._ahead, core.open) == ({}, {})

        rig.engine.owner.ask(all_at_once)


def test_what_a_written_layer_entails_comes_before_what_follows_from_a_later_message(tmp_path, monkeypatch):
    """Both are heard before the owner looks round: the save begins, and then the run ends."""
    with opened(tmp_path / "pool", buffers=LAYERS) as rig:
        core, order = rig.engine.core, []
        for name in ("save", "end"):
            real = getattr(rig.copies, name)
            monkeypatch.setattr(rig.copies, name, lambda *arguments, name=name, real=real: (order.append(name), real(*arguments))[1])
        rig.inbox.ask("a", CHUNK)
        run = rig.engine.next_run()
        rig.engine.start(run, 1)
        rig.engine.wait_for_layer(0)

        def both():
            core.written(TransferId(run.nonce, 1, 1))
            assert order == []
            core.execute(core.receive(Abort("a", run.start.attempt, "enough")))

        rig.engine.owner.ask(both)
        assert order == ["save", "end"]
        rig.engine.owner.ask(lambda: core.attended(TransferId(run.nonce, 1, 1)))
        given_up(rig)
    assert rig.stats["slots_free"] == rig.stats["slots"]


def test_waiting_for_saves_waits_for_this_steps_saves(tmp_path):
    with opened(tmp_path / "pool", copy_faults=Injector([FaultSpec(where="save", delay=0.05)]).copies()) as rig:
        rig.inbox.ask("a", 5)
        rig.prefill(rig.engine.next_run())
        rig.engine.wait_for_save()
        assert rig.pool.stats() | {"objects": 1, "writing": 0} == rig.pool.stats()  # so it is readable: every layer is saved
        rig.engine.wait_for_save()


@pytest.mark.parametrize("slow", ["save", "read"])
def test_what_was_waited_for_is_told_apart(tmp_path, slow):
    faults = Injector([FaultSpec(where=slow, delay=1.0, layer=2)])
    with opened(tmp_path / "pool", **{"copy_faults": faults.copies()} if slow == "save" else {"read_faults": faults}) as rig:
        rig.inbox.ask("a", 5)
        rig.prefill(rig.engine.next_run())
        assert rig.outcome() == ("a", "")
    assert (rig.stats["blocked_s"] > rig.stats["reads_s"]) is (slow == "save")
    assert max(rig.stats["blocked_s"], rig.stats["reads_s"]) > 0.5


def test_a_failed_save_is_waited_for_too(tmp_path):
    with opened(tmp_path / "pool", copy_faults=Injector([FaultSpec(where="save", mode="quiet", nth=3)]).copies()) as rig:
        rig.inbox.ask("a", 5)
        rig.prefill(rig.engine.next_run())
        rig.engine.wait_for_save()
        assert rig.outcome() == ("a", "")  # nothing had to be loaded
        assert not rig.engine.owner.ask(rig.pool.stats)["objects"]
        rig.hears("failed, nothing landed")


def test_calls_out_of_order_are_refused_and_change_nothing(tmp_path):
    with opened(tmp_path / "pool") as rig:
        engine = rig.engine
        for call in (engine.wait_for_layer, engine.kv_written, engine.layer_done):
            with pytest.raises(ValueError, match="call start first"):
                call(0)
        rig.inbox.ask("a", LONG)
        run = engine.next_run()
        with pytest.raises(ValueError, match=r"chunk 2 of run \d+ is begun where chunk 1 layer 1 is due"):
            engine.start(run, 2)
        step = engine.start(run, 1)
        assert (step.first, step.end, len(run.blocks)) == (0, CHUNK, 9)
        with pytest.raises(ValueError, match="layer 1 is asked for out of order"):
            engine.wait_for_layer(1)
        rig.write(engine.wait_for_layer(0), 0, step)
        for call in (engine.wait_for_layer, engine.layer_done):
            with pytest.raises(ValueError, match="layer 0 is claimed, and each layer in turn"):
                call(0)
        engine.kv_written(0)
        with pytest.raises(ValueError, match="is unfinished: a step goes through all 6 layers"):
            engine.start(run, 1)
        engine.layer_done(0)
        with pytest.raises(ValueError, match="is unfinished"):
            engine.start(run, 1)
        for layer in range(1, LAYERS):
            rig.layer(layer, step)
        with pytest.raises(ValueError, match="layer 6 is asked for out of order"):
            engine.wait_for_layer(LAYERS)
        for chunk in (2, 3):
            step = engine.start(run, chunk)
            for layer in range(LAYERS):
                rig.layer(layer, step)
        assert rig.outcome() == ("a", "")


def test_a_prompt_that_no_blocks_could_hold_is_dropped_and_counted(tmp_path):
    with opened(tmp_path / "pool", blocks=3) as rig:
        rig.inbox.ask("too long", LONG)
        rig.inbox.ask("fits", CHUNK)
        rig.prefill(rig.engine.next_run())
        assert rig.outcome() == ("fits", "")
    assert rig.stats["refused"] == 1


@pytest.mark.parametrize("where", ["layer", "save", "run"])
def test_an_engine_that_fails_leaves_nobody_waiting(tmp_path, where):
    hold = threading.Event()
    with opened(tmp_path / "pool", copy_faults=lambda kind, work: Fault(hold=hold) if kind == "save" else None) as rig:
        engine = rig.engine
        rig.inbox.ask("a", 5)
        step = engine.start(engine.next_run(), 1)
        for layer in range(3):
            rig.layer(layer, step)
        threading.Timer(0.1, lambda: engine.owner.post(lambda: 1 / 0)).start()
        try:
            if where == "run":
                assert engine.next_run() is None
            else:
                waits = engine.wait_for_save if where == "save" else lambda: rig.layer(3, step)  # the slot of layer 1, whose save hangs
                with pytest.raises(RuntimeError, match="prefill-session failed: division by zero"):
                    waits()
            rig.hears("ZeroDivisionError")
        finally:
            hold.set()


def test_what_cannot_be_embedded_is_refused():
    plan = SlotPlan.make(layers=2, independent=frozenset(), buffers=2)
    layout = plan_layout([0, 1], WIDTHS, "int8", blocks=2, block_size=4)
    with pytest.raises(ValueError, match="2 buffers of other origin cannot be registered with the shm backend"):
        layer_memory(layout, [torch.zeros(4), torch.zeros(4)])
    memory = layer_memory(layout)
    with pytest.raises(ValueError, match="prefetch is 2"):
        PrefillEngine(memory, plan=plan, chunk_tokens=4, prefetch=2)
    with pytest.raises(ValueError, match="make the layout by the plan"):
        PrefillEngine(memory, plan=SlotPlan.make(layers=2, independent=frozenset(), buffers=1), chunk_tokens=4)
    memory.close()


def test_the_public_name_of_the_memory_tells_nobody_the_incarnation(tmp_path):
    """Whoever knows it could take over the control connection, whose address it is."""
    with opened(tmp_path / "pool") as rig:
        life, name = rig.engine.incarnation, rig.engine.hello.memory
        assert not [form for form in (str(life), f"{life:x}", f"{life:016x}") if form in name], name
