"""Who owns which blocks: a run's tokens lie in the same blocks of every slot on Prefill, an attempt's in those of every layer on Decode.

Rules: a run owns its blocks from `take` to `give_back`, and they never change in between, so a READY that is said again says the
same; nobody owns a block twice; a run that finds no room waits, first come, first served, and the reason is known.  Which run may
*write* where is not decided here: that is the gate of the slot.  One thread calls it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tidegate.engine.slot_layout import block_span

__all__ = ["BlockAllocator"]


class BlockAllocator:
    """`blocks` blocks of `block_size` tokens, handed out to runs; those given back first are handed out first.

    kind, side: what the owners are and where, for messages.
    """

    def __init__(self, blocks: int, block_size: int, *, kind: str = "run", side: str = "Prefill") -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError(f"{blocks} blocks of {block_size} tokens: both start at 1")
        self.blocks, self.block_size, self._kind, self._side = blocks, block_size, kind, side
        self._free = deque(range(blocks))
        self._owned: dict[int, tuple[int, ...]] = {}
        self._waiting: dict[int, int] = {}  # run -> tokens, first come first

    @property
    def free(self) -> int:
        return len(self._free)

    def can_ever_hold(self, tokens: int) -> bool:
        """Do that many tokens fit when nobody else is here?"""
        return block_span(0, tokens, self.block_size) <= self.blocks

    def ask(self, run: int, tokens: int) -> None:
        """Queue `run` for the blocks of `tokens` tokens; `admitted` says when it has them.  ValueError where it never could, or
        asks twice.
        """
        if not self.can_ever_hold(tokens):
            raise ValueError(
                f"{self._kind} {run} has {tokens} tokens, all {self.blocks} blocks of {self.block_size} hold "
                f"{self.blocks * self.block_size}: give {self._side} more blocks, or shorter prompts"
            )
        if run in self._owned or run in self._waiting:
            raise ValueError(f"{self._kind} {run} has asked for its blocks already")
        self._waiting[run] = tokens

    def admitted(self, most: int | None = None, *, may: Callable[[int, int], bool] = lambda run, tokens: True) -> list[int]:
        """The runs that get their blocks now, at most so many: the first of those that wait, as long as there is room for it.  may: is
        asked of each that would get them, (run, tokens); those that may not are passed over.
        """
        got = []
        for run, tokens in list(self._waiting.items())[:most]:
            need = block_span(0, tokens, self.block_size)
            if need > len(self._free):
                break  # a later, shorter run could overtake it for ever
            if not may(run, tokens):
                continue
            self._owned[run] = tuple(self._free.popleft() for _ in range(need))
            del self._waiting[run]
            got.append(run)
        return got

    def give_back(self, run: int) -> None:
        """`run` is over; nothing if it has nothing."""
        self._waiting.pop(run, None)
        self._free.extend(self._owned.pop(run, ()))

    def of(self, run: int) -> tuple[int, ...]:
        """The run's block ids in the order of its tokens; KeyError for a run that has none."""
        return self._owned[run]

    def holding(self, run: int, start: int, stop: int) -> tuple[int, ...]:
        """The blocks of `run` that hold tokens [start, stop); KeyError for a run that has none."""
        return self._owned[run][start // self.block_size : -(-stop // self.block_size)]

    def waits(self, run: int) -> bool:
        """Has it asked, and got nothing yet?"""
        return run in self._waiting

    @property
    def lacks(self) -> int:
        """Blocks that the first of those that wait needs, free ones or not; 0 if nobody waits."""
        return next((block_span(0, tokens, self.block_size) for tokens in self._waiting.values()), 0)

    def why(self, run: int) -> str:
        """What `run` waits for; "" if it does not."""
        if run not in self._waiting:
            return ""
        first = next(iter(self._waiting))
        need = block_span(0, self._waiting[first], self.block_size)
        who = "it" if first == run else f"{self._kind} {first}, which is before it,"
        held = ", ".join(f"{self._kind} {other}: {len(ids)}" for other, ids in self._owned.items())
        free = f"{len(self._free)} of {self.blocks} are free ({held or 'none is held'})"
        return f"{self._kind} {run} waits for blocks: {who} needs {need}, {free}"
