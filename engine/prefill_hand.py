"""A Prefill rank that is not the leader: it owns its layer memory and computes, and decides nothing.

Rules: it computes the runs that the leader begins, in that order, and each step when the leader says that all ranks have agreed on it;
it copies what the leader asks for, and tells of each end once, when the copy has stopped; a run is left before a step, never within
one, and at every rank before the same one.  The calls are those of `PrefillEngine`, in its order.
"""

from __future__ import annotations

import os
import queue
import secrets
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
    CopyBegins,
    CopyEnded,
    Ended,
    Go,
    HandWord,
    Here,
    LeaderWord,
    Over,
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
from tidegate.protocol.messages import Start, TransferId
from tidegate.protocol.topology import SlotPlan

__all__ = ["PrefillHand"]


class PrefillHand:
    """memory: its layer buffers; extents: of the pool that all ranks share, in `folder`; model: as for `PoolCopies`.

    Call `start`, `wait_for_layer`, `kv_written` and `layer_done` from one thread, the one that computes.
    """

    def __init__(
        self, leader: Leader, memory: SharedMemory, *, plan: SlotPlan, chunk_tokens: int, folder: str, extents: int, pin_seconds: float,
        model: str, read_lease: bool = False, recorder: Recording = NULL, faults: Faults | None = None,
    ) -> None:  # fmt: skip
        self.memory, self._leader, self._plan, self._chunk_tokens, self._recorder = memory, leader, plan, chunk_tokens, recorder
        told = leader.told
        trace_header(recorder, role="prefill", rank=told.rank, ranks=told.size, members=told.size, incarnation=secrets.randbits(62) + 1,
                     layers=plan.layers, plan=plan, chunk_tokens=chunk_tokens, read_lease=read_lease)  # fmt: skip
        self._trace = StepTrace(recorder, memory)
        self.owner = Owner("prefill-hand", leader.socket, on_frames=self._frames, on_tick=lambda: None, after=lambda: None,
                           on_crash=lambda error: leader.fail(str(error)), tick=60.0)  # fmt: skip
        self._server = MemoryServer(memory, f"tidegate-{os.getpid()}-{secrets.token_hex(8)}")
        self._starts: dict[int, Start] = {}
        self._blocks: dict[int, tuple[int, ...]] = {}
        self._filling: TransferId | None = None  # the step of which a fill has begun, before all ranks agreed on it
        self.copies = PoolCopies(
            LocalPool(extent_layout(memory.layout), extents, folder=folder, pin_seconds=pin_seconds, recorder=recorder, faults=faults),
            memory, span=self.span, post=self.owner.post, model=model, rank=told.rank, ranks=told.size,
        )  # fmt: skip
        self._runs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._steps: queue.SimpleQueue[Go | Over] = queue.SimpleQueue()
        self._run: Run
        self._at: Go

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
        return (chunk - 1) * self._chunk_tokens, min(chunk * self._chunk_tokens, self._starts[run].tokens)

    # ---- the computing thread --------------------------------------------------------------------------------------

    def next_run(self) -> Run | None:
        """The next run to be computed; None when it is time to end."""
        return self._runs.get()

    def start(self, run: Run, chunk: int) -> Step:
        self._run = run
        size = self._chunk_tokens
        return Step(run, chunk, (chunk - 1) * size, min(chunk * size, run.start.tokens))

    def wait_for_layer(self, layer: int) -> Place:
        """Block until all ranks begin the step; RunOver as `PrefillEngine.wait_for_layer`."""
        word = self._steps.get()
        while isinstance(word, Over):
            if word.run == self._run.nonce:
                raise RunOver(word.reason)
            word = self._steps.get()  # this rank had computed all of that run
        if (word.step.run, word.step.layer) != (self._run.nonce, layer + 1):
            raise RuntimeError(f"this rank is at layer {layer + 1} of run {self._run.nonce}, and the leader begins {word.step}")
        self._at = word
        return Place(word.slot, word.epoch, self._run.blocks, self.memory.views(word.slot))

    def kv_written(self, layer: int) -> None:
        self._trace.write_ends(self._at.step)
        self._say(Written(self._at.step, self._at.slot, self._at.epoch))
        self._trace.attend_begins(self._rows(self._at))

    def layer_done(self, layer: int) -> None:
        self._trace.attend_ends(self._rows(self._at))
        self._say(Attended(self._at.step, self._at.slot, self._at.epoch))

    def _rows(self, word: Go | CopyBegins) -> Rows:
        return Rows(word.step, Claimed(word.slot, word.epoch), self._blocks[word.step.run], *self.span(word.step.run, word.step.chunk))

    def copy_step(self) -> None:
        """A step of which nothing is to be computed."""
        for layer in range(self._plan.layers):
            self.wait_for_layer(layer)
            self.kv_written(layer)
            self.layer_done(layer)

    # ---- the leader's words ----------------------------------------------------------------------------------------

    def _say(self, word: HandWord) -> None:
        self.owner.post(partial(self._leader.say, word))

    def _frames(self, frames: list[bytes]) -> None:
        self._take(unpack_leader(frames[0]))

    def _take(self, word: LeaderWord) -> None:
        match word:
            case Begin(run, start, chunks, blocks, backed):
                self._starts[run], self._blocks[run] = start, blocks
                self.copies.begin(run, start, blocks, backed)
                self._runs.put(Run(run, start, chunks, blocks, backed))
            case Go():
                self._filling = None
                self._trace.write_begins(self._rows(word))
                self._steps.put(word)
            case Over():
                if self._filling is not None:
                    self._trace.write_ends(self._filling, ok=False)
                    self._filling = None
                self._steps.put(word)
            case CopyBegins():
                self._copy(word)
            case Remove(run, chunks):
                self.copies.remove(run, chunks)
            case Ended(run):
                self.copies.end(run)
            case Poisoned(slot):
                poison_slot(self.memory, slot)
            case Stop():
                self._runs.put(None)

    def _copy(self, word: CopyBegins) -> None:
        work = Work(word.slot, word.epoch, labels(word.step))

        def ended(step: TransferId, outcome: Outcome) -> None:
            self._leader.say(CopyEnded(word.kind, step, word.slot, word.epoch, outcome))

        if word.kind == "fill":
            self._filling = word.step
            self._trace.write_begins(self._rows(word))
            self.copies.fill(word.step, work, word.first, word.end, ended)
        elif word.kind == "load":
            self.copies.load(word.step, work, ended)
        else:
            self.copies.save(word.step, work, ended)
