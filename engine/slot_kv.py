"""What the model asks of storage while it computes a step, answered by the Prefill engine and its paged slots.

Rules: the model's rows lie side by side in memory of their own, for each run, and are copied into the slots' blocks by `kv_written`; what
attention gets is read out of the slots after that, so it needs the gates as an attention kernel that walks the blocks does.  The engine
is called once a layer, for all runs together: with the first of them that waits, with the last that is written and the last that is done.
A run that has left the step is computed to its end all the same, in that memory, and touches no slot: the others' bits do not hang on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from torch import Tensor

from tidegate.engine.model import Rows
from tidegate.engine.prefill_parts import Layers, Place, RunOver, Step

__all__ = ["StepKV"]


class StepKV:
    """Storage of a step.  steps: what `start_all` gave; attend_delay: (layer from 1, chunk) -> seconds by which a test has an attention
    begin late.  computed: of the runs that the model has to compute something of, each a `PrefillKV`.
    """

    def __init__(self, engine: Layers, steps: Sequence[Step | RunOver], attend_delay: Callable[[int, int], float]) -> None:
        self.engine, self._delay = engine, attend_delay
        self._runs = [RunKV(self, step) if isinstance(step, Step) else None for step in steps]
        self.computed = [kv for kv in self._runs if kv is not None and kv.step.begin < kv.step.end]
        self.over: dict[int, RunOver] = {}  # runs that have left
        self._layer = -1

    def copy(self) -> None:
        """Go through the step where there is nothing to compute."""
        for layer in range(len(self.engine.memory.layout.slot_of_layer)):
            self.wait(layer)
            self.engine.kv_written(layer)
            self.engine.layer_done(layer)

    def wait(self, layer: int) -> None:
        """For all runs, once."""
        if layer != self._layer:
            self._layer = layer
            for kv, place in zip(self._runs, self.engine.wait_for_all(layer), strict=True):
                if kv is None:
                    continue  # it had failed before
                kv.place = place if isinstance(place, Place) else None
                if isinstance(place, RunOver):
                    self.over[kv.step.run.nonce] = place

    def written(self, layer: int, kv: RunKV) -> None:
        """With the last run."""
        if kv is not self.computed[-1]:
            return
        here = [kv for kv in self.computed if kv.place is not None]
        for kv in here:
            kv.store()
        self.engine.kv_written(layer)
        if delay := max((self._delay(layer + 1, kv.step.chunk) for kv in here), default=0.0):
            threading.Event().wait(delay)
        for kv in here:
            kv.read_back()

    def done(self, layer: int, kv: RunKV) -> None:
        """With the last run."""
        if kv is self.computed[-1]:
            self.engine.layer_done(layer)


class RunKV:
    """`PrefillKV` of one run of a step.  place: at the present layer; None once the run has left."""

    def __init__(self, all_runs: StepKV, step: Step) -> None:
        self._all, self.step = all_runs, step
        self.place: Place | None = None
        self._flat: dict[str, Tensor] = {}  # tokens 0..end, of every layer in turn

    def wait_for_layer(self, layer: int) -> Rows:
        self._all.wait(layer)
        memory = self._all.engine.memory
        views = memory.views(memory.layout.slot_of_layer[layer], layer)
        for name, view in views.items():
            if name not in self._flat:
                self._flat[name] = view.new_zeros(self.step.end, view.shape[-1])
        return {name: self._flat[name] for name in views}

    def kv_written(self, layer: int) -> None:
        self._all.written(layer, self)

    def layer_done(self, layer: int) -> None:
        self._all.done(layer, self)

    def store(self) -> None:
        """Copy the step's rows into the slot."""
        for page, rows in self._pieces(self.step.begin):
            page.copy_(rows)

    def read_back(self) -> None:
        """Have what attention reads out of the slot."""
        for page, rows in self._pieces(0):
            rows.copy_(page)

    def _pieces(self, first: int) -> list[tuple[Tensor, Tensor]]:
        """(rows in the slot, the same tokens' flat rows) from token `first` to the step's end, block by block."""
        assert self.place is not None
        layout, end = self._all.engine.memory.layout, self.step.end
        size = layout.block_size
        blocks = self.place.blocks[first // size : -(-end // size)]
        pieces = []
        for number, (block, at, count) in enumerate(layout.token_pieces(blocks, first, end), first // size):
            token = number * size + at
            pieces += [(view[block, at : at + count], self._flat[name][token : token + count]) for name, view in self.place.views.items()]
        return pieces
