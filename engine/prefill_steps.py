"""What every rank of a Prefill does with a model, the leader and its hands alike: one step, of one run or of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidegate.engine.faults import Injector
from tidegate.engine.model import Chunk, Model
from tidegate.engine.prefill_parts import Layers, Run, RunOver, Step
from tidegate.engine.slot_kv import RunKV, StepKV

__all__ = ["Steps", "compute_step"]


class Steps(Layers, Protocol):
    """The engine of a rank, as far as computing a step needs it."""

    def start_all(self, parts: Sequence[tuple[Run, int]]) -> list[Step | RunOver]: ...


def compute_step(engine: Steps, model: Model, parts: Sequence[tuple[Run, int]], faults: Injector) -> dict[int, RunOver]:
    """These chunks, each of another run, through every layer.  Run -> why, of those that have failed meanwhile and left the step to the
    others.
    """
    steps = engine.start_all(parts)
    over = {run.nonce: step for (run, _), step in zip(parts, steps, strict=True) if isinstance(step, RunOver)}
    if len(over) == len(parts):
        return over
    kv = StepKV(engine, steps, faults.attend_delay)
    try:
        if kv.computed:
            model.prefill_step([_chunk(one) for one in kv.computed])
        else:
            kv.copy()
    except RunOver as last:
        over |= {run.nonce: last for run, _ in parts if run.nonce not in over}
    return over | kv.over


def _chunk(kv: RunKV) -> Chunk:
    step, prompt = kv.step, kv.step.run.start.prompt
    return Chunk(prompt[step.begin : step.end], step.begin, kv, prompt[step.end] if step.end < len(prompt) else 0)
