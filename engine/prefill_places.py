"""Who has which room on a Prefill rank: the blocks of a run, and its lane, whose gates say when they may be written.

Rules: a run has its lane from START, its blocks before it is computed, and both until it is over, each of its reads has its verdict, and,
where each run has a lane of its own, every gate of that lane is free: for then its blocks go to a run of another lane, whose gates know
nothing of what is still read or saved there; a run that has given way between two chunks keeps its lane, and has no blocks until it goes
on.  A run that begins has room for all that it saves in the pool, too; where there is none, those that have begun go before it, for
they are what it waits for, and nobody that is new does.  Owner's thread only.
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
    say: told what runs wait for.  reserve: has a run of so many tokens room in the pool (`Copies.reserve`)?
    """

    def __init__(
        self, session: PrefillSession | PrefillGroup, blocks: BlockAllocator, *, apart: bool, say: Callable[[str], None],
        reserve: Callable[[int, int], bool],
    ) -> None:  # fmt: skip
        self._session, self.blocks, self._apart, self._say, self._reserve = session, blocks, apart, say, reserve
        self._unused: list[int] = []  # lanes that somebody was in
        self._run_in: dict[int, int] = {}  # lane -> run, where each has its own
        self._over: set[int] = set()  # runs that have ended and still have their room
        self.queued: set[int] = set()  # runs that have no blocks yet
        self._told: set[int] = set()  # of those, the ones whose wait has been explained
        self._begun: set[int] = set()  # runs that have, or had, blocks
        self._given_way: set[int] = set()  # of those, the ones that have none and do not ask for any
        self._no_pool: set[int] = set()  # runs that could have blocks, and have no room in the pool

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
        self._given_way.discard(run)

    def has_blocks(self, run: int) -> bool:
        return run not in self.queued and run not in self._given_way

    def may_give_way(self, run: int) -> bool:
        """May its blocks go to others, as far as its lane is concerned?  They may in the only lane, whose gates all runs go through."""
        return not self._apart or self._session.can_release_lane(self._session.lanes[run], given_way=run)

    def give_way(self, run: int) -> None:
        """Its blocks are anybody's; it has some again when it asks."""
        self.blocks.give_back(run)
        self._given_way.add(run)

    def lacks_blocks(self) -> bool:
        """Does anybody wait for blocks, and for nothing else?"""
        return bool(self.queued - self._no_pool)

    def why(self, run: int) -> str:
        """What a queued run waits for."""
        if run in self._no_pool:
            return f"run {run} waits for room in the host pool, which the runs that have begun may need for what they save"
        return self.blocks.why(run)

    def in_lane(self, lane: int) -> tuple[int, ...] | None:
        """The blocks that `lane` has, in every slot; None for all of them."""
        if not self._apart or not lane:
            return None
        run = self._run_in.get(lane, 0)
        return self.blocks.of(run) if run and self.has_blocks(run) else ()

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
            for runs in (self._over, self.queued, self._begun, self._given_way, self._no_pool):
                runs.discard(run)
            if self._apart:
                lane = self._session.lanes[run]
                del self._run_in[lane]
                heapq.heappush(self._unused, lane)
        return gone

    def _is_quiet(self, run: int) -> bool:
        return not self._apart or self._session.can_release_lane(self._session.lanes[run])

    def admitted(self) -> list[int]:
        """The runs that have got their blocks now; of each of the others it is said once what it waits for."""
        self._no_pool.clear()
        if not self.queued:
            self._told.clear()
            return []
        new = self.blocks.admitted(may=self._has_pool)
        self.queued.difference_update(new)
        self._begun.update(new)
        for run in self.queued - self._told:
            self._say(self.why(run))
        self._told = set(self.queued)
        return new

    def _has_pool(self, run: int, tokens: int) -> bool:
        if run in self._begun or (not self._no_pool and self._reserve(run, tokens)):
            return True
        self._no_pool.add(run)
        return False
