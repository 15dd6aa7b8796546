"""Small helpers of a Prefill rank's owner: who waits for which steps and why, and poison for slots that nobody may read.

Rules: the owner's thread calls everything here; a wait ends once; each second of it is put down to what it was for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch

from tidegate.engine.prefill_group import PrefillGroup
from tidegate.engine.prefill_parts import Claimed, RunOver, Times
from tidegate.engine.slots import SharedMemory
from tidegate.protocol.messages import TransferId
from tidegate.protocol.prefill import PrefillSession
from tidegate.protocol.prefill_moves import Gate

__all__ = ["Answers", "Found", "Poison", "Saving", "Waiter", "Waits", "poison_slot"]

Found = Claimed | RunOver
"""Where a step may be written, or why its run is over."""


class Waiter:
    """The computing thread, which wants to know of `steps`, of `enough` of them at least.  A bare lock wakes it: this is done for every
    layer.
    """

    __slots__ = ("_come", "_enough", "_found", "for_copies", "left", "since")

    def __init__(self, steps: Sequence[TransferId], enough: int) -> None:
        self.left, self._enough, self.since, self.for_copies = list(steps), enough, time.monotonic(), False
        self._found: dict[TransferId, Found] = {}
        self._come = threading.Lock()
        self._come.acquire()

    def wait(self) -> dict[TransferId, Found]:
        """What is known of them, once that is enough; less when the engine has failed."""
        self._come.acquire()
        return self._found

    def look(self, found: Callable[[TransferId], Found | None]) -> bool:
        """Ask of those that nothing is known of; is it enough now?"""
        for step in list(self.left):
            if (what := found(step)) is not None:
                self._found[step] = what
                self.left.remove(step)
        return len(self._found) >= self._enough

    def wake(self) -> None:
        self._come.release()


class Waits:
    """Those who wait."""

    def __init__(self, session: PrefillSession | PrefillGroup, times: Times) -> None:
        self._session, self._times = session, times
        self._waiters: list[Waiter] = []

    def begin(self, steps: Sequence[TransferId], enough: int, found: Callable[[TransferId], Found | None]) -> Waiter:
        """found: what is known of a step now; None: nothing yet."""
        waiter = Waiter(steps, enough)
        if waiter.look(found):
            waiter.wake()
        else:
            waiter.for_copies = self._for_copies(waiter)
            self._waiters.append(waiter)
        return waiter

    @property
    def steps(self) -> list[TransferId]:
        """What they want to write, and nothing is known of."""
        return [step for waiter in self._waiters for step in waiter.left]

    def look(self, found: Callable[[TransferId], Found | None]) -> None:
        """Wake those who know enough now."""
        for waiter in list(self._waiters):
            self._account(waiter)
            if waiter.look(found):
                self._waiters.remove(waiter)
                waiter.wake()
            else:
                waiter.for_copies = self._for_copies(waiter)

    def give_up(self) -> None:
        """Wake all: nothing more will be known."""
        for waiter in self._waiters:
            waiter.wake()
        self._waiters.clear()

    def _account(self, waiter: Waiter) -> None:
        """Put the time since the last look down to what it was waited for."""
        now = time.monotonic()
        if waiter.for_copies:
            self._times.blocked += now - waiter.since
        else:
            self._times.reads += now - waiter.since
        waiter.since = now

    def _for_copies(self, waiter: Waiter) -> bool:
        """Is it our own load or save that is waited for, and not (only) Decode?"""
        slots = [self._session.slots[self._session.gate_of(step)] for step in waiter.left]
        return any(slot.phase in ("free", "loading") or slot.saves for slot in slots)  # free: what it needs is not saved yet


class Answers:
    """The reads that READY was said of and that have no verdict yet, and since when."""

    def __init__(self, session: PrefillSession | PrefillGroup) -> None:
        self._session = session
        self._since: dict[TransferId, float] = {}

    def said(self, transfer: TransferId) -> bool:
        """READY is said of it; had it been said before?"""
        again = transfer in self._since
        self._since.setdefault(transfer, time.monotonic())
        return again

    def held(self) -> list[tuple[TransferId, float]]:
        """Each that has no verdict, and when READY was said first of it."""
        self._since = {transfer: since for transfer, since in self._since.items() if self._session.is_held(transfer)}
        return list(self._since.items())

    def runs(self) -> set[int]:
        """Of which runs they are."""
        return {transfer.run for transfer, _ in self.held()}

    def oldest(self, now: float) -> float:
        """Seconds that the oldest of them has waited; 0 if there is none."""
        return max((now - since for _, since in self.held()), default=0.0)


class Saving:
    """The saves that are under way, and who waits for their ends."""

    def __init__(self) -> None:
        self._events: dict[TransferId, list[threading.Event]] = {}

    def begun(self, step: TransferId) -> None:
        self._events[step] = []

    def ended(self, step: TransferId) -> None:
        for event in self._events.pop(step):
            event.set()

    def events(self, chunks: Sequence[tuple[int, int]]) -> list[threading.Event]:
        """One for each save of `chunks`, (run, chunk) each, set when it has ended."""
        found = []
        for step, events in self._events.items():
            if (step.run, step.chunk) in chunks:
                events.append(threading.Event())
                found.append(events[-1])
        return found

    def give_up(self) -> None:
        """Nothing more will end."""
        for step in list(self._events):
            self.ended(step)


class Poison:
    """Fills what became free with NaN (integers with -1), once each time.  fill: does it to what the lane has in the slot; lane 0 is all
    of it.
    """

    def __init__(self, session: PrefillSession | PrefillGroup, fill: Callable[[int, int], None]) -> None:
        self._session, self._fill = session, fill
        self._done: dict[Gate, int] = {}
        for slot in session.plan.slots:
            fill(slot, 0)

    def free_slots(self) -> None:
        for gate, slot in self._session.slots.items():
            if slot.phase == "free" and self._done.get(gate, 0) != slot.epoch:
                self._done[gate] = slot.epoch
                self._fill(*gate)


def poison_slot(memory: SharedMemory, slot: int, blocks: Sequence[int] | None = None) -> None:
    """Fill the rows of `blocks` in `slot`, or every row."""
    for view in memory.views(slot).values():
        value = torch.nan if view.is_floating_point() else -1
        if blocks is None:
            view.fill_(value)
        else:
            view[list(blocks)] = value
