"""The Prefill process: a model that computes prompts chunk by chunk, in the slots that `PrefillEngine` gives it.

Rules: one thread computes, step after step, each of as many runs as are ready and fit; everything else is the engine's; the parent says
when to stop.  Where the instance has several ranks this is the leader, rank 0: it starts the others (`prefill_rank`), and ends when one
of them does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import zmq
from msgspec.structs import replace

from tidegate.engine.config import RunConfig
from tidegate.engine.control import public_name
from tidegate.engine.decode_links import DecodeLinks
from tidegate.engine.faults import Injector
from tidegate.engine.hands import Hands
from tidegate.engine.http.metrics import Sample
from tidegate.engine.http.prefill_server import Call, PrefillServer
from tidegate.engine.measuring import prefill_samples
from tidegate.engine.model import ALONE, GlooRanks
from tidegate.engine.notes import leave_note
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_batches import Batches
from tidegate.engine.prefill_copies import PoolCopies, extent_layout
from tidegate.engine.prefill_engine import PrefillEngine, layer_memory
from tidegate.engine.prefill_hands import PrefillHands
from tidegate.engine.prefill_steps import compute_step
from tidegate.engine.tracing import recorder_of
from tidegate.engine.waiting import Status
from tidegate.engine.worker_io import Host, run_worker

__all__ = ["PrefillWorker", "main"]


class PrefillWorker:
    """One Prefill instance with a model on the CPU."""

    def __init__(self, config: RunConfig, parent: Host) -> None:
        self.config, self.parent = config, parent
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.faults = Injector(config.prefill_faults)
        self.recorder = recorder_of(config.trace, "prefill", 0, config.topology)
        self.memory = layer_memory(config.slot_layout())
        own = f"{config.scratch_folder}/pool" if config.scratch_folder else None
        pool = LocalPool(
            extent_layout(self.memory.layout), config.pool_objects, folder=config.pool_folder or own, recorder=self.recorder,
            faults=self.faults.copies(), pin_seconds=config.pin_seconds,
        )  # fmt: skip
        rows = f"{config.model_config()!r} of seed {config.seed} {self._weights()}"
        self.hands = Hands(
            self.context, "tidegate.engine.prefill_rank", replace(config, trace_life=self.recorder.life),
            scratch=config.scratch_folder, size=config.p_tp,
            more={"pool": str(pool.path), "model": rows},
            fail=lambda reason: parent.fail(f"prefill: {reason}"),
        )  # fmt: skip
        self.model = config.load_model(GlooRanks(self.hands.meeting, rank=0, size=config.p_tp) if config.p_tp > 1 else ALONE)
        plan = config.layer_plan()
        self.engine = engine = PrefillEngine(
            self.memory, plan=plan.slots, chunk_tokens=config.chunk, prefetch=min(plan.prefetch_layers, 1),
            lanes=config.prefill_lanes, read_lease=config.read_lease, resend_seconds=config.resend_seconds, poison=config.poison,
            recorder=self.recorder, faults=self.faults, others=self.hands.wait(), say=lambda text: parent.say("progress", text=text),
            on_crash=lambda error: parent.fail(f"prefill: {error}"),
            wait_limit=config.wait_limit_seconds, warn=lambda text: parent.say("waits", text=text),
        )  # fmt: skip
        self.copies = PoolCopies(
            pool, self.memory, span=engine.core.span, post=engine.owner.post, model=rows, rank=0, ranks=config.p_tp,
            lookahead=config.model_config().lookahead, room=config.pool_objects // config.prefills,
        )  # fmt: skip
        self.links = DecodeLinks(
            engine.owner, self.context, engine.hello, engine.core, max_waiting=config.max_waiting, faults=self.faults,
            on_begin=lambda request: parent.say("taken", request=request),
        )  # fmt: skip
        if config.p_tp > 1:
            lockstep = PrefillHands(self.hands, engine.core, engine.owner, self.copies, poison=config.poison)
            engine.attach(copies=lockstep, links=self.links, hands=lockstep)
        else:
            engine.attach(copies=self.copies, links=self.links)
        self.batches = Batches(
            engine, tokens=config.step_tokens or config.chunk, chunk_tokens=config.chunk, after=config.prefill_preempt_after
        )
        self.http = self._http()
        self.compute, self.steps, self.chunks = 0.0, 0, 0

    def _weights(self) -> str:
        """What tells the files of one checkpoint from those of another."""
        files = sorted(Path(self.config.checkpoint).glob("*.safetensors")) if self.config.checkpoint else []
        return ", ".join(f"{file.resolve()} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)

    def _http(self) -> PrefillServer:
        owner = self.engine.owner

        def posted(do: Callable[[Call], None]) -> Callable[[Call], None]:
            return lambda call: owner.post(partial(do, call))

        return PrefillServer(
            port=self.config.prefill_port, limits=self.config.limits(1),
            submit=posted(self.links.call), cancel=posted(self.links.cancel),
            probe=lambda tell: owner.post(lambda: tell({"waiting": self.links.waiting, "reason": self.engine.core.watch.reason()})),
            inquire=lambda tell: owner.post(lambda: tell(self._status())),
            measure=lambda tell: owner.post(lambda: tell(self._measured())),
        )  # fmt: skip

    def _measured(self) -> list[Sample]:
        return prefill_samples(
            self.engine.core, self.engine.owner, calls=self.links.waiting, bytes_saved=self.copies.bytes_saved,
            bytes_loaded=self.copies.bytes_loaded,
        )  # fmt: skip

    def _status(self) -> Status:
        watch, mode = self.engine.core.watch, "read_lease" if self.config.read_lease else "seed"
        return Status("prefill", os.getpid(), public_name(self.engine.incarnation), watch.limit, watch.waits(), mode)

    def serve(self) -> None:
        """Compute step after step until the parent says stop."""
        self.parent.watch(self.engine.stop, self.config.scratch_folder, server=self.http.server)
        self.engine.open()
        self.http.server.start()
        leave_note(self.config.scratch_folder, "prefill", self.http.server.url)
        self.parent.say("ready", http_port=self.http.server.port)
        while (parts := self.batches.next_step()) is not None:
            began = time.monotonic()
            over = compute_step(self.engine, self.model, parts, self.faults)
            self.compute += time.monotonic() - began
            self.batches.computed(parts, over)
            self.engine.finished(), self.engine.failed_blocks()  # nobody here asks for them
            self.steps, self.chunks = self.steps + 1, self.chunks + len(parts)
            for run, chunk in parts:
                why = over.get(run.nonce)
                self.parent.say("progress", text=str(why or f"prefill {run.start.request}: chunk {chunk} of {run.chunks}"))
        self._close()

    def _close(self) -> None:
        self.engine.owner.ask(self.links.close)
        self.http.server.stop()
        self.hands.stop(self.engine.owner)
        stats = self.engine.close() | {
            "bytes_saved": self._moved("bytes_saved"), "bytes_loaded": self._moved("bytes_loaded"),
            "bytes_reused": self._moved("bytes_reused"), "tokens_reused": self.copies.tokens_reused, "compute_s": self.compute,
            "steps": self.steps, "chunks": self.chunks,
            "injected": self.faults.injected, "http_refused": self.http.server.refused,
        }  # fmt: skip
        self.parent.say("stats", stats=stats)
        self.recorder.close()
        self.memory.close()
        self.context.term()

    def _moved(self, name: str) -> float:
        """By all ranks."""
        return float(getattr(self.copies, name)) + sum(stats[name] for stats in self.hands.stats.values())


def main() -> None:
    """Entry of the process: the configuration on standard input."""
    run_worker("prefill", lambda parent: PrefillWorker(parent.config(RunConfig), parent).serve())


if __name__ == "__main__":
    main()
