"""What the model asks of storage while it computes one chunk, answered by the Prefill engine and its paged slots.

Rules: the model's rows lie side by side in memory of their own, and are copied into the slot's blocks by `kv_written`; what attention
gets is read out of the slot after that, so it needs the gate as an attention kernel that walks the blocks does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch import Tensor

from tidegate.engine.model import Rows
from tidegate.engine.prefill_parts import Layers, Place, Step

__all__ = ["SlotKV"]


class SlotKV:
    """`PrefillKV` of one step.  attend_delay: (layer from 1, chunk) -> seconds by which a test has an attention begin late."""

    def __init__(self, engine: Layers, step: Step, attend_delay: Callable[[int, int], float]) -> None:
        self._engine, self._step, self._delay = engine, step, attend_delay
        self._place: Place
        self._flat: dict[str, Tensor] = {}  # tokens 0..end, of every layer in turn

    def wait_for_layer(self, layer: int) -> Rows:
        self._place = self._engine.wait_for_layer(layer)
        for name, view in self._place.views.items():
            if name not in self._flat:
                self._flat[name] = view.new_empty(self._step.end, view.shape[-1])
        return {name: self._flat[name] for name in self._place.views}

    def kv_written(self, layer: int) -> None:
        for page, rows in self._pieces(self._step.begin):
            page.copy_(rows)
        self._engine.kv_written(layer)
        if delay := self._delay(layer + 1, self._step.chunk):
            threading.Event().wait(delay)
        for page, rows in self._pieces(0):
            rows.copy_(page)

    def layer_done(self, layer: int) -> None:
        self._engine.layer_done(layer)

    def _pieces(self, first: int) -> list[tuple[Tensor, Tensor]]:
        """(rows in the slot, the same tokens' flat rows) from token `first` to the step's end, block by block."""
        layout, end = self._engine.memory.layout, self._step.end
        size = layout.block_size
        blocks = self._place.blocks[first // size : -(-end // size)]
        pieces = []
        for number, (block, at, count) in enumerate(layout.token_pieces(blocks, first, end), first // size):
            token = number * size + at
            pieces += [(view[block, at : at + count], self._flat[name][token : token + count]) for name, view in self._place.views.items()]
        return pieces
