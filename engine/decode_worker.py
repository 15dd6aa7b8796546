"""The Decode process: a model that decodes, all requests together, over the rows that `DecodeEngine` holds.

Rules: one thread decodes; everything else is the engine's, or the admission's; the parent says when to stop.  Where the instance has
several ranks this is the leader, rank 0: it starts the others (`decode_rank`), has them make each of its forwards, and ends when one of
them does.
"""

from __future__ import annotations

from functools import partial

import zmq
from msgspec.structs import replace

from tidegate.engine.admission import Active, Admission
from tidegate.engine.config import RunConfig
from tidegate.engine.decode_engine import DecodeEngine
from tidegate.engine.decode_memory import is_main, main_bytes
from tidegate.engine.decode_steps import decode_sizes, forward_word, make_forward
from tidegate.engine.decode_turns import Turns
from tidegate.engine.faults import Injector
from tidegate.engine.hands import Hands
from tidegate.engine.host_memory import shared_file
from tidegate.engine.model import ALONE, GlooRanks, ModelConfig
from tidegate.engine.notes import leave_note
from tidegate.engine.tracing import recorder_of
from tidegate.engine.worker_io import Host, run_worker

__all__ = ["DecodeWorker", "main"]


class DecodeWorker:
    """One Decode instance with a model on the CPU."""

    def __init__(self, config: RunConfig, parent: Host) -> None:
        self.config, self.parent = config, parent
        self.faults = Injector(config.decode_faults)
        self.recorder = recorder_of(config.trace, "decode", 0, config.topology)
        model, self._context = config.model_config(), zmq.Context[zmq.Socket[bytes]]()
        files = self._shared_files(model) if config.d_tp > 1 else {}
        self.hands = Hands(
            self._context, "tidegate.engine.decode_rank", replace(config, trace_life=self.recorder.life),
            scratch=config.scratch_folder, size=config.d_tp,
            more={name: str(file) for name, file in files.items()},
            files=[*files.values()], fail=lambda reason: parent.fail(f"decode: {reason}"),
        )  # fmt: skip
        self.model = config.load_model(GlooRanks(self.hands.meeting, rank=0, size=config.d_tp) if config.d_tp > 1 else ALONE)
        self.hands.wait()
        self.engine = DecodeEngine(
            config.row_kinds(), **decode_sizes(config, model), port=config.port, files=files,
            hands=self.hands if config.d_tp > 1 else None, topology=config.topology, pull_threads=config.pull_threads,
            resend_seconds=config.resend_seconds, recorder=self.recorder, faults=self.faults,
            say=lambda text: parent.say("progress", text=text), on_crash=lambda error: parent.fail(f"decode: {error}"),
            wait_limit=config.wait_limit_seconds, warn=lambda text: parent.say("waits", text=text), read_retries=config.read_retries,
        )  # fmt: skip
        self.forwards = self.drafted = self.accepted = 0
        self.admission = Admission(self)
        self.engine.attach(self.admission)
        self.turns = Turns(self.engine, self.admission, after=config.preempt_after)

    def _shared_files(self, model: ModelConfig) -> dict[str, int]:
        sizes = {name: size for name, size in decode_sizes(self.config, model).items() if name in ("layers", "blocks", "block_size")}
        return {kind.name: shared_file(main_bytes(kind, **sizes)) for kind in self.config.row_kinds() if is_main(kind.name)}

    def serve(self) -> None:
        """Decode whatever is complete, all together, a token or more of each in a forward, until the parent says stop."""
        self.parent.watch(self.engine.stop, self.config.scratch_folder, server=self.admission.http.server)
        self.engine.open()
        self.admission.http.server.start()
        leave_note(self.config.scratch_folder, "decode", self.admission.http.server.url)
        self.parent.say("ready", port=self.engine.port, http_port=self.admission.http.server.port)
        running: list[Active] = []
        while (more := self.engine.completed(wait=not running)) is not None:
            found = self.engine.owner.ask(partial(self._found, more)) if more else []
            going = self.turns.going(running + found)
            running = self._step(going) if going else []
        self._close()

    def _found(self, attempts: list[int]) -> list[Active]:
        return [self.admission.active[attempt] for attempt in attempts]

    def _step(self, running: list[Active]) -> list[Active]:
        """A forward of all; those that have all their tokens are finished, the others returned."""
        requests = [active.decoding for active in running]
        self.engine.forward(forward_word(requests))
        self.forwards += len(requests)
        self.drafted += sum(len(one.drafts) for one in requests)
        going = []
        for active, (tokens, logits) in zip(
            running, make_forward(self.model, self.engine, requests, drafts=self.config.drafts), strict=True
        ):
            self.accepted += len(tokens) - 1
            before = len(active.tokens)
            active.tokens += tokens
            active.logits += [row.clone() for row in logits]
            if active.done:
                self.engine.owner.post(partial(self.admission.finished, active))
            else:
                going.append(active)
            if len(active.tokens) // 16 > before // 16:
                self.parent.say("progress", text=f"decode {active.ask.request}: {len(active.tokens)} tokens")
        return going

    def _close(self) -> None:
        """Answer who waits, let every pull end and be told, then write the last line and give everything back."""
        self.engine.owner.ask(self.admission.close)
        self.admission.http.server.stop()
        self.hands.stop(self.engine.owner)
        stats = self.engine.close() | {
            "injected": self.faults.injected, "http_refused": self.admission.http.server.refused, "forwards": self.forwards,
            "drafted": self.drafted, "accepted": self.accepted,
            "preempted": self.turns.preempted, "dropped": self.turns.dropped,
        }  # fmt: skip
        self.parent.say("stats", stats=stats)
        self.recorder.close()
        self._context.term()


def main() -> None:
    """Entry of the process: configuration on standard input."""
    run_worker("decode", lambda parent: DecodeWorker(parent.config(RunConfig), parent).serve())


if __name__ == "__main__":
    main()
