"""A Prefill rank to be embedded in whatever computes: it knows slots, blocks, gates and copies, and nothing of a model.

    engine = PrefillEngine(memory, plan=plan, chunk_tokens=512)
    engine.attach(copies=..., links=...)
    engine.open()
    while (run := engine.next_run()) is not None:
        for chunk in range(run.chunk, run.chunks + 1):
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
is the one that computes.  Several runs in one step: `start_all` and `wait_for_all`, with the same calls after them.  Between two
chunks `preempt` has a run give its blocks to others; after `resume` it comes out of `next_run` again, with other blocks and its next chunk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
from collections.abc import Callable, Sequence
from functools import partial

from tidegate.engine.blocks import BlockAllocator
from tidegate.engine.control import Hello
from tidegate.engine.faults import Injector
from tidegate.engine.owner import Owner
from tidegate.engine.prefill_calls import PrefillCalls
from tidegate.engine.prefill_core import PrefillCore
from tidegate.engine.prefill_group import session_of
from tidegate.engine.prefill_parts import Copies, Ended, Links, Lockstep, Place, Run, RunOver, Step
from tidegate.engine.rank_words import Here
from tidegate.engine.recorder import NULL, Recording
from tidegate.engine.slots import MemoryServer, SharedMemory, layer_memory
from tidegate.engine.streams import Stream
from tidegate.engine.tracing import trace_footer, trace_header, trace_observer
from tidegate.engine.waiting import LIMIT
from tidegate.protocol.messages import VERSION, TransferId
from tidegate.protocol.topology import SlotPlan

__all__ = ["Ended", "Place", "PrefillEngine", "Run", "RunOver", "Step", "layer_memory"]

log = logging.getLogger(__name__)


class PrefillEngine(PrefillCalls):
    """One Prefill rank, the leader where there are several.

    memory: layer buffers (`layer_memory`), the slots of `plan`; chunk_tokens: tokens of a full chunk.  compute: the stream that the
    model's work is queued on; left out, the calling thread computes, and has computed when it calls.  prefetch: 1 to claim and load a
    run's next slot while attention still runs, 0 only when it is asked for.  lanes: runs that may be computed side by side, each with
    gates of its own; 1: one after the other.  read_lease: seconds after which a read may be revoked, 0
    for never; resend_seconds: after which READY is said again.  others: the other ranks of this instance, which compute the same
    steps with it (`attach` with hands); their sessions are here too.  poison: fill slots with NaN (integers with -1) when they become free.
    wait_limit, warn: what waits for longer (seconds) is told to `warn`, and makes `core.watch.reason` say why the rank is not well.
    say, on_crash: told of progress, and of an error that ends the engine (later calls raise RuntimeError), by the engine's own thread, or
    (say) by the one that computes.

    Call what `PrefillCalls` has, and `ready`, from one thread; everything else from any.
    """

    def __init__(
        self, memory: SharedMemory, *,
        plan: SlotPlan, chunk_tokens: int, compute: Stream | None = None, prefetch: int = 1, lanes: int = 1,
        read_lease: float = 0.0, resend_seconds: float = 0.5,
        poison: bool = False, recorder: Recording = NULL, faults: Injector | None = None, others: Sequence[Here] = (),
        say: Callable[[str], None] = lambda text: None, wait_limit: float = LIMIT, warn: Callable[[str], None] = log.warning,
        on_crash: Callable[[BaseException], None] = lambda error: None,
    ) -> None:  # fmt: skip
        if tuple(map(plan.slot_of, range(1, plan.layers + 1))) != (slots := memory.layout.slot_of_layer):
            raise ValueError(f"the plan's slots are not those of the memory, {slots}: make the layout by the plan")
        if prefetch not in (0, 1):
            raise ValueError(f"prefetch is {prefetch}: a run's steps are claimed one at a time, in order; choose 0 or 1")
        if lanes < 1:
            raise ValueError(f"lanes is {lanes}: at least one run is computed at a time")
        super().__init__(memory, plan, compute, recorder)
        self.lanes, self._on_crash = lanes, on_crash
        self.incarnation = secrets.randbits(62) + 1
        trace_header(recorder, role="prefill", rank=0, ranks=1 + len(others), members=1 + len(others), incarnation=self.incarnation,
                     layers=plan.layers, plan=plan, chunk_tokens=chunk_tokens, read_lease=read_lease > 0)  # fmt: skip
        if others and others[0].digest != memory.layout.digest:
            raise ValueError(f"rank {others[0].rank} has layout {others[0].digest}, rank 0 {memory.layout.digest}: all ranks have one")
        session = session_of(plan, chunk_tokens, members=1 + len(others), incarnation=self.incarnation, observer=trace_observer(recorder))
        self.blocks = BlockAllocator(memory.layout.blocks, memory.layout.block_size)
        self.core = PrefillCore(
            session, memory, self.blocks, faults or Injector(()), read_lease=read_lease, resend_seconds=resend_seconds,
            poison=poison, apart=lanes > 1, ahead=prefetch > 0, say=say, wait_limit=wait_limit, warn=warn,
        )  # fmt: skip
        self.owner = Owner("prefill-session", None, on_frames=None, on_tick=self.core.tick, after=self.core.look,
                           on_crash=self._crash, tick=resend_seconds)  # fmt: skip
        # the address all may read, the incarnation only whoever is handed the memory
        self._server = MemoryServer(memory, f"tidegate-{os.getpid()}-{secrets.token_hex(8)}", self.incarnation)
        self.hello = Hello(VERSION, self.incarnation, memory.layout.digest, self._server.address, tuple(other.memory for other in others))

    # ---- from any thread -------------------------------------------------------------------------------------------

    def attach(self, *, copies: Copies, links: Links, hands: Lockstep | None = None) -> None:
        """The host pool, the ways to Decode, and where there are other ranks, what tells them of each step; once, before `open`.  All are
        called in the engine's own thread.
        """
        self.core.copies, self.core.links, self._hands = copies, links, hands
        self.core.parking.copies = copies

    def open(self) -> None:
        """Begin to listen."""
        self.owner.start()

    def next_run(self, *, wait: bool = True) -> Run | None:
        """The next run that has its blocks (`say` is told what others wait for); blocks until there is one, None after `stop`.  wait: False
        for None where there is none just now.
        """
        try:
            run = self.core.ready_runs.get(block=wait)
        except queue.Empty:
            return None
        if run is None and not wait:
            self.stop()  # for the next one who waits
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

    # ---- from the computing thread: `PrefillCalls`, and ------------------------------------------------------------

    def ready(self, parts: Sequence[tuple[Run, int]]) -> list[bool]:
        """Which of these chunks, each the next of its run, could be begun without waiting, or are of a run that has failed.  Blocks until
        there is one.
        """
        steps = [TransferId(run.nonce, chunk, 1) for run, chunk in parts]
        found = self.owner.ask(partial(self.core.claim, *steps, enough=1)).wait()
        return [step in found for step in steps]

    def lacks_blocks(self) -> bool:
        """Does a run wait for blocks that others have?"""
        return self.owner.ask(self.core.places.lacks_blocks)

    def preempt(self, run: int) -> bool:
        """Have `run`, of which a chunk is computed and another is to come, give its blocks to whoever waits, as soon as nothing reads or
        saves there any more; it keeps what the pool has of it, and is not computed before `resume`.

        False, with nothing changed, where that is not possible just now: its next chunk has its slot already (`ready` takes it), or is its
        first, or the run is over.  ValueError for a run that is preempted.
        """
        return self.owner.ask(partial(self.core.preempt, run))

    def resume(self, run: int) -> None:
        """Have it go on as soon as there is room, after those that wait already.  Nothing if it is over; ValueError for a run that is not
        preempted.
        """
        self.owner.ask(partial(self.core.parking.resume, run))

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
        busy = {slot for (slot, _), gate in self.core.session.slots.items() if gate.phase != "free"}
        return {
            "gates": times.gates, "blocked_s": times.blocked, "reads_s": times.reads, "load_s": times.load, "save_s": times.save,
            "slot_bytes": layout.size, "slots": layout.slots, "blocks": layout.blocks, "blocks_free": self.blocks.free,
            "refused": self.owner.refused, "slots_free": layout.slots - len(busy), "preempted": self.core.parking.preempted,
            "gave_way": self.core.parking.gave_way, "resumed": self.core.parking.resumed,
        }  # fmt: skip

    def _crash(self, error: BaseException) -> None:
        self.core.give_up()
        self._on_crash(error)
