"""Runs of a Prefill rank that were preempted between two chunks: they give their blocks to others, and go on in other blocks later.

Rules: a run is preempted only when its next chunk has no slot yet, and none is taken for it before it is resumed and has blocks again;
its blocks go when each of its reads has its verdict, the pool has every row of its earlier chunks, it has left the slots of its own
(`give_way`), and every gate of its lane is free: so nobody reads or writes there any more, and nothing is lost.  To the protocol what
follows is the load that each chunk begins with.  Should the pool lose what it needs, the run keeps its blocks, and ends as it would have.
Owner's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidegate.engine.prefill_group import PrefillGroup
from tidegate.engine.prefill_parts import Copies, Run
from tidegate.engine.prefill_places import Places
from tidegate.protocol.effects import Effect
from tidegate.protocol.messages import TransferId
from tidegate.protocol.prefill import PrefillSession

__all__ = ["Parking"]


class Parking:
    """execute: carries out what the session says; set `copies` before it is used.  preempted, gave_way, resumed: how often."""

    copies: Copies

    def __init__(self, session: PrefillSession | PrefillGroup, places: Places, execute: Callable[[list[Effect]], None]) -> None:
        self._session, self._places, self._execute = session, places, execute
        self._begun: dict[int, Run] = {}  # that may be preempted: as they were given to the computing thread
        self._leaving: dict[int, bool] = {}  # preempted, and in their blocks still, first come first: have they left their slots?
        self._left: dict[int, TransferId] = {}  # the step before which it left its slots last
        self._parked: dict[int, None] = {}  # they have given way: without blocks
        self._wanted: set[int] = set()  # of both, those that are resumed
        self.preempted = self.gave_way = self.resumed = 0

    def begun(self, run: Run) -> Run:
        """As it is given to the computing thread; from now on it may be preempted."""
        self._begun[run.nonce] = run
        return run

    def preempt(self, run: int) -> bool:
        """It is to give way, and is not computed before `resume`.  False, with nothing changed, where it cannot between these steps: its
        next chunk is its first, or has its slot already, or the run is over.  ValueError for one that is preempted.
        """
        if run in self._leaving or run in self._parked:
            raise ValueError(f"run {run} is preempted: it comes out of next_run again after resume")
        if run not in self._begun or self._session.run_state(run).phase != "running":
            return False
        step = self._session.step_of(run)
        if step.layer > 1 or step.chunk == 1 or self._session.has_claimed(step):
            return False
        self._leaving[run] = self._has_left(run)
        self.preempted += 1
        return True

    def _has_left(self, run: int) -> bool:
        """Was it resumed, and has not gone on since?  Then it has no slots to leave."""
        return self._left.get(run) == self._session.step_of(run)

    def resume(self, run: int) -> None:
        """It is to go on as soon as there is room for it.  Nothing if it is over; ValueError for one that is not preempted."""
        if run in self._leaving or run in self._parked:
            self._wanted.add(run)
        elif run in self._begun:
            raise ValueError(f"run {run} is not preempted: only what `preempt` named can be resumed")

    def forget(self, run: int) -> None:
        """It is over."""
        self._begun.pop(run, None)
        self._left.pop(run, None)
        self._leaving.pop(run, None)
        self._parked.pop(run, None)
        self._wanted.discard(run)

    def look(self, read: Callable[[], Iterable[int]]) -> list[Run]:
        """Have those give way that can now; those that go on where they are, for the pool has lost what they would load.  read: asked,
        where there are any, for the runs of which reads have no verdict.
        """
        if not self._leaving:
            return []
        stay, held = [], set(read())
        for run in list(self._leaving):
            if not self._leaving[run] and self._session.can_give_way(run):
                self._leaving[run], self._left[run] = True, self._session.step_of(run)
                self._execute(self._session.give_way(run))
            if self._leaving[run] and run not in held and self._places.may_give_way(run):
                del self._leaving[run]
                self._parked[run] = None
                self._places.give_way(run)
                self.gave_way += 1
            elif not self._leaving[run] and run in self._wanted and self._session.has_lost(run):
                stay.append(self._back(run, self._begun[run].blocks))
        return stay

    def ask(self) -> bool:
        """Queue those that are resumed for blocks; was there any?  Called when those who waited have had their choice."""
        due = [run for run in self._parked if run in self._wanted and run not in self._places.queued]
        for run in due:
            self._places.ask(run, self._begun[run].start.tokens)
        return bool(due)

    def returned(self, run: int, blocks: Sequence[int]) -> Run | None:
        """`run` has these blocks now: as it goes on, if it is one of those here."""
        if run not in self._parked:
            return None
        self.copies.move(run, tuple(blocks))
        return self._back(run, tuple(blocks))

    def _back(self, run: int, blocks: tuple[int, ...]) -> Run:
        self._leaving.pop(run, None)
        self._parked.pop(run, None)
        self._wanted.discard(run)
        self.resumed += 1
        self._begun[run] = self._begun[run]._replace(blocks=blocks, chunk=self._session.step_of(run).chunk)
        return self._begun[run]
