"""Decode's destinations: a pool of places, each for the rows of one request.

Rules: a place belongs to one attempt from `claim` to `release`, and is released once; which addresses a place has is
decided here, in bytes, and a range outside it is refused; nothing is cleared in passing (`poison` is for tests and
cautious owners).
"""

from __future__ import annotations

import threading

import torch

from tidegate.kernels import append_rows

__all__ = ["Place", "RowPool"]


class RowPool:
    """`places` places for requests of at most `capacity` tokens: one row of `width` elements per token and layer.

    Layers are outermost in a place, [layers, capacity, width], so that the tokens of one layer, which a pull reads
    together, lie together.  `memory` is all of it, to be registered with a pull backend before any address is
    advertised.
    """

    def __init__(self, places: int, layers: int, capacity: int, width: int, dtype: torch.dtype) -> None:
        if min(places, layers, capacity, width) < 1:
            raise ValueError(f"{places} places of {layers} layers, {capacity} tokens, width {width}: each must be at least 1")
        self.memory = torch.zeros(places, layers, capacity, width, dtype=dtype)
        self._lock = threading.Lock()
        self._free = list(reversed(range(places)))

    @property
    def free(self) -> int:
        return len(self._free)

    def claim(self) -> Place | None:
        """A place for one attempt, or None where all are taken; its rows hold whatever the last owner left."""
        with self._lock:
            return Place(self, self._free.pop()) if self._free else None

    def release(self, place: Place) -> None:
        """Take a place back: only when no copy into it can land any more.  ValueError for one that is not claimed."""
        with self._lock:
            if place.number in self._free or place.pool is not self:
                raise ValueError(f"place {place.number} is not claimed from this pool: a place is released once")
            self._free.append(place.number)

    def poison(self, place: Place) -> None:
        """Fill a place with NaN (or -1), so that a row nobody wrote shows."""
        place.rows.fill_(float("nan") if self.memory.is_floating_point() else -1)


class Place:
    """One attempt's rows: `rows` is [layers, capacity, width] of the pool's memory."""

    def __init__(self, pool: RowPool, number: int) -> None:
        self.pool, self.number = pool, number
        self.rows = pool.memory[number]

    def append(self, layer: int, position: int, row: torch.Tensor) -> None:
        """Write one token's `row` [width] of `layer`; ValueError, with nothing written, for a position outside the place."""
        append_rows([self.rows[layer]], torch.tensor([position]), [row[None]])

    def byte_range(self, layer: int, first: int, count: int) -> tuple[int, int]:
        """(offset, length) in the pool's memory of tokens first..first + count of `layer`; ValueError outside the
        place.
        """
        layers, capacity, width = self.rows.shape
        if not (0 <= layer < layers and first >= 0 and count >= 0 and first + count <= capacity):
            raise ValueError(f"layer {layer} tokens {first}..{first + count}: a place has {layers} layers of {capacity}")
        row = width * self.rows.element_size()
        return ((self.number * layers + layer) * capacity + first) * row, count * row
