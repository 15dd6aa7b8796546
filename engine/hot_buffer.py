"""What a decoding request reads: its place in the row pool, and per layer a hot buffer of the main rows it used last.

Rules: a row is in its place before anyone reads it; a hot entry equals its pool row, so one that is written again, and all
after it, leave the hot buffer before the next look-up; only missing rows are copied; hot buffers are allocated once for all
rows that can decode at a time, and what a row holds belongs to one attempt: the next one there begins empty.  The order of
eviction, and what repeats and padding mean, are the kernel's (`tidegate.kernels.Residency`).
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from tidegate.engine.row_pool import Place
from tidegate.kernels import Residency, RowPath

__all__ = ["Counts", "HotBuffer", "HotRows", "SparseKV"]

WHOLE = torch.zeros(1, 1, dtype=torch.int32)  # the block table of a place: its tokens are one block


class Counts(msgspec.Struct):
    """What hot buffers did, in rows, and the bytes that moved for it."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes_loaded: int = 0  # pool to hot buffer
    bytes_appended: int = 0  # new rows to the pool


class HotRows:
    """The hot buffers of `rows` rows that decode: `hot` slots of `width` elements per row and layer, and their tables.

    memory: [layers, rows, hot, width]; NaN (or -1) until it is written, so that a slot nobody wrote shows.  One thread at a time.
    """

    def __init__(self, rows: int, layers: int, hot: int, width: int, dtype: torch.dtype) -> None:
        if min(rows, layers, hot, width) < 1:
            raise ValueError(f"hot buffers of {rows} rows, {layers} layers, {hot} slots, width {width}: each must be at least 1")
        self.memory = torch.full((layers, rows, hot, width), float("nan") if dtype.is_floating_point else -1, dtype=dtype)
        self.tables = [Residency(rows, hot) for _ in range(layers)]


class HotBuffer:
    """The hot rows of one attempt (a nonce from 1 on) over its place in a pool, in row `row` of `hot`."""

    def __init__(self, place: Place, hot: HotRows, row: int, attempt: int, counts: Counts | None = None) -> None:
        layers, capacity, width = place.rows.shape
        if (layers, width) != (hot.memory.shape[0], hot.memory.shape[3]):
            raise ValueError(f"a place of {layers} layers, width {width}, over hot buffers of shape {tuple(hot.memory.shape)}")
        self.place, self.counts = place, counts or Counts()
        self._hot, self._row, self._attempt = hot, [row], [attempt]
        self._paths = [RowPath([memory], [rows]) for memory, rows in zip(hot.memory, place.rows, strict=True)]
        self._length = [0] * layers
        self._keep = [capacity] * layers  # entries from here on were written since the layer's last step
        self._out = torch.zeros(hot.memory.shape[2], width, dtype=place.rows.dtype)

    def rows(self, layer: int) -> Tensor:
        """The slots [hot, width] of a layer."""
        return self._hot.memory[layer, self._row[0]]

    def extend(self, length: int) -> None:
        """The pool holds rows 0..length of every layer (after a pull); never shrinks."""
        if not max(self._length) <= length <= self.place.rows.shape[1]:
            raise ValueError(f"length {length}: it is {max(self._length)} now and the place holds {self.place.rows.shape[1]}")
        self._length = [length] * len(self._length)

    def append(self, layer: int, position: int, row: Tensor) -> None:
        """Write the row of `position` (at most one past the last) to the pool; hot copies of it and all after are dropped."""
        if not 0 <= position <= self._length[layer] or position >= self.place.rows.shape[1]:
            raise ValueError(
                f"layer {layer} position {position}: rows 0..{self._length[layer]} are there "
                f"and the place holds {self.place.rows.shape[1]}"
            )
        self.place.append(layer, position, row)
        self._keep[layer] = min(self._keep[layer], position)
        self._length[layer] = max(self._length[layer], position + 1)
        self.counts.bytes_appended += row.numel() * row.element_size()

    def resolve(self, layer: int, positions: Tensor) -> Tensor:
        """Make `positions` (int64 [k]) resident; their slots (int32 [k], -1 for padding).

        ValueError, with nothing changed, where k distinct positions do not fit the hot buffer.
        """
        pool = self.place.rows[layer]
        step = self._hot.tables[layer].step(
            positions[None], [self._length[layer]], self._attempt, keep=[self._keep[layer]], rows=self._row
        )
        self._paths[layer].copy_misses(step, WHOLE, pool.shape[0])
        self._keep[layer] = pool.shape[0]
        hits, misses, evictions = step.counts[:, 0].tolist()
        self.counts.hits += hits
        self.counts.misses += misses
        self.counts.evictions += evictions
        self.counts.bytes_loaded += misses * pool.shape[1] * pool.element_size()
        return step.slots[0]

    def fetch(self, layer: int, positions: Tensor) -> Tensor:
        """Rows of `positions` [k, width] in that order, out of the hot buffer, zero for padding; valid until the next fetch."""
        slots = self.resolve(layer, positions)
        if self._out.shape[0] < len(slots):  # padding and repeats may ask for more rows than there are hot slots
            self._out = self._out.new_zeros(len(slots), self._out.shape[1])
        out = self._out[: len(slots)]
        torch.index_select(self.rows(layer), 0, slots.clamp_min(0), out=out)
        out[slots < 0] = 0
        return out


class SparseKV:
    """`DecodeKV` of one request: main rows in a pool behind a hot buffer, indexer rows resident.

    length: tokens whose rows a prefill has put into both places; hot, attempt, counts as for `HotBuffer`, whose row is that of
    the main place.
    """

    def __init__(
        self, main: Place, index: Place, length: int, hot: HotRows, attempt: int, counts: Counts | None = None
    ) -> None:
        if main.rows.shape[:2] != index.rows.shape[:2]:
            raise ValueError(f"main place of {tuple(main.rows.shape)} beside an indexer place of {tuple(index.rows.shape)}")
        self.hot, self._index = HotBuffer(main, hot, main.number, attempt, counts), index
        self.hot.extend(length)
        self._length = [length] * main.rows.shape[0]

    def append(self, layer: int, position: int, main_row: Tensor, index_row: Tensor) -> None:
        self.hot.append(layer, position, main_row)
        self._index.append(layer, position, index_row)
        self._length[layer] = max(self._length[layer], position + 1)

    def index_keys(self, layer: int) -> Tensor:
        return self._index.rows[layer, : self._length[layer]]

    def fetch(self, layer: int, positions: Tensor) -> Tensor:
        return self.hot.fetch(layer, positions)
