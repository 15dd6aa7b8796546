"""The Prefill process: computes prompts layer by layer through shared slots; `PrefillSession` decides, this module executes.

Rules: one thread owns the session (`Owner`); one thread computes, so a run that failed in the middle of a layer has stopped
writing before any other run can claim its slot; copies run on the data path's threads and only post their end; a slot is
written between `wait_for_layer` and `kv_written` and at no other time.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import zmq
from torch import Tensor

from tidegate.engine import control
from tidegate.engine.config import RunConfig
from tidegate.engine.copying import Outcome, Work
from tidegate.engine.faults import Injector
from tidegate.engine.model import Model
from tidegate.engine.owner import Owner
from tidegate.engine.pool_file import FilePool, Key, PoolError
from tidegate.engine.recorder import NULL, NullRecorder, Recorder
from tidegate.engine.slot_layout import plan_layout
from tidegate.engine.slots import MemoryServer, SharedMemory
from tidegate.engine.tracing import labels, trace_begin, trace_end, trace_file, trace_footer, trace_header, trace_observer
from tidegate.engine.worker_io import Parent
from tidegate.protocol.effects import BeginLoad, BeginSave, Effect, RunEnded, RunStarted, Send
from tidegate.protocol.errors import LocalProtocolError
from tidegate.protocol.messages import VERSION, Start, TransferId, decode, encode
from tidegate.protocol.prefill import PrefillSession

__all__ = ["PrefillWorker", "RunOver", "main"]

log = logging.getLogger(__name__)
AREAS = ("main", "index")


class RunOver(Exception):
    """The run failed while it was computing: there is nothing more to do for it."""


class PrefillWorker:
    """One Prefill rank: memory, pool, session, control socket, and the loop that computes."""

    def __init__(self, config: RunConfig, parent: Parent, port: int) -> None:
        self.config, self.parent = config, parent
        self.model = Model.random(config.model_config(), config.seed)
        self.plan = config.plan()
        model = self.model.config
        slots = [self.plan.slot_of(layer) for layer in range(1, self.plan.layers + 1)]
        widths = {"main": model.main_width, "index": model.index_width}
        self.memory = SharedMemory.allocate(plan_layout(slots, config.max_tokens, widths, model.dtype))
        self.incarnation = secrets.randbits(62) + 1
        self.server = MemoryServer(self.memory, f"tidegate-{os.getpid()}-{self.incarnation:x}")
        self.recorder: Recorder | NullRecorder = NULL
        if config.trace:
            self.recorder = Recorder(Path(config.trace) / trace_file("prefill", 0), Path(trace_file("prefill", 0)).stem)
        trace_header(
            self.recorder, role="prefill", rank=0, incarnation=self.incarnation, layers=self.plan.layers,
            plan=self.plan, chunk_tokens=config.chunk, read_lease=config.read_lease > 0,
        )  # fmt: skip
        self.faults = Injector(config.prefill_faults)
        self.pool = FilePool(
            config.pool_folder, recorder=self.recorder, faults=self.faults.copies(), origin=self.memory.bytes
        )
        self.session = PrefillSession(
            plan=self.plan, chunk_tokens=config.chunk, new_run=lambda _: secrets.randbits(62) + 1,
            incarnation=self.incarnation, observer=trace_observer(self.recorder),
        )  # fmt: skip
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.owner = Owner(
            "prefill-session", control.connect(self.context, port), on_frames=self._frames, on_tick=self._tick,
            after=self._look, on_crash=self._crash, tick=config.resend_seconds,
        )  # fmt: skip
        self._socket = self.owner._socket
        self.jobs: queue.Queue[tuple[int, Start] | None] = queue.Queue()
        self._waiting: dict[int, threading.Event] = {}
        self._held_since: dict[TransferId, float] = {}
        self.welcomed = False
        self.stats = {"bytes_saved": 0.0, "bytes_loaded": 0.0, "gate_wait_s": 0.0, "compute_s": 0.0, "gates": 0.0,
                      "slot_bytes": float(self.memory.layout.size), "slots": float(self.memory.layout.slots)}  # fmt: skip

    # ---- the computing thread -------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Handshake, then compute run after run until the parent says stop."""
        self.parent.watch(lambda: self.jobs.put(None))
        self.owner.start()
        self.owner.post(self._hello)
        self.parent.say("ready")
        while (job := self.jobs.get()) is not None:
            try:
                self._prefill(*job)
            except RunOver as over:
                self.parent.say("progress", text=str(over))
        self._close()

    def _prefill(self, run: int, start: Start) -> None:
        began = time.monotonic()
        chunks = -(-start.tokens // self.config.chunk)
        for chunk in range(1, chunks + 1):
            first = (chunk - 1) * self.config.chunk
            tokens = start.prompt[first : first + self.config.chunk]
            self.model.prefill_chunk(tokens, first, SlotKV(self, run, chunk, first, first + len(tokens)))
            self.parent.say("progress", text=f"prefill {start.request}: chunk {chunk} of {chunks}")
        self.stats["compute_s"] += time.monotonic() - began

    def claim(self, run: int) -> tuple[int, int]:
        """Block until the run's next slot is claimed and loaded; (slot, epoch).  RunOver if the run fails first."""
        woken = threading.Event()
        began = time.monotonic()

        def wait() -> None:
            self._waiting[run] = woken

        self.owner.post(wait)
        woken.wait()

        def claimed() -> tuple[int, int]:
            if not self.session.can_write(run):
                raise RunOver(self._why(run))
            slot = self.plan.slot_of(self.session.step_of(run).layer)
            return slot, self.session.slots[slot].epoch

        out = self.owner.ask(claimed)
        self.stats["gate_wait_s"] += time.monotonic() - began
        self.stats["gates"] += 1
        return out

    def written(self, run: int) -> None:
        """kv_written of the run's claimed step; RunOver if the run failed meanwhile."""

        def write() -> None:
            if not self.session.can_write(run):
                raise RunOver(self._why(run))
            self.execute(self.session.write(run))

        self.owner.ask(write)

    def _why(self, run: int) -> str:
        return f"run {run} is {self.session.runs[run].phase}: {'; '.join(self.session.story[-2:])}"

    # ---- the owner's thread ---------------------------------------------------------------------------------------

    def execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message):
                    for _ in range(self.faults.copies_of(str(message.__struct_config__.tag))):
                        self._socket.send_multipart([control.MESSAGE, encode(message)])
                    if (transfer := getattr(message, "transfer", None)) is not None:
                        self._held_since.setdefault(transfer, time.monotonic())
                case RunStarted(run, start):
                    self.jobs.put((run, start))
                case BeginLoad(step, slot, epoch):
                    Load(self, step, Work(slot, epoch, labels(step))).begin()
                case BeginSave(step, slot, epoch):
                    self._save(step, Work(slot, epoch, labels(step)))
                case RunEnded(run, verdict, reason):
                    self.parent.say("progress", text=f"prefill run {verdict}{': ' + reason if reason else ''}")
                    if verdict == "failed":
                        self._spoil(run)

    def _look(self) -> None:
        """Claim for whoever waits and may; wake it when its slot is loaded, or its run over."""
        for run, woken in list(self._waiting.items()):
            if self.session.can_miss(run):
                self.execute(self.session.miss(run))
            elif self.session.can_claim(run):
                self.execute(self.session.claim(run))
            if self.session.can_write(run) or self.session.runs[run].phase == "failed":
                del self._waiting[run]
                woken.set()

    def _frames(self, frames: list[bytes]) -> None:
        if len(frames) == 2 and frames[0] == control.WELCOME:
            welcome = control.parse_welcome(frames[1])
            if welcome.refused:
                raise OSError(f"Decode refused this Prefill: {welcome.refused}")
            self.welcomed = welcome.digest == self.memory.layout.digest
        elif len(frames) == 2 and frames[0] == control.MESSAGE:
            self.execute(self.session.receive(decode(frames[1])))
        else:
            log.warning("dropped %d frames that are no message", len(frames))

    def _hello(self) -> None:
        hello = control.Hello(VERSION, self.incarnation, self.memory.layout.digest, self.server.address)
        self._socket.send_multipart([control.HELLO, control.frame(hello)])

    def _tick(self) -> None:
        if not self.welcomed:
            self._hello()
        now = time.monotonic()
        for transfer in [t for t in self.session.readies if self.session.is_held(t)]:
            age = now - self._held_since[transfer]
            if self.config.read_lease and age > self.config.read_lease:
                self.execute(self.session.revoke(transfer))
            elif age > self.config.resend_seconds:
                self.execute(self.session.resend_ready(transfer))

    def _crash(self, error: BaseException) -> None:
        self.parent.say("error", text=f"prefill: {error}")
        os._exit(4)

    # ---- copies ---------------------------------------------------------------------------------------------------

    def views(self, slot: int, first: int, end: int) -> list[Tensor]:
        return [self.memory.view(slot, name)[first:end] for name in AREAS]

    def span(self, run: int, chunk: int) -> tuple[int, int]:
        """Tokens [first, end) of a chunk of a run."""
        return (chunk - 1) * self.config.chunk, min(chunk * self.config.chunk, self.session.starts[run].tokens)

    def ranges(self, slot: int, first: int, end: int) -> list[tuple[int, int]]:
        return [self.memory.layout.area(slot, name).row_range(first, end - first) for name in AREAS]

    def _save(self, step: TransferId, work: Work) -> None:
        key, (first, end) = Key(str(step.run), step.chunk), self.span(step.run, step.chunk)
        buffers = self.views(work.slot, first, end)
        size = sum(buffer.numel() * buffer.element_size() for buffer in buffers)

        def ended(outcome: Outcome) -> None:
            if outcome.stopped:
                self.owner.post(lambda: self._saved(step, outcome))

        try:
            if step.layer == 1:
                self.pool.allocate(key, [size] * self.plan.layers)
            self.pool.save(key, step.layer - 1, buffers, work, ended)
        except (PoolError, OSError) as error:
            reason = str(error)
            self.owner.post(lambda: self._saved(step, Outcome(False, True, reason)))

    def _saved(self, step: TransferId, outcome: Outcome) -> None:
        self.stats["bytes_saved"] += outcome.bytes
        if not outcome.ok:
            self.parent.say("progress", text=f"save of {step} failed: {outcome.reason}")
        self.execute(self.session.save_end(step, outcome.ok))
        if self.session.pool[step.run, step.chunk].phase == "readable":
            self.pool.finish(Key(str(step.run), step.chunk))

    def _spoil(self, run: int) -> None:
        for key in [key for key, state in self.session.pool.items() if key[0] == run and state.phase == "failed"]:
            self.pool.remove(Key(str(run), key[1]))

    def _close(self) -> None:
        """Let every copy end and be told, then write the last line and give everything back."""
        self.pool.close()
        self.owner.stop()
        self.parent.say("stats", stats=self.stats | {"refused": float(self.owner.refused)})
        trace_footer(self.recorder)
        self.recorder.close()
        self.server.close()
        self.memory.close()
        self.context.term()


