"""Which tiles of queries a prefill step consists of, and what belongs to which of them.

Rules: tiles begin at multiples of TILE whatever the chunks (why: see `attention`); the tiles of all chunks of a step are one list, in
the order of the chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from tidegate.engine.model.attention import TILE
from tidegate.engine.model.storage import Chunk

__all__ = ["Angles", "Span", "by_span", "each_tile"]

T = TypeVar("T")
Angles: TypeAlias = tuple[Tensor, Tensor]  # cosines and sines


@dataclass(frozen=True, slots=True)
class Span:
    """The tiles that a chunk lies in."""

    chunk: Chunk
    begins: range  # positions at which its tiles begin
    end: int  # the position after its last token
    ids: Tensor  # of all tokens of its tiles and one more; 0 where there is none
    angles: Sequence[Angles]  # of each tile

    @classmethod
    def of(cls, chunk: Chunk, ids: Tensor, angles: Callable[[Tensor], Angles]) -> Self:
        """ids: of the chunk's tokens and of the next one; angles: of positions [TILE]."""
        end = chunk.start + len(ids) - 1
        begins = range(chunk.start // TILE * TILE, end, TILE)
        padded = functional.pad(ids, (chunk.start - begins[0], begins[-1] + TILE - end))
        return cls(chunk, begins, end, padded, [angles(torch.arange(begin, begin + TILE)) for begin in begins])

    @property
    def room(self) -> int:
        """The position after its last tile."""
        return self.begins[-1] + TILE

    def tiles(self, ahead: int) -> list[Tensor]:
        """For each tile the ids [TILE] of its tokens, or of those so many (0 or 1) after them."""
        return [self.ids[begin + ahead - self.begins[0] :][:TILE] for begin in self.begins]

    @property
    def inside(self) -> slice:
        """The chunk's tokens among those of its tiles."""
        return slice(self.chunk.start - self.begins[0], self.end - self.begins[0])


def by_span(spans: Sequence[Span], tiles: Sequence[T]) -> Iterator[Sequence[T]]:
    """What belongs to the tiles of each span, out of one list for all."""
    last = 0
    for span in spans:
        first, last = last, last + len(span.begins)
        yield tiles[first:last]


def each_tile(spans: Sequence[Span], of_span: Sequence[T]) -> Iterator[tuple[int, Span, T]]:
    """(where it begins, span, what belongs to the span) of every tile."""
    return ((begin, span, one) for span, one in zip(spans, of_span, strict=True) for begin in span.begins)
