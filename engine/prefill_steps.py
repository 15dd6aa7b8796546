"""What every rank of a Prefill does with a model, the leader and its hands alike: its buffers, and the chunks of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidegate.engine.faults import Injector
from tidegate.engine.model import Model
from tidegate.engine.prefill_parts import Layers, Run, Step
from tidegate.engine.slot_kv import SlotKV

__all__ = ["Steps", "compute_run"]


class Steps(Layers, Protocol):
    """The engine of a rank, as far as computing a run needs it."""

    def start(self, run: Run, chunk: int) -> Step: ...

    def copy_step(self) -> None: ...


def compute_run(engine: Steps, model: Model, run: Run, faults: Injector, on_chunk: Callable[[int], None]) -> None:
    """All chunks of `run`; on_chunk: told each that is computed.  RunOver."""
    prompt = run.start.prompt
    for chunk in range(1, run.chunks + 1):
        step = engine.start(run, chunk)
        if step.begin == step.end:
            engine.copy_step()
        else:
            kv = SlotKV(engine, step, faults.attend_delay)
            after = prompt[step.end] if step.end < len(prompt) else 0
            model.prefill_chunk(prompt[step.begin : step.end], step.begin, kv, next_token=after)
        on_chunk(chunk)
