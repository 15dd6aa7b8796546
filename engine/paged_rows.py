"""Decode's rows of one kind (main KV, indexer keys, their scales), paged, for all requests together.

Rules: a token's row is in block `blocks[token // block_size]` of its request, in every layer and kind alike; every (layer, block) has
one address, in bytes, in 64 bits, decided here; whoever asks for an address outside the pool, or for tokens that the blocks do not
hold, is refused.  Who owns which block is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from tidegate.engine.slot_layout import DTYPES, spread
from tidegate.kernels import append_rows
from tidegate.kernels.copy import Offsets

__all__ = ["PagedRows", "RowKind"]


class RowKind(msgspec.Struct, frozen=True):
    """What a token's row of one kind is: `width` elements of `dtype`, a name of `DTYPES`.

    layers: those (from 0) whose tokens have such a row; None: all.  A layer without an indexer has no indexer rows.
    """

    name: str
    dtype: str
    width: int
    layers: tuple[int, ...] | None = None

    @property
    def row_bytes(self) -> int:
        return self.width * DTYPES[self.dtype].itemsize


class PagedRows:
    """`memory` is [layers, blocks, block_size, width], contiguous: the layer is outermost, so that what a pull reads together lies
    together; `layers` are those that have such rows, in their order.
    """

    def __init__(self, kind: RowKind, memory: Tensor) -> None:
        if memory.dim() != 4 or memory.shape[3] != kind.width or memory.dtype != DTYPES[kind.dtype] or not memory.is_contiguous():
            raise ValueError(
                f"{kind.name}: memory of shape {tuple(memory.shape)} {memory.dtype}: "
                f"[layers, blocks, block_size, {kind.width}] of {kind.dtype}, contiguous, is due"
            )
        self.kind, self.memory = kind, memory
        self.layers, self.blocks, self.block_size, _ = memory.shape
        own = range(self.layers) if kind.layers is None else kind.layers
        if len(own) != self.layers or sorted(set(own)) != [*own] or own[0] < 0:
            raise ValueError(f"{kind.name}: memory of {self.layers} layers for {own}: one for each, in ascending order")
        self._at = {layer: at for at, layer in enumerate(own)}
        self.layer_bytes = self.blocks * self.block_size * kind.row_bytes
        """From a block's rows in one layer to its rows in the next."""

    def __contains__(self, layer: int) -> bool:
        """Has a token of `layer` (from 0) such a row?"""
        return layer in self._at

    def at(self, layer: int) -> int:
        """Where in `memory` the rows of `layer` (from 0) are; ValueError for one that has none."""
        if layer not in self._at:
            raise ValueError(f"{self.kind.name}: layer {layer + 1} of a Decode of {self.layers} layers that have such rows")
        return self._at[layer]

    def ranges(self, layer: int, blocks: Sequence[int], start: int, stop: int) -> list[tuple[int, int]]:
        """(offset in the whole memory, length), in bytes, of tokens [start, stop) of `layer` (from 0), one for each block.

        blocks: all blocks of the request.  ValueError for a range that they do not hold, and for a block that the pool has not.
        """
        first = self.at(layer) * self.layer_bytes
        at, count = self.rows(blocks, start, stop)
        row = self.kind.row_bytes
        return list(zip((at * row + first).tolist(), (count * row).tolist(), strict=True))

    def rows(self, blocks: Sequence[int], start: int, stop: int) -> tuple[Offsets, Offsets]:
        """(first row in a layer, rows) of tokens [start, stop), int64 [n] each, one entry per block; as `ranges`, and for every layer."""
        size = self.block_size
        if not 0 <= start < stop <= len(blocks) * size:
            raise ValueError(
                f"{self.kind.name}: tokens {start}..{stop} for a destination of {len(blocks)} blocks of {size} tokens at Decode"
            )
        ids = np.asarray(blocks, np.int64)
        if (strange := ids[(ids < 0) | (ids >= self.blocks)]).size:
            raise ValueError(f"{self.kind.name}: block {strange.min()} is outside Decode's blocks 0..{self.blocks - 1}")
        return spread(ids[start // size : -(-stop // size)], start, stop, size)

    def spans(self, blocks: Sequence[int]) -> Offsets:
        """[n, 2]: first byte, and the byte after the last, of `blocks` in every layer; in order, neighbours as one."""
        block = np.unique(np.asarray(blocks, np.int64))
        at = (np.arange(self.layers, dtype=np.int64)[:, None] * self.blocks + block).reshape(-1)
        cuts = np.flatnonzero(np.diff(at) != 1) + 1
        first, last = at[np.concatenate(([0], cuts))], at[np.concatenate((cuts - 1, [len(at) - 1]))]
        return np.stack([first, last + 1], 1) * (self.block_size * self.kind.row_bytes)

    def write(self, layer: int, places: Tensor, rows: Tensor) -> None:
        """Row i of `rows` [n, width] to row `places[i]` (int64 [n], block * block_size + row in it) of `layer`."""
        append_rows([self.memory[self.at(layer)]], places, [rows])

    def tokens(self, layer: int, blocks: Sequence[int], count: int) -> Tensor:
        """The rows of the first `count` tokens [count, width]: a view where their blocks lie one after the other, or else a copy."""
        used = list(blocks[: -(-count // self.block_size)])
        if not used or used == list(range(used[0], used[0] + len(used))):
            first = used[0] if used else 0
            paged = self.memory[self.at(layer), first : first + len(used)]
        else:
            paged = self.memory[self.at(layer)].index_select(0, torch.tensor(used, device=self.memory.device))
        return paged.reshape(-1, self.kind.width)[:count]

    def poison(self, blocks: Sequence[int] | None = None) -> None:
        """Fill `blocks`, or all, with NaN (integers with -1), so that a row nobody wrote shows."""
        value = float("nan") if self.memory.is_floating_point() else -1
        if blocks is None:
            self.memory.fill_(value)
        else:
            self.memory[:, list(blocks)] = value
