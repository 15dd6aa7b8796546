"""All memory of a Decode rank, and who has which of it: host pool for main KV, indexer cache, hot buffers.

Rules: an attempt gets a row of the hot buffers and the blocks of all its tokens, prompt and new ones, together and before anyone
hears of it, first come, first served; it keeps its blocks until nothing can land in them any more, and its row until then, or until it
is parked; one that was parked gets a row before any that is new; what an attempt may be written to is exactly its own blocks, to the
byte.  One thread calls it, but for the rows' contents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec
import torch

from tidegate.engine.blocks import BlockAllocator
from tidegate.engine.host_memory import HostMemory, file_at
from tidegate.engine.hot_buffer import HotBuffers
from tidegate.engine.paged_rows import PagedRows, RowKind
from tidegate.engine.slot_layout import DTYPES

__all__ = ["INDEXER", "PARKED", "DecodeMemory", "Destination", "is_main", "main_bytes"]

INDEXER = ("index", "scale")
"""Kinds of rows beside main KV: the indexer's keys, and with LIC8 their scales."""
PARKED = -1
"""The row of an attempt that was preempted."""


def main_bytes(kind: RowKind, *, layers: int, blocks: int, block_size: int) -> int:
    """Bytes of a kind of main KV, all layers."""
    return layers * blocks * block_size * kind.row_bytes


def _layers_of(kind: RowKind, layers: int) -> int:
    return layers if kind.layers is None else len(kind.layers)


def is_main(name: str) -> bool:
    """Is this a kind of main KV ("main", or several: "main.k", "main.v"), rather than indexer data ("index", "scale")?"""
    return name.partition(".")[0] == "main"


class Destination(msgspec.Struct, frozen=True):
    """What an attempt owns.  blocks: ids in the order of its tokens, `tokens` of them at most; row: of the hot buffers, PARKED for none."""

    attempt: int
    row: int
    blocks: tuple[int, ...]
    tokens: int


