"""What a decoding request reads: its place in the row pool, and per layer a hot buffer of the main rows it used last.

Rules: a row is in its place before anyone reads it, and a
row that is written again leaves the hot buffer; a hot entry equals its pool row; only missing rows are copied; after
a step the order of eviction is: untouched entries, then misses in the order asked, then hits in their old order; a
position asked for twice takes one slot; positions below 0 or at and above the length are padding: no slot, no copy, a
zero row.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tidegate.engine.row_pool import Place

Slots = npt.NDArray[np.int64]
EMPTY = -1


class Counts(msgspec.Struct):
    """What hot buffers did, in rows, and the bytes that moved for it."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes_loaded: int = 0  # pool to hot buffer
    bytes_appended: int = 0  # new rows to the pool


class _Residency:
    """One layer's table: which hot slot holds which position, and the order in which they will be evicted."""

    def __init__(self, hot: int, capacity: int) -> None:
        self.slot_of = np.full(capacity, EMPTY, np.int64)  # position -> slot
        self.position_of = np.full(hot, EMPTY, np.int64)  # slot -> position
        self.order = np.arange(hot, dtype=np.int64)  # slots, next victim first

    def step(self, asked: Slots) -> tuple[Slots, Slots, int]:
        """Make distinct valid positions resident: (missed positions, their slots, how many entries were evicted)."""
        slots = self.slot_of[asked]
        missed = asked[slots == EMPTY]
        touched = np.zeros(len(self.order), bool)
        touched[slots[slots != EMPTY]] = True
        in_order = touched[self.order]
        hits, untouched = self.order[in_order], self.order[~in_order]
        victims, rest = untouched[: len(missed)], untouched[len(missed) :]
        gone = self.position_of[victims]
        gone = gone[gone != EMPTY]
        self.slot_of[gone] = EMPTY
        self.slot_of[missed] = victims
        self.position_of[victims] = missed
        self.order = np.concatenate([rest, victims, hits])
        return missed, victims, len(gone)

    def forget(self, position: int) -> None:
        """Drop one position; its slot becomes the next victim."""
        slot = self.slot_of[position]
        if slot != EMPTY:
            self.slot_of[position] = self.position_of[slot] = EMPTY
            self.order = np.concatenate([[slot], self.order[self.order != slot]])


class HotBuffer:
    """The hot rows of one request over its place in a pool; `hot` rows per layer, at least as many as one step asks
    for.
    """

    def __init__(self, place: Place, hot: int, counts: Counts | None = None) -> None:
        layers, capacity, width = place.rows.shape
        if hot < 1:
            raise ValueError(f"hot is {hot}: a hot buffer has at least one row")
        self.place, self.counts = place, counts or Counts()
        self.rows = torch.zeros(layers, hot, width, dtype=place.rows.dtype)
        self._tables = [_Residency(hot, capacity) for _ in range(layers)]
        self._length = [0] * layers
        self._out = torch.zeros(hot, width, dtype=place.rows.dtype)

    def extend(self, length: int) -> None:
        """The pool holds rows 0..length of every layer (after a pull); never shrinks."""
        if not max(self._length) <= length <= self.place.rows.shape[1]:
            raise ValueError(f"length {length}: it is {max(self._length)} now and the place holds {self.place.rows.shape[1]}")
        self._length = [length] * len(self._length)

    def append(self, layer: int, position: int, row: Tensor) -> None:
        """Write the row of `position` (at most one past the last) to the pool; a hot copy of it is forgotten."""
        if not 0 <= position <= self._length[layer] or position >= self.place.rows.shape[1]:
            raise ValueError(
                f"layer {layer} position {position}: rows 0..{self._length[layer]} are there "
                f"and the place holds {self.place.rows.shape[1]}"
            )
        self.place.rows[layer, position] = row
        self._tables[layer].forget(position)
        self._length[layer] = max(self._length[layer], position + 1)
        self.counts.bytes_appended += row.numel() * row.element_size()

    def resolve(self, layer: int, positions: Tensor) -> Tensor:
        """Make `positions` (int64 [k]) resident; their slots (int64 [k], -1 for padding).

        ValueError, with nothing changed, where k distinct positions do not fit the hot buffer.
        """
        asked: Slots = positions.numpy()
        valid = (asked >= 0) & (asked < self._length[layer])
        wanted = asked[valid]
        _, first = np.unique(wanted, return_index=True)
        distinct = wanted[np.sort(first)]
        table, hot = self._tables[layer], self.rows.shape[1]
        if len(distinct) > hot:
            raise ValueError(
                f"layer {layer}: {len(distinct)} rows asked of a hot buffer of {hot}: it must hold one step's rows"
            )
        missed, slots, evicted = table.step(distinct)
        self._load(layer, missed, slots)
        self.counts.hits += len(distinct) - len(missed)
        self.counts.misses += len(missed)
        self.counts.evictions += evicted
        answer = np.full(len(asked), EMPTY, np.int64)
        answer[valid] = table.slot_of[wanted]
        return torch.from_numpy(answer)

    def fetch(self, layer: int, positions: Tensor) -> Tensor:
        """Rows of `positions` [k, width] in that order, out of the hot buffer; valid until the next fetch."""
        slots = self.resolve(layer, positions)
        if self._out.shape[0] < len(slots):  # padding and repeats may ask for more rows than there are hot slots
            self._out = self._out.new_zeros(len(slots), self._out.shape[1])
        out = self._out[: len(slots)]
        torch.index_select(self.rows[layer], 0, slots.clamp_min(0), out=out)
        out[slots < 0] = 0
        return out

    def _load(self, layer: int, missed: Slots, slots: Slots) -> None:
        if not len(missed):
            return
        rows = self.place.rows[layer].index_select(0, torch.from_numpy(missed))
        self.rows[layer].index_copy_(0, torch.from_numpy(slots), rows)
        self.counts.bytes_loaded += rows.numel() * rows.element_size()


class SparseKV:
    """`DecodeKV` of one request: main rows in a pool behind a hot buffer, indexer rows resident.

    length: tokens whose rows a prefill has put into both places.
    """

    def __init__(self, main: Place, index: Place, length: int, hot: int, counts: Counts | None = None) -> None:
        if main.rows.shape[:2] != index.rows.shape[:2]:
            raise ValueError(f"main place of {tuple(main.rows.shape)} beside an indexer place of {tuple(index.rows.shape)}")
        self.hot, self._index = HotBuffer(main, hot, counts), index
        self.hot.extend(length)
        self._length = [length] * main.rows.shape[0]

    def append(self, layer: int, position: int, main_row: Tensor, index_row: Tensor) -> None:
        self.hot.append(layer, position, main_row)
        self._index.rows[layer, position] = index_row
        self._length[layer] = max(self._length[layer], position + 1)

    def index_keys(self, layer: int) -> Tensor:
        return self._index.rows[layer, : self._length[layer]]

    def fetch(self, layer: int, positions: Tensor) -> Tensor:
        return self.hot.fetch(layer, positions)
