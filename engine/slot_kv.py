"""What the model asks of storage while it computes one chunk, answered by gates and paged slots.

Rules: rows are written into the slot between `wait_for_layer` and `kv_written` and at no other time; what attention gets is read out
of the slot after `kv_written`, so it needs the gate as an attention kernel that walks the blocks does; the traced tag of a write or
an attention is of exactly the rows of its step, as they lie in the slot when it ends; without a trace no tag is computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from tidegate.engine.recorder import Recording
from tidegate.engine.slots import SharedMemory
from tidegate.engine.tracing import trace_begin, trace_end
from tidegate.protocol.messages import TransferId

__all__ = ["Claimed", "Gates", "SlotKV"]


class Claimed(NamedTuple):
    """Where a step may write: `blocks` are the ids of the run's blocks, in the order of its tokens, in every slot."""

    slot: int
    epoch: int
    blocks: tuple[int, ...]


class Gates(Protocol):
    """The computing thread's side of the session."""

    def claim(self, run: int) -> Claimed:
        """Block until the run's next step has its slot, loaded."""

    def written(self, run: int) -> None:
        """kv_written of the step that was claimed."""

    def attended(self, step: TransferId) -> None:
        """layer_done of `step`."""


class SlotKV:
    """`PrefillKV` of one chunk.  step: its first; attend_delay: seconds by which a test has an attention begin late."""

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
        self._at = Claimed(0, 0, ())
        self._flat: dict[str, Tensor] = {}  # tokens 0..end side by side, as the model wants them; of every layer in turn

    def _step(self, layer: int) -> TransferId:
        return TransferId(self._first_step.run, self._first_step.chunk, layer + 1, self._first_step.member)

    def _blocks(self, first: int, end: int) -> tuple[int, ...]:
        size = self._memory.layout.block_size
        return self._at.blocks[first // size : -(-end // size)]

    def _rows(self) -> list[Tensor]:
        """The rows of this step in the slot."""
        return self._memory.token_views(self._at.slot, self._blocks(*self._span), *self._span)

    def _copy(self, first: int, end: int, *, into_slot: bool) -> None:
        """Tokens first..end between the slot's blocks and the flat rows."""
        layout, slot, size = self._memory.layout, self._at.slot, self._memory.layout.block_size
        for area in layout.areas_of(slot):
            view, flat = self._memory.view(slot, area.name), self._flat[area.name]
            for number, (block, at, count) in enumerate(layout.token_pieces(self._blocks(first, end), first, end), first // size):
                page, rows = view[block, at : at + count], flat[number * size + at : number * size + at + count]
                page.copy_(rows) if into_slot else rows.copy_(page)

    def wait_for_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        self._at = self._gates.claim(self._first_step.run)
        first, end = self._span
        slot, layout = self._at.slot, self._memory.layout
        ranges = self._memory.token_ranges(slot, self._blocks(first, end), first, end)
        trace_begin(self._recorder, "write", self._step(layer), slot, self._at.epoch, ranges)
        for area in layout.areas_of(slot):
            if area.name not in self._flat:
                self._flat[area.name] = self._memory.view(slot, area.name).new_empty(end, area.width)
        return self._flat["main"], self._flat["index"]

    def kv_written(self, layer: int) -> None:
        step, (first, end) = self._step(layer), self._span
        self._copy(first, end, into_slot=True)
        trace_end(self._recorder, "write", step, self._at.slot, self._at.epoch, self._rows())
        self._gates.written(step.run)
        trace_begin(self._recorder, "attend", step, self._at.slot, self._at.epoch)
        if delay := self._delay(step.layer, step.chunk):
            threading.Event().wait(delay)
        self._copy(0, end, into_slot=False)

    def layer_done(self, layer: int) -> None:
        step = self._step(layer)
        trace_end(self._recorder, "attend", step, self._at.slot, self._at.epoch, self._rows())
        self._gates.attended(step)
