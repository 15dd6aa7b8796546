"""What the model asks of storage while it computes, and how a step over several requests is described.

Rules: rows go by the names of `ModelConfig.row_kinds`; the model allocates, finds and keeps none: it asks layer by layer, and forgets
what it was given when that layer is done; within a layer every request of a step has its rows written before the first of them
attends, so storage that all of them share (one slot, one pool) may take them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

__all__ = ["Chunk", "DecodeBatch", "DecodeKV", "PrefillKV", "Rows", "Separately"]

Rows: TypeAlias = Mapping[str, Tensor]
"""By the name of a kind of row ("main", "index"), as `ModelConfig.row_kinds` has them for the layer."""


class PrefillKV(Protocol):
    """Storage of one prefill chunk; called from the computing thread, layers in order (the MTP layer last).

    In a step of several chunks, each layer has `wait_for_layer` of all, then `kv_written` of all, then, after attention, `layer_done`
    of all, each in the order of the step.
    """

    def wait_for_layer(self, layer: int) -> Rows:
        """Block until the layer's buffer may be written and holds rows 0..start; its views [T, width], T at least start + n."""

    def kv_written(self, layer: int) -> None:
        """Rows start..start+n of all views are written and change no more."""

    def layer_done(self, layer: int) -> None:
        """Attention of this layer reads the views no more."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One request's share of a prefill step: `tokens` at positions start.., and where its rows are.

    next_token: the token after the last of `tokens`; only the MTP layer looks at it, whose row of a token depends on the next one too.
    At a prompt's end nobody knows it yet: `Model.draft_step` writes that row again.
    """

    tokens: Sequence[int] | Tensor
    start: int
    kv: PrefillKV
    next_token: int = 0


class DecodeKV(Protocol):
    """Storage of one decoding request; called from the computing thread."""

    def append(self, layer: int, position: int, rows: Rows) -> None:
        """Keep the rows [width] of the token at `position`, which is the request's last one then: before anyone reads them, and by copy."""

    def index_rows(self, layer: int) -> Rows:
        """The indexer's rows of all tokens so far, [tokens, width]: every kind but "main"."""

    def fetch(self, layer: int, positions: Tensor) -> Tensor:
        """Main rows of `positions` (int64 [k], best first, distinct), [k, width] in that order; valid until the next call."""


class DecodeBatch(Protocol):
    """The tokens of one decode step, of any number of requests, and the storage of all of them.

    Several tokens of one request may be in it, in the order of their positions and without a gap (drafts that are to be verified): each
    attends to those before it, and to the bit as if it had a step of its own.  Called from the computing thread; in every layer first
    `append`, then `index_rows` of each token, then `fetch`.
    """

    tokens: Sequence[int]
    positions: Sequence[int]

    def append(self, layer: int, rows: Rows) -> None:
        """Keep the rows [tokens, width] of all, by copy; what a request had at these positions and beyond them is over."""

    def index_rows(self, layer: int, token: int) -> Rows:
        """The indexer's rows of the request of the batch's `token`-th token, up to that token: [its position + 1, width]."""

    def fetch(self, layer: int, positions: Sequence[Tensor]) -> Iterable[Tensor]:
        """For each token in turn the main rows [k, width] of its `positions` (as `DecodeKV.fetch`), valid until the next is asked for."""


class Separately:
    """A `DecodeBatch` of requests whose storage knows nothing of each other: (token, position, kv) of each token."""

    def __init__(self, steps: Sequence[tuple[int, int, DecodeKV]]) -> None:
        self.tokens: Sequence[int] = [token for token, _, _ in steps]
        self.positions: Sequence[int] = [position for _, position, _ in steps]
        self._kv = [kv for _, _, kv in steps]

    def append(self, layer: int, rows: Rows) -> None:
        for i, (position, kv) in enumerate(zip(self.positions, self._kv, strict=True)):
            kv.append(layer, position, {name: part[i] for name, part in rows.items()})

    def index_rows(self, layer: int, token: int) -> Rows:
        return {name: rows[: self.positions[token] + 1] for name, rows in self._kv[token].index_rows(layer).items()}

    def fetch(self, layer: int, positions: Sequence[Tensor]) -> Iterator[Tensor]:
        return (kv.fetch(layer, chosen) for kv, chosen in zip(self._kv, positions, strict=True))
