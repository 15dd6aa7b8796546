"""A Prefill rank that is not the leader: it owns its layer memory and computes, and decides nothing.

Rules: it computes the steps that the leader begins, in that order, and each layer when the leader says that all ranks have agreed on it;
it copies what the leader asks for, and tells of each end once, when the copy has stopped; a run leaves a step before a layer, never
within one, and at every rank before the same one.  The calls are those of `PrefillEngine`, in its order.
"""

from __future__ import annotations

import os
import queue
import secrets
from collections.abc import Sequence
from functools import partial

from tidegate.engine.copying import Faults, Outcome, Work
from tidegate.engine.hand_io import Leader
from tidegate.engine.owner import Owner
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_copies import PoolCopies, extent_layout
from tidegate.engine.prefill_parts import Claimed, Place, Run, RunOver, Step
from tidegate.engine.prefill_waits import poison_slot
from tidegate.engine.rank_words import (
    Attended,
    Begin,
    Compute,
    CopyBegins,
    CopyEnded,
    Ended,
    Go,
    HandWord,
    Here,
    LeaderWord,
    Moved,
    Poisoned,
    Remove,
    Stats,
    Stop,
    Written,
    unpack_leader,
)  # fmt: skip
from tidegate.engine.recorder import NULL, Recording
from tidegate.engine.slots import MemoryServer, SharedMemory
from tidegate.engine.step_trace import Rows, StepTrace
from tidegate.engine.tracing import labels, trace_footer, trace_header
from tidegate.protocol.messages import TransferId
from tidegate.protocol.topology import SlotPlan

__all__ = ["PrefillHand"]


