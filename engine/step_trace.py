"""What a Prefill rank records of the steps that it computes: rows written, and attended to.

Rules: the computation of a step is begun once, at the first byte that a fill or the model may write, and ended once, well or badly, before
anybody is told, also when several runs are computed together; with the null recorder nothing is worked out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from tidegate.engine.prefill_parts import Claimed
from tidegate.engine.recorder import Recording
from tidegate.engine.slots import SharedMemory
from tidegate.engine.tracing import trace_begin, trace_end
from tidegate.protocol.messages import TransferId

__all__ = ["Rows", "StepTrace"]


class Rows(NamedTuple):
    """The rows of a step: tokens [first, end) of a run whose blocks are `blocks`, in the slot and epoch `at`."""

    step: TransferId
    at: Claimed
    blocks: tuple[int, ...]
    first: int
    end: int


class StepTrace:
    """memory: of this rank.  Any thread; the calls about one step come one after the other."""

    def __init__(self, recorder: Recording, memory: SharedMemory) -> None:
        self._recorder, self._memory = recorder, memory
        self._open: dict[TransferId, Rows] = {}  # computations that have begun and not ended

    def write_begins(self, rows: Rows) -> None:
        """Nothing, if it has begun already: a fill came first."""
        if not self._recorder.enabled or rows.step in self._open:
            return
        self._open[rows.step] = rows
        layer = rows.step.layer - 1
        ranges = self._memory.token_ranges(rows.at.slot, *self._where(rows), layer=layer)
        areas = self._memory.layout.areas_of(rows.at.slot, layer)
        regions = [area.name for area in areas for _ in range(len(ranges) // len(areas))]
        trace_begin(self._recorder, "write", rows.step, *rows.at, ranges, regions)

    def write_ends(self, step: TransferId, *, ok: bool = True) -> None:
        """ok: every row is there."""
        if (rows := self._open.pop(step, None)) is not None:
            trace_end(self._recorder, "write", step, *rows.at, self._views(rows), ok=ok)

    def attend_begins(self, rows: Rows) -> None:
        trace_begin(self._recorder, "attend", rows.step, *rows.at)

    def attend_ends(self, rows: Rows) -> None:
        if self._recorder.enabled:
            trace_end(self._recorder, "attend", rows.step, *rows.at, self._views(rows))

    def _where(self, rows: Rows) -> tuple[Sequence[int], int, int]:
        size = self._memory.layout.block_size
        return rows.blocks[rows.first // size : -(-rows.end // size)], rows.first, rows.end

    def _views(self, rows: Rows) -> list[Tensor]:
        return self._memory.token_views(rows.at.slot, *self._where(rows), layer=rows.step.layer - 1)
