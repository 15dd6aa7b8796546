"""A Prefill rank to be embedded in whatever computes: it knows slots, blocks, gates and copies, and nothing of a model.

    engine = PrefillEngine(memory, plan=plan, chunk_tokens=512)
    engine.attach(copies=..., links=...)
    engine.open()
    while (run := engine.next_run()) is not None:
        for chunk in range(1, run.chunks + 1):
            step = engine.start(run, chunk)
            if step.begin == step.end:                      # the pool has all of it, from an earlier request
                engine.copy_step()
                continue
            for layer in range(plan.layers):
                place = engine.wait_for_layer(layer)    # the slot is ours and holds the earlier chunks' rows
                ...                                     # write rows [step.begin, step.end) into place.views
                engine.kv_written(layer)                # the gate closes; saved and published from here on
                ...                                     # attention
                engine.layer_done(layer)                # attention needs the slot no more

Rules: layers come in order, each with these three calls in this order; rows are written between the first two and at no other time;
`kv_written` and `layer_done` may come together, after attention (a vLLM connector's `save_kv_layer`), which costs overlap and nothing
else; after `RunOver` nothing more is computed for that run.  A run that failed in the middle of a layer has stopped writing before any
other run can have its slot, because slots are claimed for the run that wrote last or for the one whose thread waits, and that thread
is the one that computes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial

from tidegate.engine.blocks import BlockAllocator
from tidegate.engine.control import Hello
from tidegate.engine.faults import Injector
from tidegate.engine.owner import Owner
from tidegate.engine.prefill_core import PrefillCore
from tidegate.engine.prefill_group import session_of
from tidegate.engine.prefill_parts import Claimed, Copies, Ended, Links, Lockstep, Place, Run, RunOver, Step
from tidegate.engine.prefill_waits import Waiter
from tidegate.engine.rank_words import Here
from tidegate.engine.recorder import NULL, Recording
from tidegate.engine.slots import MemoryServer, SharedMemory, layer_memory
from tidegate.engine.step_trace import Rows, StepTrace
from tidegate.engine.streams import CpuStream, Stream
from tidegate.engine.tracing import trace_footer, trace_header, trace_observer
from tidegate.protocol.messages import VERSION, TransferId
from tidegate.protocol.topology import SlotPlan

__all__ = ["Ended", "Place", "PrefillEngine", "Run", "RunOver", "Step", "layer_memory"]


class PrefillEngine:
    """One Prefill rank, the leader where there are several.

    memory: layer buffers (`layer_memory`), the slots of `plan`; chunk_tokens: tokens of a full chunk.  compute: the stream that the
    model's work is queued on; left out, the calling thread computes, and has computed when it calls.  prefetch: 1 to claim and load a
    run's next slot while attention still runs, 0 only when it is asked for.  read_lease: seconds after which a read may be revoked, 0
    for never; resend_seconds: after which READY is said again.  others: the other ranks of this instance, which compute the same
    steps with it (`attach` with hands); their sessions are here too.  poison: fill slots with NaN (integers with -1) when they become free.
    say, on_crash: told of progress, and of an error that ends the engine (later calls raise RuntimeError), by the engine's own thread.

    Call `start`, `wait_for_layer`, `kv_written`, `layer_done` and `wait_for_save` from one thread; everything else from any.
    """

    def __init__(
        self, memory: SharedMemory, *,
        plan: SlotPlan, chunk_tokens: int, compute: Stream | None = None, prefetch: int = 1,
        read_lease: float = 0.0, resend_seconds: float = 0.5,
        poison: bool = False, recorder: Recording = NULL, faults: Injector | None = None, others: Sequence[Here] = (),
        say: Callable[[str], None] = lambda text: None,
        on_crash: Callable[[BaseException], None] = lambda error: None,
    ) -> None:  # fmt: skip
        if tuple(map(plan.slot_of, range(1, plan.layers + 1))) != (slots := memory.layout.slot_of_layer):
            raise ValueError(f"the plan's slots are not those of the memory, {slots}: make the layout by the plan")
        if prefetch not in (0, 1):
            raise ValueError(f"prefetch is {prefetch}: a run's steps are claimed one at a time, in order; choose 0 or 1")
        self.memory, self.plan, self._recorder, self._compute, self._on_crash = memory, plan, recorder, compute, on_crash
        self._trace = StepTrace(recorder, memory)
        self.incarnation = secrets.randbits(62) + 1
        trace_header(recorder, role="prefill", rank=0, ranks=1 + len(others), members=1 + len(others), incarnation=self.incarnation,
                     layers=plan.layers, plan=plan, chunk_tokens=chunk_tokens, read_lease=read_lease > 0)  # fmt: skip
        if others and others[0].digest != memory.layout.digest:
            raise ValueError(f"rank {others[0].rank} has layout {others[0].digest}, rank 0 {memory.layout.digest}: all ranks have one")
        session = session_of(plan, chunk_tokens, members=1 + len(others), incarnation=self.incarnation, observer=trace_observer(recorder))
        self.blocks = BlockAllocator(memory.layout.blocks, memory.layout.block_size)
        self.core = PrefillCore(
            session, memory, self.blocks, faults or Injector(()), read_lease=read_lease, resend_seconds=resend_seconds,
            poison=poison, ahead=prefetch > 0, say=say,
        )  # fmt: skip
        self.owner = Owner("prefill-session", None, on_frames=None, on_tick=self.core.tick, after=self.core.look,
                           on_crash=self._crash, tick=resend_seconds)  # fmt: skip
        self._server = MemoryServer(memory, f"tidegate-{os.getpid()}-{self.incarnation:x}")
        self.hello = Hello(VERSION, self.incarnation, memory.layout.digest, self._server.address, tuple(other.memory for other in others))
        self._behind = CpuStream("prefill-behind") if compute else None  # waits for the model's events, in their order
        self._step: Step | None = None
        self._layer, self._phase, self._at = 0, "done", Claimed(0, 0)
        self._published: set[TransferId] = set()
        self._hands: Lockstep | None = None

    # ---- from any thread -------------------------------------------------------------------------------------------

    def attach(self, *, copies: Copies, links: Links, hands: Lockstep | None = None) -> None:
        """The host pool, the ways to Decode, and where there are other ranks, what tells them of each step; once, before `open`.  All are
        called in the engine's own thread.
        """
        self.core.copies, self.core.links, self._hands = copies, links, hands

    def open(self) -> None:
        """Begin to listen."""
        self.owner.start()

    def next_run(self) -> Run | None:
        """The next run that has its blocks (`say` is told what others wait for); blocks until there is one, None after `stop`."""
        run = self.core.ready_runs.get()
        return run and self.owner.ask(partial(self.core.begin, run))

    def stop(self) -> None:
        """Have `next_run` return None when it has given out what is there."""
        self.core.ready_runs.put(None)

    def finished(self) -> list[Ended]:
        """The runs that ended since the last call, however they did."""
        return [Ended(*self.core.ended.get()) for _ in range(self.core.ended.qsize())]

    def failed_blocks(self) -> set[int]:
        """Ids of the blocks of runs that failed since the last call: what lies in them must not be used."""
        return {self.core.failed_blocks.get() for _ in range(self.core.failed_blocks.qsize())}

    # ---- from the computing thread ---------------------------------------------------------------------------------

    def start(self, run: Run, chunk: int) -> Step:
        """Begin chunk `chunk` (from 1) of `run`.  RunOver if the run has failed; ValueError for another chunk than its next, and
        while a step is unfinished.
        """
        if self._phase != "done" or (self._step is not None and self._layer < self.plan.layers):
            raise ValueError(f"{self._name()} is unfinished: a step goes through all {self.plan.layers} layers, or ends by RunOver")
        try:
            due = self.owner.ask(partial(self.core.expects, run.nonce))
        except RunOver as over:
            self._all_hear(run, over)
            raise
        if self._compute is None and (due.chunk, due.layer) != (chunk, 1):
            raise ValueError(f"chunk {chunk} of run {run.nonce} is begun where chunk {due.chunk} layer {due.layer} is due")
        self._step, self._layer, self._phase = Step(run, chunk, *self.core.span(run.nonce, chunk)), 0, "done"
        return self._step

    def wait_for_layer(self, layer: int) -> Place:
        """Block until the slot of `layer` (from 0) may be written and holds the rows of all tokens before `Step.begin`.

        RunOver if the run has failed, and then everything that was queued for it has ended; ValueError for another layer than the next.
        """
        step = self._expect(layer, "done")
        try:
            self._at = self._claimed(step)
            self._trace.write_begins(self._rows(step))
            self._fill(step)
            if self._hands is not None:
                self.owner.ask(partial(self._hands.enter, step))
        except RunOver as over:
            self._trace.write_ends(step, ok=False)
            self._all_hear(self._now.run, over)
            self._abandon()
            raise
        self.core.times.gates += 1
        self._phase = "claimed"
        return Place(*self._at, self._now.run.blocks, self.memory.views(self._at.slot))

    def kv_written(self, layer: int) -> None:
        """The step's rows of `layer` are written, or will be by what is queued on the compute stream, and change no more.

        From then on they are published to Decode and saved, and the gate is shut until everybody has done with them.  RunOver if the
        run has failed meanwhile (with a compute stream, or with other ranks, which compute this layer too, the next `wait_for_layer`
        says so).
        """
        step = self._expect(layer, "claimed")
        self._phase = "written"
        try:
            self._after_compute(partial(self._written, self._rows(step)))
        except RunOver:
            self._abandon()
            raise

    def layer_done(self, layer: int) -> None:
        """Attention of `layer`, also what is queued of it, reads its slot no more."""
        step = self._expect(layer, "written")
        self._layer, self._phase = layer + 1, "done"
        self._after_compute(partial(self._attended, self._rows(step)))

    def copy_step(self) -> None:
        """Do the whole step, for which nothing is to be computed.  RunOver as `wait_for_layer`."""
        if self._now.begin < self._now.end:
            raise ValueError(f"tokens {self._now.begin}..{self._now.end} of {self._name()} are in no pool: compute them")
        for layer in range(self.plan.layers):
            self.wait_for_layer(layer)
            self.kv_written(layer)
            self.layer_done(layer)

    def wait_for_save(self) -> None:
        """Block until every save of the present step has ended, well or badly.  Not needed for anybody's safety."""
        began = time.monotonic()
        if self._behind is not None:
            self._behind.synchronize()
        while events := self.owner.ask(partial(self.core.saved, self._now.run.nonce, self._now.chunk)):
            for event in events:
                event.wait()
        self.core.times.blocked += time.monotonic() - began

    def close(self) -> dict[str, float]:
        """Let every copy end and be told, write the trace's last line, give all but the memory back; statistics (seconds, counts)."""
        if self._behind is not None:
            self._behind.close()
        with contextlib.suppress(RuntimeError):  # after a crash
            self.owner.ask(self.core.links.close)
        self.core.copies.drain()
        self.owner.stop()
        self.core.copies.close()
        self._server.close()
        trace_footer(self._recorder)
        times, layout = self.core.times, self.memory.layout
        return {
            "gates": times.gates, "blocked_s": times.blocked, "reads_s": times.reads, "load_s": times.load, "save_s": times.save,
            "slot_bytes": layout.size, "slots": layout.slots, "blocks": layout.blocks, "blocks_free": self.blocks.free,
            "refused": self.owner.refused, "slots_free": sum(s.phase == "free" for s in self.core.session.slots.values()),
        }  # fmt: skip

    def _crash(self, error: BaseException) -> None:
        self.core.give_up()
        self._on_crash(error)

    # ---- one layer -------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> Step:
        if self._step is None:
            raise ValueError("no step has been started: call start first")
        return self._step

    def _name(self) -> str:
        return f"run {self._now.run.nonce} chunk {self._now.chunk} layer {self._layer}"

    def _expect(self, layer: int, phase: str) -> TransferId:
        now = self._now
        if layer != self._layer or self._phase != phase or layer >= self.plan.layers:
            raise ValueError(
                f"layer {layer} is {phase if phase != 'done' else 'asked for'} out of order: {self._name()} is {self._phase}, and "
                "each layer in turn goes through wait_for_layer, kv_written, layer_done"
            )
        return TransferId(now.run.nonce, now.chunk, layer + 1)

    def _rows(self, step: TransferId) -> Rows:
        now = self._now
        return Rows(step, self._at, now.run.blocks, now.first, now.end)

    def _claimed(self, step: TransferId) -> Claimed:
        """Where `step` may be written, when it may."""
        if (ahead := self.core.open.pop(step, None)) is not None:
            return ahead
        while True:
            asked = self.owner.ask(partial(self.core.claim, step))
            if (at := asked.wait() if isinstance(asked, Waiter) else asked) is not None:
                return at

    def _fill(self, step: TransferId) -> None:
        """Wait until the backed rows are in the slot; RunOver if they cannot be had, for nobody else has them."""
        if self._now.first < self._now.begin:
            began = time.monotonic()
            outcome = self.owner.ask(partial(self.core.fill, step, self._at, self._now.first, self._now.begin)).result()
            if not outcome.ok:
                raise RunOver(f"{self._name()}: {outcome.reason}")
            self.core.times.blocked += time.monotonic() - began

    def _after_compute(self, call: Callable[[], None]) -> None:
        """Call once what is queued on the compute stream so far has ended; now, where there is none."""
        if self._compute is None or self._behind is None:
            call()
            return
        self._behind.run(self._compute.record().synchronize)
        self._behind.run(call)

    def _written(self, rows: Rows) -> None:
        self._trace.write_ends(rows.step)
        try:
            self.owner.ask(partial(self.core.written, rows.step))
        except RunOver:
            if self._behind is None and self._hands is None:
                raise
            return
        self._published.add(rows.step)
        self._trace.attend_begins(rows)

    def _attended(self, rows: Rows) -> None:
        if rows.step in self._published:  # a run that failed before that has no attention that anybody waits for
            self._published.remove(rows.step)
            self._trace.attend_ends(rows)
            self.owner.post(partial(self.core.attended, rows.step))

    def _all_hear(self, run: Run, over: RunOver) -> None:
        """Every rank leaves the run before the same step."""
        if self._hands is not None:
            self.owner.ask(partial(self._hands.over, run.nonce, str(over)))

    def _abandon(self) -> None:
        """The run is over: whatever was queued for it ends before anybody can have its slot."""
        if self._compute is not None and self._behind is not None:
            self._compute.synchronize()
            self._behind.synchronize()
        self._step, self._layer, self._phase = None, 0, "done"