class PrefillHand:
    """memory: its layer buffers; extents: of the pool that all ranks share, in `folder`; model, lookahead: as for `PoolCopies`.

    Call `next_step`, `start_all`, `wait_for_all`, `kv_written` and `layer_done` from one thread, the one that computes.
    """

    def __init__(
        self, leader: Leader, memory: SharedMemory, *, plan: SlotPlan, chunk_tokens: int, folder: str, extents: int, pin_seconds: float,
        model: str, lookahead: int = 0, read_lease: bool = False, recorder: Recording = NULL, faults: Faults | None = None,
    ) -> None:  # fmt: skip
        self.memory, self._leader, self._plan, self._chunk_tokens, self._recorder = memory, leader, plan, chunk_tokens, recorder
        told = leader.told
        trace_header(recorder, role="prefill", rank=told.rank, ranks=told.size, members=told.size, incarnation=secrets.randbits(62) + 1,
                     layers=plan.layers, plan=plan, chunk_tokens=chunk_tokens, read_lease=read_lease)  # fmt: skip
        self._trace = StepTrace(recorder, memory)
        self.owner = Owner("prefill-hand", leader.socket, on_frames=self._frames, on_tick=lambda: None, after=lambda: None,
                           on_crash=lambda error: leader.fail(str(error)), tick=60.0)  # fmt: skip
        self._server = MemoryServer(memory, f"tidegate-{os.getpid()}-{secrets.token_hex(8)}")
        self._known: dict[int, Run] = {}  # runs that are not over
        self._filling: set[TransferId] = set()  # steps of which a fill has begun, before all ranks agreed on them
        self.copies = PoolCopies(
            LocalPool(extent_layout(memory.layout), extents, folder=folder, pin_seconds=pin_seconds, recorder=recorder, faults=faults),
            memory, span=self.span, post=self.owner.post, model=model, rank=told.rank, ranks=told.size, lookahead=lookahead,
        )  # fmt: skip
        self._steps: queue.SimpleQueue[list[tuple[Run, int]] | None] = queue.SimpleQueue()
        self._layers: queue.SimpleQueue[list[Rows]] = queue.SimpleQueue()
        self._runs: list[Run] = []  # of the step
        self._at: list[Rows] = []

    def open(self) -> None:
        """Tell the leader that this rank is ready, and listen."""
        self._leader.say(Here(self._leader.told.rank, self._server.address, self.memory.layout.digest, os.getpid()))
        self.owner.start()

    def close(self) -> None:
        """Let every copy end and be told, say what was done, give everything back."""
        self.copies.drain()
        moved = {"bytes_saved": self.copies.bytes_saved, "bytes_loaded": self.copies.bytes_loaded, "bytes_reused": self.copies.bytes_reused}
        self.owner.ask(lambda: moved.update(bytes_saved=self.copies.bytes_saved, bytes_loaded=self.copies.bytes_loaded))
        self._say(Stats({name: float(count) for name, count in moved.items()}))
        self.owner.stop()
        self.copies.close()
        trace_footer(self._recorder)
        self._server.close()
        self.memory.close()

    def span(self, run: int, chunk: int) -> tuple[int, int]:
        """Tokens [first, end) of a chunk of a run that is not over."""
        return (chunk - 1) * self._chunk_tokens, min(chunk * self._chunk_tokens, self._known[run].start.tokens)

    # ---- the computing thread --------------------------------------------------------------------------------------

    def next_step(self) -> list[tuple[Run, int]] | None:
        """The (run, chunk) of the next step; None when it is time to end."""
        return self._steps.get()

    def start_all(self, parts: Sequence[tuple[Run, int]]) -> list[Step | RunOver]:
        """Each run's share of the step; what has failed the leader has left out."""
        self._runs = [run for run, _ in parts]
        size = self._chunk_tokens
        return [Step(run, chunk, (chunk - 1) * size, min(chunk * size, run.start.tokens)) for run, chunk in parts]

    def wait_for_all(self, layer: int) -> list[Place | RunOver]:
        """Block until all ranks begin the layer; RunOver as `PrefillEngine.wait_for_all`."""
        self._at = self._layers.get()
        if not self._at:
            raise RunOver("the leader has left the step")
        here = {rows.step.run: rows.at for rows in self._at}
        if not here.keys() <= {run.nonce for run in self._runs} or any(rows.step.layer != layer + 1 for rows in self._at):
            raise RuntimeError(f"this rank is at layer {layer + 1} of {[run.nonce for run in self._runs]}; the leader begins {self._at}")
        return [self._place(run, *here[run.nonce], layer) if run.nonce in here else RunOver("it has left the step") for run in self._runs]

    def _place(self, run: Run, slot: int, epoch: int, layer: int) -> Place:
        return Place(slot, epoch, run.blocks, self.memory.views(slot, layer))

    def kv_written(self, layer: int) -> None:
        for rows in self._at:
            self._trace.write_ends(rows.step)
        self._say(Written(self._steps_now()))
        for rows in self._at:
            self._trace.attend_begins(rows)

    def layer_done(self, layer: int) -> None:
        for rows in self._at:
            self._trace.attend_ends(rows)
        self._say(Attended(self._steps_now()))

    def _steps_now(self) -> tuple[tuple[TransferId, int, int], ...]:
        return tuple((rows.step, *rows.at) for rows in self._at)

    # ---- the leader's words ----------------------------------------------------------------------------------------

    def _say(self, word: HandWord) -> None:
        self.owner.post(partial(self._leader.say, word))

    def _frames(self, frames: list[bytes]) -> None:
        self._take(unpack_leader(frames[0]))

    def _take(self, word: LeaderWord) -> None:
        match word:
            case Begin(run, start, chunks, blocks, backed):
                self._known[run] = Run(run, start, chunks, blocks, backed)
                self.copies.begin(run, start, blocks, backed)
            case Moved(run, blocks):
                self._known[run] = self._known[run]._replace(blocks=blocks)
                self.copies.move(run, blocks)
            case Compute(parts):
                self._steps.put([(self._known[run], chunk) for run, chunk in parts])
            case Go(steps):
                self._go(steps)
            case CopyBegins():
                self._copy(word)
            case Remove(run, chunks):
                self.copies.remove(run, chunks)
            case Ended(run):
                self.copies.end(run)
                self._known.pop(run, None)
            case Poisoned(slot, blocks):
                poison_slot(self.memory, slot, blocks)
            case Stop():
                self._steps.put(None)

    def _go(self, steps: Sequence[tuple[TransferId, int, int]]) -> None:
        """All ranks begin these; what was filled of others has ended, for their runs have left the step."""
        going = [self._rows(step, slot, epoch) for step, slot, epoch in steps]
        for step in self._filling - {rows.step for rows in going}:
            self._trace.write_ends(step, ok=False)
        self._filling.clear()
        for rows in going:
            self._trace.write_begins(rows)
        self._layers.put(going)

    def _rows(self, step: TransferId, slot: int, epoch: int) -> Rows:
        """Of a run that is not over."""
        return Rows(step, Claimed(slot, epoch), self._known[step.run].blocks, *self.span(step.run, step.chunk))

    def _copy(self, word: CopyBegins) -> None:
        work = Work(word.slot, word.epoch, labels(word.step))

        def ended(step: TransferId, outcome: Outcome) -> None:
            self._leader.say(CopyEnded(word.kind, step, word.slot, word.epoch, outcome))

        if word.kind == "fill":
            self._filling.add(word.step)
            self._trace.write_begins(self._rows(word.step, word.slot, word.epoch))
            self.copies.fill(word.step, work, word.first, word.end, ended)
        elif word.kind == "load":
            self.copies.load(word.step, work, ended)
        else:
            self.copies.save(word.step, work, ended)
