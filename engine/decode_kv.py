"""The model's decode storage over a rank's `DecodeRows`: all tokens of a step, of any number of attempts.

Rules: a layer's rows of the whole step go to the engine in one call, and so do its look-ups; only where a step has several tokens of
one attempt is there one look-up for the first of each, one for the second, and so on, because each takes one line of a residency step.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tidegate.engine.decode_rows import DecodeRows
from tidegate.engine.model import Rows

__all__ = ["AttemptBatch", "AttemptStore"]


class AttemptBatch:
    """`DecodeBatch` of (token, position, attempt) each; main KV is of one kind, "main"."""

    def __init__(self, engine: DecodeRows, steps: Sequence[tuple[int, int, int]]) -> None:
        self.tokens: Sequence[int] = [token for token, _, _ in steps]
        self.positions: Sequence[int] = [position for _, position, _ in steps]
        self._engine, self._attempts = engine, [attempt for _, _, attempt in steps]
        self._rounds: list[list[int]] = []  # the first token of each attempt, then the second of each, ...
        seen: dict[int, int] = {}
        for i, attempt in enumerate(self._attempts):
            nth = seen[attempt] = seen.get(attempt, -1) + 1
            self._rounds += [[]] if nth == len(self._rounds) else []
            self._rounds[nth].append(i)

    def append(self, layer: int, rows: Rows) -> None:
        self._engine.append(layer, [*zip(self._attempts, self.positions, strict=True)], rows)

    def index_rows(self, layer: int, token: int) -> Rows:
        attempt, end = self._attempts[token], self.positions[token] + 1
        kinds = [name for name in self._engine.memory.kinds_of(layer) if name != "main"]
        return {name: self._engine.index_rows(layer, attempt, name)[:end] for name in kinds}

    def fetch(self, layer: int, positions: Sequence[Tensor]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for some in self._rounds:
            asked = pad_sequence([positions[i] for i in some], batch_first=True, padding_value=-1)
            (hot,), rows, slots = self._engine.select(layer, [self._attempts[i] for i in some], asked)
            for i, row, slot in zip(some, rows.tolist(), slots, strict=True):
                found[i] = hot[row].index_select(0, slot[: len(positions[i])])
        return [found[i] for i in range(len(positions))]


class AttemptStore:
    """`SpeculativeStore` of attempts, each known by its nonce."""

    def __init__(self, engine: DecodeRows) -> None:
        self._engine = engine

    def batch(self, steps: Sequence[tuple[int, int, int]]) -> AttemptBatch:
        return AttemptBatch(self._engine, steps)

    def rollback(self, request: int, length: int) -> None:
        self._engine.rollback(request, length)
