"""The blocks of a step, told once: BLOCKS names the list, each READY of the step names BLOCKS.

Rules: the name is a digest of the list and of whose it is (run, chunk, member, life of Prefill), so a name stands for one list and no
other, and one that was damaged, or told for something else, does not answer to it; a READY whose list nobody has told is as good as
lost: it is dropped, and comes again with its list, for whoever says READY again says BLOCKS before it; a READY that names the list of
another step is refused; what Decode keeps is bounded, and to forget a list costs one resend.  Block ids are an address and no identity:
sessions know nothing of all this.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tidegate.engine.control import public_name
from tidegate.kernels.copy import Offsets
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import Blocks, Ready, TransferId

__all__ = ["KEPT", "StepTable", "StepTables", "Teller", "blocks_of"]

KEPT = 4096
"""Lists that Decode remembers of one Prefill, the latest used ones: many times the steps that can be under way."""


def blocks_of(step: TransferId, incarnation: int, ids: Sequence[int]) -> Blocks:
    """BLOCKS for the step of `step`, whatever its layer.  ids: int32, in the order of its tokens."""
    data = np.asarray(ids, "<i4").tobytes()
    return Blocks(step.run, step.chunk, step.member, incarnation, _name(step.run, step.chunk, step.member, incarnation, data), data)


def _name(run: int, chunk: int, member: int, incarnation: int, ids: bytes) -> int:
    """63 bits: no two lists of a Prefill's life share them by chance."""
    head = b"".join(number.to_bytes(16, "little", signed=True) for number in (run, chunk, member, incarnation))
    return int.from_bytes(hashlib.blake2b(head + ids, digest_size=8).digest(), "little") >> 1


class Teller:
    """Prefill's side: which lists are still to be told.  One thread."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._steps: dict[int, dict[tuple[int, int], Blocks]] = {}  # run -> (chunk, member) -> what is told of it

    def of(self, ready: Ready, ids: Callable[[Ready], Sequence[int]], *, again: bool) -> tuple[Ready, Blocks | None]:
        """READY as it is to be said, and what is to be said before it, if anything.  ids: of its step, asked for once; again: it was
        said before.
        """
        step = ready.transfer
        of_run = self._steps.setdefault(step.run, {})
        blocks = of_run.get((step.chunk, step.member))
        due = again or blocks is None
        if blocks is None:
            blocks = of_run[step.chunk, step.member] = blocks_of(step, self._incarnation, ids(ready))
        # not `replace`: this is done for every layer
        named = Ready(ready.request, ready.attempt, step, ready.slot, ready.epoch, ready.incarnation, ready.start, ready.stop,
                      ready.final, blocks.table)  # fmt: skip
        return named, blocks if due else None

    def forget(self, run: int) -> None:
        """The run is over and nobody reads it."""
        self._steps.pop(run, None)


class StepTable:
    """A list that was told.  ids: int64 [blocks]; plan: what its reader has made of it, for the next layer of the step."""

    __slots__ = ("chunk", "ids", "incarnation", "member", "plan", "run")

    def __init__(self, blocks: Blocks) -> None:
        self.run, self.chunk, self.member, self.incarnation = blocks.run, blocks.chunk, blocks.member, blocks.incarnation
        self.ids: Offsets = np.frombuffer(blocks.ids, "<i4").astype(np.int64)
        self.plan: Any = None

    def check(self, ready: Ready) -> None:
        """ValueError unless it is the list of READY's own step."""
        of, own = ready.transfer, (self.run, self.chunk, self.member, self.incarnation)
        if own != (of.run, of.chunk, of.member, ready.incarnation):
            raise ValueError(f"READY of {of}, Prefill {public_name(ready.incarnation)}, names the blocks of run {self.run} "
                             f"chunk {self.chunk} member {self.member}, Prefill {public_name(self.incarnation)}")  # fmt: skip


class StepTables:
    """Decode's side: the lists that one Prefill has told.  One thread.  missed: READYs that came without theirs."""

    def __init__(self) -> None:
        self._tables: OrderedDict[int, StepTable] = OrderedDict()
        self.missed = 0

    def hear(self, blocks: Blocks) -> None:
        """RemoteProtocolError, with nothing kept, where the list does not answer to its name."""
        if len(blocks.ids) % 4 or blocks.table != _name(blocks.run, blocks.chunk, blocks.member, blocks.incarnation, blocks.ids):
            raise RemoteProtocolError("this list of blocks does not answer to its name: it was damaged on the way, or made up",
                                      machine="blocks", state=f"{len(blocks.ids)} bytes", event=f"table {blocks.table}")  # fmt: skip
        if blocks.table not in self._tables:
            self._tables[blocks.table] = StepTable(blocks)
            if len(self._tables) > KEPT:
                self._tables.popitem(last=False)

    def knows(self, ready: Ready) -> bool:
        """May READY be taken now?  If not, it is to be dropped: it will come again, and its list before it."""
        known = ready.table in self._tables
        self.missed += not known
        return known

    def of(self, ready: Ready) -> StepTable:
        """The list that READY names; ValueError where it is none of its own."""
        if (table := self._tables.get(ready.table)) is None:
            raise ValueError(f"READY of {ready.transfer} names blocks that nobody has told")
        self._tables.move_to_end(ready.table)
        table.check(ready)
        return table
