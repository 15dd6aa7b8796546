"""Per layer and attempt, the main rows that its last steps read: hot buffers over the paged pool, and which row is where in them.

Rules: a row is in its pool before anyone reads it; a hot entry equals its pool row, so one that is written again, and all after it,
leave the hot buffer before the next look-up; only missing rows are copied; hot buffers are allocated once for all rows that can decode
at a time, and what a row holds belongs to one attempt (by its nonce): the next one there begins empty.  The order of eviction, and
what repeats and padding mean, are the kernel's (`tidegate.kernels.Residency`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tidegate.engine.paged_rows import PagedRows
from tidegate.kernels import Residency, RowPath, Step

__all__ = ["Counts", "HotBuffers", "Reader"]


class Counts(msgspec.Struct):
    """What hot buffers did, in rows, and the bytes that moved for it."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes_loaded: int = 0  # pool to hot buffer
    bytes_appended: int = 0  # new rows to the pool


class Reader:
    """An attempt that decodes, as its rows are found.  row: of the hot buffers; blocks: of the pool, in the order of its tokens;
    length: tokens whose rows are there, in every layer.

    lengths, keep: per layer, the tokens whose rows are in the pool, and the first of them written since the layer's last look-up.
    """

    def __init__(self, attempt: int, row: int, blocks: Sequence[int], length: int, *, layers: int, block_size: int) -> None:
        self.attempt, self.row, self.blocks, self.capacity = attempt, row, tuple(blocks), len(blocks) * block_size
        if not 0 <= length <= self.capacity:
            raise ValueError(f"attempt {attempt} has {length} tokens, its {len(blocks)} blocks of {block_size} hold {self.capacity}")
        self.lengths, self.keep = [length] * layers, [self.capacity] * layers
        self.table, self._size = torch.tensor(self.blocks, dtype=torch.int64), block_size

    def place(self, layer: int, position: int, length: int | None = None) -> int:
        """The row number in the pool of the token at `position`, at most one past the last; ValueError elsewhere.

        length: tokens that are there, or will be before it is written.
        """
        length = self.lengths[layer] if length is None else length
        if not 0 <= position <= length or position >= self.capacity:
            raise ValueError(
                f"attempt {self.attempt} layer {layer} position {position}: rows 0..{length} are there, and its blocks hold {self.capacity}"
            )
        return self.blocks[position // self._size] * self._size + position % self._size

    def wrote(self, layer: int, position: int) -> None:
        """The row of `position` is written: it is the last one now, and hot copies of it and of all that were after it are stale."""
        self.keep[layer] = min(self.keep[layer], position)
        self.lengths[layer] = position + 1

    def move(self, row: int) -> None:
        """It goes on in `row`, where nothing is hot: also not what a table still remembers of its own earlier stay there."""
        self.row, self.keep = row, [0] * len(self.keep)

    def rollback(self, length: int) -> None:
        """Only the first `length` tokens have rows now, in every layer that has more; hot copies of the others are stale."""
        if length < 0:
            raise ValueError(f"attempt {self.attempt} is rolled back to {length} tokens: 0 or more stay")
        self.keep = [min(keep, length) for keep in self.keep]
        self.lengths = [min(before, length) for before in self.lengths]


class HotBuffers:
    """`hot` slots for each of `rows` rows and each layer of `pool`, the parts of main KV.

    memory: for each part [layers, rows, hot, width].  poison: slots that nobody wrote are NaN (-1), or else zero.
    One thread at a time.
    """

    def __init__(self, pool: Sequence[PagedRows], *, rows: int, hot: int, poison: bool = False) -> None:
        if min(rows, hot) < 1:
            raise ValueError(f"hot buffers of {rows} rows, {hot} slots: each must be at least 1")
        layers, self._block_size = pool[0].layers, pool[0].block_size
        self.memory = [torch.zeros(layers, rows, hot, part.kind.width, dtype=part.memory.dtype) for part in pool]
        self._row_bytes = sum(part.kind.row_bytes for part in pool)
        self._paths = [RowPath([part[n] for part in self.memory], [part.memory[n] for part in pool]) for n in range(layers)]
        self.tables = [Residency(rows, hot) for _ in range(layers)]
        self.counts = Counts()
        for row in range(rows if poison else 0):
            self.poison(row)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.memory)

    def poison(self, row: int) -> None:
        for part in self.memory:
            part[:, row] = float("nan") if part.is_floating_point() else -1

    def look_up(self, layer: int, readers: Sequence[Reader], positions: Tensor) -> Step:
        """Which of `positions` (int64 [n, k], a line for each reader, each reader once) are resident, and whose slots the others take.

        `fetch` must follow before anybody reads the slots.  ValueError, with nothing changed, where a reader's distinct positions do not
        fit a hot buffer.
        """
        step = self.tables[layer].step(
            positions, [reader.lengths[layer] for reader in readers], [reader.attempt for reader in readers],
            keep=[reader.keep[layer] for reader in readers], rows=[reader.row for reader in readers],
        )  # fmt: skip
        for reader in readers:
            reader.keep[layer] = reader.capacity
        return step

    def fetch(self, layer: int, readers: Sequence[Reader], step: Step) -> None:
        """Copy what `step` missed out of the pool."""
        self._paths[layer].copy_misses(step, _table(readers), self._block_size)
        hits, misses, evictions = step.counts.sum(1).tolist()
        counts = self.counts
        counts.hits, counts.misses, counts.evictions = counts.hits + hits, counts.misses + misses, counts.evictions + evictions
        counts.bytes_loaded += misses * self._row_bytes


def _table(readers: Sequence[Reader]) -> Tensor:
    """Block ids [n, most blocks], -1 beyond a reader's own: the kernel refuses to read there."""
    if len(readers) == 1:
        return readers[0].table[None]
    return pad_sequence([reader.table for reader in readers], batch_first=True, padding_value=-1)