class Load:
    """The load of one step: every earlier chunk of the layer, pinned, copied, unpinned; it ends once."""

    def __init__(self, worker: PrefillWorker, step: TransferId, work: Work) -> None:
        self.worker, self.step, self.work = worker, step, work
        self.keys = [Key(str(step.run), chunk) for chunk in range(1, step.chunk)]
        self.open = set(self.keys)
        self.ok = True

    def begin(self) -> None:
        for key in self.keys:
            first, end = self.worker.span(self.step.run, key.chunk)
            buffers = self.worker.views(self.work.slot, first, end)
            pinned = self.worker.pool.pin(key)
            told = self._told(key, pinned)
            try:
                self.worker.pool.load(key, self.step.layer - 1, buffers, self.work, told)
            except (PoolError, ValueError) as error:
                told(Outcome(False, True, str(error)))

    def _told(self, key: Key, pinned: bool) -> Callable[[Outcome], None]:
        def told(outcome: Outcome) -> None:
            if outcome.stopped:
                self.worker.owner.post(lambda: self._ended(key, pinned, outcome))

        return told

    def _ended(self, key: Key, pinned: bool, outcome: Outcome) -> None:
        if pinned:
            self.worker.pool.unpin(key)
        self.open.discard(key)
        self.ok = self.ok and outcome.ok
        self.worker.stats["bytes_loaded"] += outcome.bytes
        if not self.open:
            self.worker.execute(self.worker.session.load_end(self.step, self.ok))


