"""Where the rows of one pool object lie in its extent.

Rules: all extents of a pool are of one size, and every row of every area of every layer has one place in it, whatever the
object's number of rows (a short block leaves the rest of its extent unused); sizes are bytes, in 64 bits.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

import msgspec
import numpy as np

from tidegate.kernels.copy import Offsets

__all__ = ["ExtentLayout"]

PAGE = 4096


class ExtentLayout(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """An extent holds `rows` tokens of every layer; `layers[i]` are the bytes of one token's row in each area of layer i.

    name: what else the bytes mean (dtypes, share of a rank, ...), so that pools that differ in it never meet.
    """

    rows: int
    layers: tuple[tuple[int, ...], ...]
    name: str = ""

    def checked(self) -> ExtentLayout:
        """Itself; ValueError for sizes below one."""
        if self.rows < 1 or not self.layers or not all(self.layers) or min(min(layer) for layer in self.layers) < 1:
            raise ValueError(f"{self.rows} rows of layers {self.layers}: at least a row, a layer, and an area of a byte in each")
        return self

    @cached_property
    def size(self) -> int:
        """Bytes of an extent, in whole pages."""
        return -(-self.rows * sum(map(sum, self.layers)) // PAGE) * PAGE

    @cached_property
    def digest(self) -> str:
        """16 hex digits that name all of the above."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()

    def row_bytes(self, layer: int) -> Offsets:
        """Bytes of one row in each area of a layer; ValueError where there is no such layer."""
        if not 0 <= layer < len(self.layers):
            raise ValueError(f"layer is {layer}: an object has layers 0..{len(self.layers) - 1}")
        return self._row_bytes[layer]

    def area_offsets(self, layer: int) -> Offsets:
        """Where in an extent each area of a layer begins."""
        return self._offsets[layer]

    @cached_property
    def _row_bytes(self) -> list[Offsets]:
        return [np.array(layer, np.int64) for layer in self.layers]

    @cached_property
    def _offsets(self) -> list[Offsets]:
        out, at = [], 0
        for layer in self._row_bytes:
            ends = at + np.cumsum(layer * self.rows)
            out.append(ends - layer * self.rows)
            at = int(ends[-1])
        return out
