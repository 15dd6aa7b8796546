"""The model's decode storage over a `DecodeEngine`: one request, one token at a time."""

from __future__ import annotations

from torch import Tensor

from tidegate.engine.decode_engine import DecodeEngine

__all__ = ["AttemptKV"]


class AttemptKV:
    """`DecodeKV` of one attempt, whose kinds of rows are "main" and "index"."""

    def __init__(self, engine: DecodeEngine, attempt: int) -> None:
        self._engine, self._attempt = engine, attempt

    def append(self, layer: int, position: int, main_row: Tensor, index_row: Tensor) -> None:
        self._engine.append(layer, [(self._attempt, position)], {"main": main_row[None], "index": index_row[None]})

    def index_keys(self, layer: int) -> Tensor:
        return self._engine.index_rows(layer, self._attempt)

    def fetch(self, layer: int, positions: Tensor) -> Tensor:
        """A copy, padding as zeros."""
        (hot,), rows, slots = self._engine.select(layer, [self._attempt], positions[None])
        out = hot[int(rows)].index_select(0, slots[0].clamp_min(0))
        out[slots[0] < 0] = 0
        return out