class SlotKV:
    """`PrefillKV` of one chunk: asks the gate for each layer's slot, says when its rows are written and done with."""

    def __init__(self, worker: PrefillWorker, run: int, chunk: int, first: int, end: int) -> None:
        self.worker, self.run, self.chunk, self.first, self.end = worker, run, chunk, first, end
        self.slot = self.epoch = 0

    def _step(self, layer: int) -> TransferId:
        return TransferId(self.run, self.chunk, layer + 1)

    def wait_for_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        self.slot, self.epoch = self.worker.claim(self.run)
        ranges = self.worker.ranges(self.slot, self.first, self.end)
        trace_begin(self.worker.recorder, "write", self._step(layer), self.slot, self.epoch, ranges)
        main, index = (self.worker.memory.view(self.slot, name) for name in AREAS)
        return main, index

    def kv_written(self, layer: int) -> None:
        rows = self.worker.views(self.slot, self.first, self.end)
        trace_end(self.worker.recorder, "write", self._step(layer), self.slot, self.epoch, rows)
        self.worker.written(self.run)
        trace_begin(self.worker.recorder, "attend", self._step(layer), self.slot, self.epoch)

    def layer_done(self, layer: int) -> None:
        step = self._step(layer)
        if delay := self.worker.faults.attend_delay(step.layer, step.chunk):
            threading.Event().wait(delay)
        rows = self.worker.views(self.slot, self.first, self.end)
        trace_end(self.worker.recorder, "attend", step, self.slot, self.epoch, rows)
        self.worker.owner.post(lambda: self.worker.execute(self.worker.session.layer_done(step)))


def main() -> None:
    """Entry of the process: configuration on standard input, the Decode's port as its second line."""
    logging.basicConfig(level=logging.WARNING, format="prefill: %(message)s")
    torch.set_num_threads(1)
    parent = Parent()
    config = parent.config(RunConfig)
    try:
        PrefillWorker(config, parent, config.port).serve()
    except (OSError, PoolError, LocalProtocolError) as error:
        parent.say("error", text=f"prefill: {error}")
        os._exit(4)


if __name__ == "__main__":
    main()
