"""A decode step of a rank: where its new rows go, and how the rows that attention reads become resident.

Rules: a row is appended before anyone reads it; what a hot buffer holds belongs to one attempt, by its nonce; one thread, the one that
decodes.  Of several ranks the first alone writes the pool of main KV that they share: in the forward in which a row is made the others
take it from their own computation, which gives the same bits, and only from the next forward on from the pool; so one meeting for each
forward is enough, and there all compare what they chose and where it lies (`forward_digest`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tidegate.engine.decode_memory import DecodeMemory, is_main
from tidegate.engine.hot_buffer import Reader

__all__ = ["DecodeRows", "Selected"]


class Selected(NamedTuple):
    """Where the rows are that a layer's attention is to read, until the layer's next `select`.

    hot: for each kind of main KV the hot buffers of the layer [rows of the engine, hot, width]; rows: int64 [n], the row of each
    attempt; slots: int32 [n, k], the slot of each position asked, in its place, -1 for padding.
    """

    hot: tuple[Tensor, ...]
    rows: Tensor
    slots: Tensor


class DecodeRows:
    """memory: of this rank; readers: the attempts that are complete; rank, ranks: which of how many that make the same steps."""

    def __init__(self, memory: DecodeMemory, readers: dict[int, Reader], *, rank: int = 0, ranks: int = 1) -> None:
        self.memory, self._readers, self.rank, self.ranks = memory, readers, rank, ranks
        self._own: dict[tuple[int, int], list[tuple[int, list[Tensor]]]] = {}  # (layer, attempt) -> (position, its main rows)
        self._digest = hashlib.blake2b(digest_size=16)

    def append(self, layer: int, tokens: Sequence[tuple[int, int]], rows: Mapping[str, Tensor]) -> None:
        """Steps 1 and 2: put the new rows of `layer` (from 0) where they are looked for.

        tokens: (attempt, position) of each, in the order of an attempt's positions, at most one past its last in this layer; a position
        that is there already (the prompt's last token, a draft that was refused) is written again, and is the last one then.
        rows: kind -> [n, width] of its dtype, every kind that the layer has.  Copied before it returns.  ValueError, with nothing written,
        for a position out of order or rows that do not fit; KeyError for an attempt that is not complete.
        """
        places, lengths = [], dict[int, int]()
        for attempt, position in tokens:
            places.append(self._reader(attempt).place(layer, position, lengths.get(attempt)))
            lengths[attempt] = position + 1
        if rows.keys() != set(self.memory.kinds_of(layer)):
            raise ValueError(f"rows of {sorted(rows)} are given, a token has {sorted(self.memory.kinds_of(layer))}")
        for name, part in rows.items():
            kind = self.memory.pages[name].kind
            if part.shape != (len(tokens), kind.width) or part.dtype != self.memory.pages[name].memory.dtype:
                raise ValueError(f"{name} rows are {tuple(part.shape)} {part.dtype}: {(len(tokens), kind.width)} of {kind.dtype} are due")
        for name, part in rows.items():
            main = is_main(name)
            if not main or self.rank == 0:
                self.memory.pages[name].write(layer, torch.tensor(places, dtype=torch.int64), part)
            self.memory.hot.counts.bytes_appended += part.nbytes if main else 0
        for i, (attempt, position) in enumerate(tokens):
            self._reader(attempt).wrote(layer, position)
            if self.rank:
                own = [rows[name][i].clone() for name in self.memory.pages if is_main(name)]
                self._own.setdefault((layer, attempt), []).append((position, own))

    def index_rows(self, layer: int, attempt: int, name: str = "index") -> Tensor:
        """Step 3 reads these: rows of all tokens of `attempt` in `layer` so far [tokens, width].

        A view where its blocks lie one after the other, or else a copy; for kernels that read pages there are `index_pages`.  ValueError
        for a layer that has no indexer: its attention reads what an earlier layer chose.
        """
        reader = self._reader(attempt)
        return self.memory.pages[name].tokens(layer, reader.blocks, reader.lengths[layer])

    def index_pages(self, layer: int, attempt: int, name: str = "index") -> tuple[Tensor, Tensor]:
        """The indexer cache of `layer` [blocks, block_size, width], and the ids of the blocks of `attempt` in it, int64 [blocks]."""
        pages = self.memory.pages[name]
        return pages.memory[pages.at(layer)], self._reader(attempt).table

    def select(self, layer: int, attempts: Sequence[int], topk: Tensor) -> Selected:
        """Steps 4 to 6: make the selected main rows resident, and say where they are.

        attempts: n, each once; topk: int32 or int64 [n, k], logical positions; those below 0, or not written yet, are padding.
        ValueError, with nothing changed, where more distinct positions are asked for than a hot buffer has slots; KeyError as `append`.
        """
        readers, hot = [self._reader(attempt) for attempt in attempts], self.memory.hot
        step = hot.look_up(layer, readers, topk)  # 4: hits, slots for misses, evictions
        hot.fetch(layer, readers, step)  # 5: misses only
        for i, attempt in enumerate(attempts if self.rank else ()):
            for position, own in self._own.get((layer, attempt), ()):  # the pool may not have it yet
                for part, row in zip(hot.memory, own, strict=True):
                    part[layer, readers[i].row, step.slots[i][topk[i] == position].long()] = row
        if self.ranks > 1:
            self._digest.update(topk.contiguous().numpy().tobytes() + step.slots.contiguous().numpy().tobytes())
        return Selected(tuple(part[layer] for part in hot.memory), step.rows, step.slots)  # 6: positions as slots

    def forward_digest(self) -> bytes:
        """Of every position that was selected since the last call, and of the slots; all ranks, when they have met, have one.

        With several ranks, call it after each forward and have all ranks compare before anything else is done.
        """
        self._own.clear()
        found, self._digest = self._digest.digest(), hashlib.blake2b(digest_size=16)
        return found

    def _reader(self, attempt: int) -> Reader:
        if (reader := self._readers.get(attempt)) is None:
            raise KeyError(f"attempt {attempt} is not complete, or over: only what `completed` named can be decoded")
        return reader

    def rollback(self, attempt: int, length: int) -> None:
        """Drafts were refused: only the first `length` tokens of `attempt` have rows now, in every layer that has more.  KeyError as
        `append`.
        """
        self._reader(attempt).rollback(length)

