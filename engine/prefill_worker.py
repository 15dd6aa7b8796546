"""The Prefill process: computes prompts layer by layer through shared slots; `PrefillSession` decides, this module executes.

Rules: one thread owns the session (`Owner`); one thread computes, run after run, and a run's next slot is claimed only when the rows
of its last step are written (so that the load overlaps attention) or the thread waits for it: so a run that failed in the middle
of a layer has stopped writing before any other run can have its slot; copies run on the data path's threads and only post their
end.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
import time
from functools import partial
from pathlib import Path

import msgspec
import zmq

from tidegate.engine import control
from tidegate.engine.blocks import BlockAllocator
from tidegate.engine.config import RunConfig
from tidegate.engine.copying import Outcome, Work
from tidegate.engine.faults import Injector
from tidegate.engine.model import Model
from tidegate.engine.owner import Owner
from tidegate.engine.pool_file import FilePool
from tidegate.engine.prefill_copies import PoolCopies
from tidegate.engine.recorder import NULL, NullRecorder, Recorder
from tidegate.engine.slot_kv import Claimed, SlotKV
from tidegate.engine.slot_layout import plan_layout
from tidegate.engine.slots import MemoryServer, SharedMemory
from tidegate.engine.tracing import labels, trace_file, trace_footer, trace_header, trace_observer
from tidegate.engine.worker_io import Parent, run_worker
from tidegate.protocol.effects import BeginLoad, BeginSave, Effect, RunEnded, RunStarted, Send
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import VERSION, Message, Ready, Start, TransferId, decode, encode
from tidegate.protocol.prefill import PrefillSession

__all__ = ["PrefillWorker", "RunOver", "main"]


class RunOver(Exception):
    """The run failed while it was computing: there is nothing more to do for it."""


class PrefillWorker:
    """One Prefill rank: memory, pool, session, control socket, and the loop that computes."""

    def __init__(self, config: RunConfig, parent: Parent) -> None:
        self.config, self.parent = config, parent
        self.model = Model.random(config.model_config(), config.seed)
        self.plan = config.plan()
        model = self.model.config
        slots = [self.plan.slot_of(layer) for layer in range(1, self.plan.layers + 1)]
        widths = {"main": model.main_width, "index": model.index_width}
        self.blocks = BlockAllocator(config.prefill_blocks, config.block_size)
        self.memory = SharedMemory.allocate(
            plan_layout(slots, widths, model.dtype, blocks=self.blocks.blocks, block_size=self.blocks.block_size)
        )
        self.incarnation = secrets.randbits(62) + 1
        self.server = MemoryServer(self.memory, f"tidegate-{os.getpid()}-{self.incarnation:x}")
        self.recorder = self._recorder()
        self.faults = Injector(config.prefill_faults)
        self.session = PrefillSession(
            plan=self.plan, chunk_tokens=config.chunk, new_run=lambda _: secrets.randbits(62) + 1,
            incarnation=self.incarnation, observer=trace_observer(self.recorder),
        )  # fmt: skip
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = control.connect(self.context, config.port)
        self.owner = Owner(
            "prefill-session", self._socket, on_frames=self._frames, on_tick=self._tick,
            after=self._look, on_crash=self._crash, tick=config.resend_seconds,
        )  # fmt: skip
        pool = FilePool(
            config.pool_folder, recorder=self.recorder, faults=self.faults.copies(), origin=self.memory.bytes
        )
        self.copies = PoolCopies(
            pool, self.memory, self.blocks, layers=self.plan.layers, span=self._span, post=self.owner.post
        )
        self.jobs: queue.Queue[tuple[int, Start] | None] = queue.Queue()
        self._ahead = 0
        self._waiting: dict[int, threading.Event] = {}
        self._ended: set[int] = set()
        self._told: set[int] = set()
        self._said: dict[TransferId, float] = {}
        self.welcomed = False
        self.gates, self.gate_wait, self.compute = 0, 0.0, 0.0

    def _recorder(self) -> Recorder | NullRecorder:
        name = trace_file("prefill", 0)
        recorder = Recorder(Path(self.config.trace) / name, Path(name).stem) if self.config.trace else NULL
        trace_header(
            recorder, role="prefill", rank=0, incarnation=self.incarnation, layers=self.plan.layers,
            plan=self.plan, chunk_tokens=self.config.chunk, read_lease=self.config.read_lease > 0,
        )  # fmt: skip
        return recorder

    # ---- the computing thread -------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Handshake, then compute run after run until the parent says stop."""
        self.parent.watch(lambda: self.jobs.put(None), self.config.scratch_folder)
        self.owner.start()
        self.owner.post(self._hello)
        self.parent.say("ready")
        while (job := self.jobs.get()) is not None:
            began = time.monotonic()
            try:
                self._prefill(*job)
            except RunOver as over:
                self.parent.say("progress", text=str(over))
            self.compute += time.monotonic() - began
        self._close()

    def _prefill(self, run: int, start: Start) -> None:
        chunks = -(-start.tokens // self.config.chunk)
        for chunk in range(1, chunks + 1):
            first, end = self._span(run, chunk)
            kv = SlotKV(self, self.memory, self.recorder, TransferId(run, chunk, 1), (first, end), self.faults.attend_delay)
            self.model.prefill_chunk(start.prompt[first:end], first, kv)
            self.parent.say("progress", text=f"prefill {start.request}: chunk {chunk} of {chunks}")

    def claim(self, run: int) -> Claimed:
        """Block until the run's next slot is claimed and loaded.  RunOver if the run fails first."""
        woken, began = threading.Event(), time.monotonic()
        self.owner.post(partial(self._waiting.__setitem__, run, woken))
        woken.wait()
        out = self.owner.ask(partial(self._claimed, run))
        self.gate_wait += time.monotonic() - began
        self.gates += 1
        return out

    def written(self, run: int) -> None:
        """kv_written of the run's claimed step; RunOver if the run failed meanwhile."""
        self.owner.ask(partial(self._written, run))

    def attended(self, step: TransferId) -> None:
        """layer_done: even if the run has failed meanwhile, its slot waits for it."""
        self.owner.post(lambda: self.execute(self.session.layer_done(step)))

    # ---- the owner's thread ---------------------------------------------------------------------------------------

    def _claimed(self, run: int) -> Claimed:
        self._need_alive(run)
        slot = self.plan.slot_of(self.session.step_of(run).layer)
        return Claimed(slot, self.session.slots[slot].epoch, self.blocks.of(run))

    def _written(self, run: int) -> None:
        self._need_alive(run)
        self.execute(self.session.write(run))
        self._ahead = run

    def _need_alive(self, run: int) -> None:
        if not self.session.can_write(run):
            raise RunOver(f"run {run} is {self.session.runs[run].phase}: {'; '.join(self.session.story[-2:])}")

    def _span(self, run: int, chunk: int) -> tuple[int, int]:
        """Tokens [first, end) of a chunk of a run."""
        return (chunk - 1) * self.config.chunk, min(chunk * self.config.chunk, self.session.starts[run].tokens)

    def execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message):
                    self._send(message)
                case RunStarted(run, start):
                    self.blocks.ask(run, start.tokens)
                case BeginLoad(step, slot, epoch):
                    self.copies.load(step, Work(slot, epoch, labels(step)), self._loaded)
                case BeginSave(step, slot, epoch):
                    self.copies.save(step, Work(slot, epoch, labels(step)), self._saved)
                case RunEnded(run, verdict, reason):
                    self.parent.say("progress", text=f"prefill run {verdict}{': ' + reason if reason else ''}")
                    self._ended.add(run)
                    if verdict == "failed":
                        spoilt = [key[1] for key, o in self.session.pool.items() if key[0] == run and o.phase == "failed"]
                        self.copies.remove(run, spoilt)

    def _send(self, message: Message) -> None:
        if isinstance(message, Ready):
            blocks = self.blocks.holding(message.transfer.run, message.start, message.stop)
            message = msgspec.structs.replace(message, blocks=blocks)
        for _ in range(self.faults.copies_of(str(message.__struct_config__.tag))):
            self._socket.send_multipart([control.MESSAGE, encode(message)])
        if (transfer := getattr(message, "transfer", None)) is not None:
            self._said.setdefault(transfer, time.monotonic())

    def _loaded(self, step: TransferId, outcome: Outcome) -> None:
        self.execute(self.session.load_end(step, outcome.ok))

    def _saved(self, step: TransferId, outcome: Outcome) -> None:
        if not outcome.ok:
            self.parent.say("progress", text=f"save of {step} failed: {outcome.reason}")
        self.execute(self.session.save_end(step, outcome.ok))
        if self.session.pool[step.run, step.chunk].phase == "readable":
            self.copies.finish(step.run, step.chunk)

    def _look(self) -> None:
        """Claim for whoever waits and may, or will soon; wake it when its slot is loaded, or its run over."""
        if self._ahead and self.session.can_claim(self._ahead):
            self.execute(self.session.claim(self._ahead))
            self._ahead = 0
        for run, woken in list(self._waiting.items()):
            if self.session.can_miss(run):
                self.execute(self.session.miss(run))
            elif self.session.can_claim(run):
                self.execute(self.session.claim(run))
            if self.session.can_write(run) or self.session.runs[run].phase == "failed":
                del self._waiting[run]
                woken.set()
        self._admit()

    def _admit(self) -> None:
        """Take back the blocks of runs that are over and nobody reads any more; begin the runs that get theirs."""
        for run in [run for run in self._ended if not any(self.session.is_held(t) for t in self.session.readies if t.run == run)]:
            self._ended.remove(run)
            self.blocks.give_back(run)
        for run in self.blocks.admitted():
            self.jobs.put((run, self.session.starts[run]))
        for run in self.session.runs:
            if (why := self.blocks.why(run)) and run not in self._told:
                self._told.add(run)
                self.parent.say("progress", text=why)

    def _frames(self, frames: list[bytes]) -> None:
        if len(frames) == 2 and frames[0] == control.WELCOME:
            welcome = control.parse_welcome(frames[1])
            if welcome.refused:
                raise OSError(f"Decode refused this Prefill: {welcome.refused}")
            self.welcomed = welcome.digest == self.memory.layout.digest
        elif len(frames) == 2 and frames[0] == control.MESSAGE:
            message = decode(frames[1])
            if isinstance(message, Start) and not self.blocks.can_ever_hold(message.tokens):
                raise RemoteProtocolError(
                    f"a prompt of {message.tokens} tokens: all {self.blocks.blocks} blocks of {self.blocks.block_size} cannot hold it",
                    machine="blocks", state=self.blocks.free, event=message.request)  # fmt: skip
            self.execute(self.session.receive(message))
        else:
            raise RemoteProtocolError("these frames are no message", machine="control", state=f"{len(frames)} frames",
                                      event=frames[0][:16] if frames else b"")  # fmt: skip

    def _hello(self) -> None:
        hello = control.Hello(VERSION, self.incarnation, self.memory.layout.digest, self.server.address)
        self._socket.send_multipart([control.HELLO, control.frame(hello)])

    def _tick(self) -> None:
        if not self.welcomed:
            self._hello()
        now = time.monotonic()
        for transfer in [t for t in self.session.readies if self.session.is_held(t)]:
            age = now - self._said[transfer]
            if self.config.read_lease and age > self.config.read_lease:
                self.execute(self.session.revoke(transfer))
            elif age > self.config.resend_seconds:
                self.execute(self.session.resend_ready(transfer))

    def _crash(self, error: BaseException) -> None:
        self.parent.fail(f"prefill: {error}")

    def _close(self) -> None:
        """Let every copy end and be told, then write the last line and give everything back."""
        self.copies.pool.close()
        self.owner.stop()
        self.parent.say("stats", stats={
            "bytes_saved": self.copies.bytes_saved, "bytes_loaded": self.copies.bytes_loaded, "gates": self.gates,
            "gate_wait_s": self.gate_wait, "compute_s": self.compute, "slot_bytes": self.memory.layout.size,
            "slots": self.memory.layout.slots, "blocks_free": self.blocks.free,
            "blocks": self.blocks.blocks, "refused": self.owner.refused, "injected": self.faults.injected,
            "slots_free": sum(slot.phase == "free" for slot in self.session.slots.values()),
        })  # fmt: skip
        trace_footer(self.recorder)
        self.recorder.close()
        self.server.close()
        self.memory.close()
        self.context.term()


def main() -> None:
    """Entry of the process: the configuration, with Decode's port, on standard input."""
    run_worker("prefill", lambda parent: PrefillWorker(parent.config(RunConfig), parent).serve())


if __name__ == "__main__":
    main()
