"""The Decode process: a model that decodes, all requests together, over the rows that `DecodeEngine` holds.

Rules: one thread decodes; everything else is the engine's, or the admission's; the parent says when to stop.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tidegate.engine.admission import Active, Admission
from tidegate.engine.config import RunConfig
from tidegate.engine.decode_engine import DecodeEngine, RowKind
from tidegate.engine.decode_kv import AttemptBatch
from tidegate.engine.faults import Injector
from tidegate.engine.model import greedy
from tidegate.engine.recorder import NULL, NullRecorder, Recorder
from tidegate.engine.tracing import trace_file
from tidegate.engine.worker_io import Host, run_worker

__all__ = ["DecodeWorker", "main"]


class DecodeWorker:
    """One Decode rank with a model on the CPU."""

    def __init__(self, config: RunConfig, parent: Host) -> None:
        self.config, self.parent = config, parent
        self.model = config.load_model()
        self.faults = Injector(config.decode_faults)
        self.recorder = self._recorder()
        model = self.model.config
        kinds = [RowKind("main", model.dtype, model.main_width), RowKind("index", model.dtype, model.index_width)]
        self.engine = DecodeEngine(
            kinds, layers=model.cache_layers, blocks=config.decode_blocks, block_size=config.block_size, rows=config.concurrency,
            hot=config.hot_buffer, port=config.port, pull_threads=config.pull_threads, resend_seconds=config.resend_seconds,
            poison=config.poison, recorder=self.recorder, faults=self.faults, say=lambda text: parent.say("progress", text=text),
            on_crash=lambda error: parent.fail(f"decode: {error}"),
        )  # fmt: skip
        self.admission = Admission(self)
        self.engine.attach(self.admission)

    def _recorder(self) -> Recorder | NullRecorder:
        name = trace_file("decode", 0)
        return Recorder(Path(self.config.trace) / name, Path(name).stem) if self.config.trace else NULL

    def serve(self) -> None:
        """Decode whatever is complete, all together, one token a step, until the parent says stop."""
        self.parent.watch(self.engine.stop, self.config.scratch_folder, server=self.admission.http.server)
        self.engine.open()
        self.admission.http.server.start()
        self.parent.say("ready", port=self.engine.port, http_port=self.admission.http.server.port)
        running: list[Active] = []
        while (more := self.engine.completed(wait=not running)) is not None:
            found = self.engine.owner.ask(partial(self._found, more)) if more else []
            running = self._step(running + found)
        self._close()

    def _found(self, attempts: list[int]) -> list[Active]:
        return [self.admission.active[attempt] for attempt in attempts]

    def _step(self, running: list[Active]) -> list[Active]:
        """One token for each; those that have all theirs are finished, the others returned."""
        logits = self.model.decode_step(AttemptBatch(self.engine, [_next(active) for active in running]))
        going = []
        for active, row, token in zip(running, logits, greedy(logits), strict=True):
            active.tokens.append(token)
            active.logits.append(row.clone())
            if active.done:
                self.engine.owner.post(partial(self.admission.finished, active))
            else:
                going.append(active)
            if len(active.tokens) % 16 == 0:
                self.parent.say("progress", text=f"decode {active.ask.request}: {len(active.tokens)} tokens")
        return going

    def _close(self) -> None:
        """Answer who waits, let every pull end and be told, then write the last line and give everything back."""
        self.engine.owner.ask(self.admission.close)
        self.admission.http.server.stop()
        stats = self.engine.close() | {"injected": self.faults.injected, "http_refused": self.admission.http.server.refused}
        self.parent.say("stats", stats=stats)
        self.recorder.close()


def _next(active: Active) -> tuple[int, int, int]:
    """(token, position, attempt) of the next step; the first runs the last token of the prompt again."""
    prompt, tokens = active.ask.prompt, active.tokens
    return tokens[-1] if tokens else prompt[-1], len(prompt) - 1 + len(tokens), active.attempt


def main() -> None:
    """Entry of the process: configuration on standard input."""
    run_worker("decode", lambda parent: DecodeWorker(parent.config(RunConfig), parent).serve())


if __name__ == "__main__":
    main()
