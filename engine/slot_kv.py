"""What the model asks of storage while it computes one chunk, answered by gates.

Rules: rows are written between `wait_for_layer` and `kv_written` and at no other time; the traced tag of a write or an attention
is of exactly the rows of its step, as they lie in the slot when it ends; without a trace no tag is computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from tidegate.engine.prefill_copies import AREAS, rows_of
from tidegate.engine.recorder import Recording
from tidegate.engine.slots import SharedMemory
from tidegate.engine.tracing import trace_begin, trace_end
from tidegate.protocol.messages import TransferId

__all__ = ["Gates", "SlotKV"]


class Gates(Protocol):
    """The computing thread's side of the session."""

    def claim(self, run: int) -> tuple[int, int]:
        """Block until the run's next step has its slot, loaded; (slot, epoch)."""

    def written(self, run: int) -> None:
        """kv_written of the step that was claimed."""

    def attended(self, step: TransferId) -> None:
        """layer_done of `step`."""


class SlotKV:
    """`PrefillKV` of one chunk.  step: its first; attend_delay: seconds by which a test slows an attention down."""

    def __init__(
        self,
        gates: Gates,
        memory: SharedMemory,
        recorder: Recording,
        step: TransferId,
        span: tuple[int, int],
        attend_delay: Callable[[int, int], float],
    ) -> None:
        self._gates, self._memory, self._recorder = gates, memory, recorder
        self._first_step, self._span, self._delay = step, span, attend_delay
        self._slot = self._epoch = 0

    def _step(self, layer: int) -> TransferId:
        return TransferId(self._first_step.run, self._first_step.chunk, layer + 1, self._first_step.member)

    def _rows(self) -> list[Tensor]:
        return rows_of(self._memory, self._slot, *self._span)

    def wait_for_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        self._slot, self._epoch = self._gates.claim(self._first_step.run)
        first, end = self._span
        ranges = [self._memory.layout.area(self._slot, name).row_range(first, end - first) for name in AREAS]
        trace_begin(self._recorder, "write", self._step(layer), self._slot, self._epoch, ranges)
        main, index = (self._memory.view(self._slot, name) for name in AREAS)
        return main, index

    def kv_written(self, layer: int) -> None:
        step = self._step(layer)
        trace_end(self._recorder, "write", step, self._slot, self._epoch, self._rows())
        self._gates.written(step.run)
        trace_begin(self._recorder, "attend", step, self._slot, self._epoch)

    def layer_done(self, layer: int) -> None:
        step = self._step(layer)
        if delay := self._delay(step.layer, step.chunk):
            threading.Event().wait(delay)
        trace_end(self._recorder, "attend", step, self._slot, self._epoch, self._rows())
        self._gates.attended(step)