class DecodeMemory:
    """Everything is allocated here, once.

    kinds: what a token's rows are, main KV first; blocks, block_size: of each; rows: attempts that may be here at once; hot: slots of
    a hot buffer.  pages: kind name -> its rows.  files: kind of main KV -> descriptor of the memory that all ranks share for it
    (`host_memory.shared_file`); left out, it is this rank's alone.  poison: memory that nobody wrote, or whose owner has gone, is NaN
    (-1).
    """

    def __init__(
        self, kinds: Sequence[RowKind], *, layers: int, blocks: int, block_size: int, rows: int, hot: int, poison: bool = False,
        files: Mapping[str, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        if min(layers, rows) < 1:
            raise ValueError(f"{layers} layers, {rows} attempts at once: both start at 1")
        if len({kind.name for kind in kinds}) != len(kinds) or not any(is_main(kind.name) for kind in kinds):
            raise ValueError(f"kinds of rows are {[kind.name for kind in kinds]}: main KV, and each once")
        if strange := [kind.name for kind in kinds if not is_main(kind.name) and kind.name not in INDEXER]:
            raise ValueError(f"kind of rows {strange[0]!r}: there are main (or main.k, main.v, ...), {', '.join(INDEXER)}")
        indexer = [kind.layers for kind in kinds if kind.name in INDEXER]
        if any(kind.layers is not None for kind in kinds if is_main(kind.name)) or len(set(indexer)) > 1:
            raise ValueError("main KV is of all layers, and a scale is where its indexer row is: leave out layers, or give both the same")
        if strange_layers := sorted({layer for own in indexer for layer in own or () if layer >= layers}):
            raise ValueError(f"indexer rows of layers {strange_layers}: there are layers 0..{layers - 1}")
        self.allocator = BlockAllocator(blocks, block_size, kind="attempt", side="Decode")
        self.layers, self.rows, self._poison, self._files = layers, rows, poison, files
        self.host: dict[str, HostMemory] = {}
        self.pages = {
            kind.name: PagedRows(kind, self._allocate(kind, (_layers_of(kind, layers), blocks, block_size, kind.width))) for kind in kinds
        }
        self._kinds = [tuple(name for name, pages in self.pages.items() if layer in pages) for layer in range(layers)]
        self.main = [pages for name, pages in self.pages.items() if is_main(name)]
        self.hot = HotBuffers(self.main, rows=rows, hot=hot, poison=poison)
        self._free_rows = deque(range(rows))
        self.owned: dict[int, Destination] = {}
        self._tokens: dict[int, int] = {}
        self._returning: dict[int, None] = {}  # parked attempts that ask for a row again, first come first
        for pages in self.pages.values() if poison else ():
            pages.poison()

    def _allocate(self, kind: RowKind, shape: tuple[int, ...]) -> torch.Tensor:
        if not is_main(kind.name):
            return torch.zeros(shape, dtype=DTYPES[kind.dtype])
        self.host[kind.name] = memory = HostMemory(
            main_bytes(kind, layers=shape[0], blocks=shape[1], block_size=shape[2]), file=self._files.get(kind.name, -1)
        )
        return memory.bytes.view(DTYPES[kind.dtype]).view(shape)

    def kinds_of(self, layer: int) -> tuple[str, ...]:
        """The kinds of rows that a token has in `layer` (from 0)."""
        return self._kinds[layer]

    def ask(self, attempt: int, tokens: int) -> None:
        """Queue `attempt` for `tokens` tokens; ValueError where they never fit, or it asks twice."""
        self.allocator.ask(attempt, tokens)
        self._tokens[attempt] = tokens

    def admitted(self) -> list[Destination]:
        """Those that get what they asked for now."""
        new = []
        for attempt in self.allocator.admitted(len(self._free_rows)):
            one = Destination(attempt, self._free_rows.popleft(), self.allocator.of(attempt), self._tokens.pop(attempt))
            self.owned[attempt] = one
            new.append(one)
        return new

    def park(self, attempt: int) -> Destination:
        """Take its row; its blocks stay.  What it had."""
        one = self.owned[attempt]
        self.owned[attempt] = msgspec.structs.replace(one, row=PARKED)
        self._free_row(one.row)
        return one

    def unpark(self, attempt: int) -> None:
        """Queue a parked attempt for a row; `unparked` says when it has one."""
        self._returning[attempt] = None

    def unparked(self) -> list[Destination]:
        """Those that get a row again now; call it before `admitted`."""
        new = []
        while self._returning and self._free_rows:
            attempt = next(iter(self._returning))
            del self._returning[attempt]
            new.append(msgspec.structs.replace(self.owned[attempt], row=self._free_rows.popleft()))
            self.owned[attempt] = new[-1]
        return new

    def waits(self, attempt: int) -> bool:
        """Has it asked for its memory, and got nothing yet?"""
        return self.allocator.waits(attempt)

    @property
    def lacks(self) -> Literal["", "row", "blocks"]:
        """What the first of all that wait needs before it can go on; "" if nobody waits."""
        if not self._returning and (lacks := self.allocator.lacks):
            return "blocks" if lacks > self.allocator.free else "row"
        return "row" if self._returning else ""

    def why(self, attempt: int) -> str:
        """What `attempt` waits for; "" if it does not."""
        if (self.waits(attempt) or attempt in self._returning) and not self._free_rows:
            return f"attempt {attempt} waits for a row of the hot buffers: all {self.rows} are taken"
        return self.allocator.why(attempt)

    def give_back(self, attempt: int) -> None:
        """Nobody reads or writes what `attempt` has any more, or it waits no longer; nothing if it has nothing."""
        self._tokens.pop(attempt, None)
        self._returning.pop(attempt, None)
        if (one := self.owned.pop(attempt, None)) is not None:
            for pages in self.pages.values() if self._poison else ():
                pages.poison(one.blocks)
            if one.row != PARKED:
                self._free_row(one.row)
        self.allocator.give_back(attempt)

    def _free_row(self, row: int) -> None:
        self.poison_row(row)
        self._free_rows.append(row)

    def poison_row(self, row: int) -> None:
        """Nobody has this row any more, or it never was anybody's (PARKED); if it is asked for, its hot buffers become NaN (-1)."""
        if self._poison and row != PARKED:
            self.hot.poison(row)

    def poison_own(self, one: Destination) -> None:
        """What a rank alone has of `one`, if that is asked for: all but main KV."""
        self.poison_row(one.row)
        if self._poison:
            for name, pages in self.pages.items():
                if not is_main(name):
                    pages.poison(one.blocks)

    @property
    def free_rows(self) -> int:
        return len(self._free_rows)

    def files(self) -> dict[str, str]:
        """The file that the rows of each kind lie in; "" where this process alone has them."""
        return {name: file_at(pages.memory.data_ptr()) for name, pages in self.pages.items()}

    def backing(self) -> dict[str, float]:
        """Bytes of the host pool, and how many of them are in huge pages and pinned, as of now."""
        got = [memory.got for memory in self.host.values()]
        return {"host_bytes": sum(one.size for one in got), "host_huge": sum(one.huge for one in got),
                "host_pinned": sum(one.pinned for one in got)}  # fmt: skip

    def report(self) -> str:
        """What there is, and how the system backs it, for the start log."""
        size, blocks = self.allocator.block_size, self.allocator.blocks
        device = sum(pages.memory.nbytes for name, pages in self.pages.items() if name not in self.host)
        host = "; ".join(f"{name}: {memory.got}" for name, memory in self.host.items())
        return (
            f"host pool of {blocks} blocks of {size} tokens, {self.layers} layers: {host}; indexer cache {device / (1 << 20):.1f} MiB; "
            f"hot buffers {self.hot.nbytes / (1 << 20):.1f} MiB for {self.rows} requests at once"
        )


