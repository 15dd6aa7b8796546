"""Who has which room on a Prefill rank: the blocks of a run, and its lane, whose gates say when they may be written.

Rules: a run has its lane from START, its blocks before it is computed, and both until it is over, each of its reads has its verdict, and,
where each run has a lane of its own, every gate of that lane is free: for then its blocks go to a run of another lane, whose gates know
nothing of what is still read or saved there.  Owner's thread only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from tidegate.engine.blocks import BlockAllocator
from tidegate.engine.prefill_group import PrefillGroup
from tidegate.protocol.prefill import PrefillSession

__all__ = ["Places"]


class Places:
    """apart: each run in a lane of its own, so that many are in flight side by side; or else all in lane 1, one after the other.
    say: told what runs wait for.
    """

    def __init__(self, session: PrefillSession | PrefillGroup, blocks: BlockAllocator, *, apart: bool, say: Callable[[str], None]) -> None:
        self._session, self.blocks, self._apart, self._say = session, blocks, apart, say
        self._unused: list[int] = []  # lanes that somebody was in
        self._run_in: dict[int, int] = {}  # lane -> run, where each has its own
        self._over: set[int] = set()  # runs that have ended and still have their room
        self.queued: set[int] = set()  # runs that have no blocks yet
        self._told: set[int] = set()  # of those, the ones whose wait has been explained

    def lane(self) -> int:
        """For the next START: the lowest that nobody is in."""
        if not self._apart:
            return 1
        return self._unused[0] if self._unused else len(self._run_in) + 1

    def take(self, run: int, lane: int) -> None:
        """`run` has begun, in what `lane` has said."""
        if self._apart:
            if lane in self._unused:
                heapq.heappop(self._unused)
            self._run_in[lane] = run

    def ask(self, run: int, tokens: int) -> None:
        """Queue `run` for its blocks."""
        self.blocks.ask(run, tokens)
        self.queued.add(run)

    def has_blocks(self, run: int) -> bool:
        return run not in self.queued

    def in_lane(self, lane: int) -> tuple[int, ...] | None:
        """The blocks that `lane` has, in every slot; None for all of them."""
        if not self._apart or not lane:
            return None
        run = self._run_in.get(lane, 0)
        return () if not run or run in self.queued else self.blocks.of(run)

    def holds(self, run: int) -> bool:
        """Has it its room still, or waits for some?"""
        return run in self._over or run in self.queued

    def ended(self, run: int) -> None:
        """`run` is over."""
        self._over.add(run)

    def given_back(self, read: Callable[[], Iterable[int]]) -> list[int]:
        """Of the runs that are over those whose room has been taken back now.  read: asked, where there are any, for the runs of which
        reads have no verdict.
        """
        if not self._over:
            return []
        gone = [run for run in self._over.difference(read()) if self._is_quiet(run)]
        for run in gone:
            self.blocks.give_back(run)
            self._over.remove(run)
            self.queued.discard(run)
            if self._apart:
                lane = self._session.lanes[run]
                del self._run_in[lane]
                heapq.heappush(self._unused, lane)
        return gone

    def _is_quiet(self, run: int) -> bool:
        return not self._apart or self._session.can_release_lane(self._session.lanes[run])

    def admitted(self) -> list[int]:
        """The runs that have got their blocks now; of each of the others it is said once what it waits for."""
        if not self.queued:
            self._told.clear()
            return []
        new = self.blocks.admitted()
        self.queued.difference_update(new)
        for run in self.queued - self._told:
            self._say(self.blocks.why(run))
        self._told = set(self.queued)
        return new
