"""Small helpers of a Prefill rank's owner: who waits for which step and why, and poison for slots that nobody may read.

Rules: the owner's thread calls everything here; a wait ends once; each second of it is put down to what it was for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from tidegate.engine.prefill_group import PrefillGroup
from tidegate.engine.prefill_parts import Claimed, Times
from tidegate.engine.slots import SharedMemory
from tidegate.protocol.messages import TransferId
from tidegate.protocol.prefill import PrefillSession

__all__ = ["Poison", "Waiter", "Waits", "poison_slot"]


class Waiter:
    """The computing thread, which wants to write `step` next.  A bare lock wakes it: this is done for every layer."""

    __slots__ = ("_come", "_found", "for_copies", "since", "step")

    def __init__(self, step: TransferId, for_copies: bool) -> None:
        self.step, self.for_copies, self.since = step, for_copies, time.monotonic()
        self._found: Claimed | None = None
        self._come = threading.Lock()
        self._come.acquire()

    def wait(self) -> Claimed | None:
        """Where the step may be written, once it may; None when it is worth asking what has happened."""
        self._come.acquire()
        return self._found

    def wake(self, found: Claimed | None) -> None:
        self._found = found
        self._come.release()


class Waits:
    """Those who wait to write a step."""

    def __init__(self, session: PrefillSession | PrefillGroup, times: Times) -> None:
        self._session, self._times = session, times
        self._waiters: list[Waiter] = []

    def begin(self, step: TransferId) -> Waiter:
        waiter = Waiter(step, self._for_copies(step))
        self._waiters.append(waiter)
        return waiter

    @property
    def steps(self) -> list[TransferId]:
        """What they want to write."""
        return [waiter.step for waiter in self._waiters]

    def end(self, goes_on: Callable[[TransferId], bool], claimed: Callable[[TransferId], Claimed | None]) -> None:
        """Wake those of whose step `goes_on` says yes, with what `claimed` says of it."""
        for waiter in list(self._waiters):
            self._account(waiter)
            if goes_on(waiter.step):
                self._waiters.remove(waiter)
                waiter.wake(claimed(waiter.step))
            else:
                waiter.for_copies = self._for_copies(waiter.step)

    def _account(self, waiter: Waiter) -> None:
        """Put the time since the last look down to what it was waited for."""
        now = time.monotonic()
        if waiter.for_copies:
            self._times.blocked += now - waiter.since
        else:
            self._times.reads += now - waiter.since
        waiter.since = now

    def _for_copies(self, step: TransferId) -> bool:
        """Is it our own load or save that `step` waits for, and not (only) Decode?"""
        slot = self._session.slots[self._session.gate_of(step)]
        return slot.phase in ("free", "loading") or bool(slot.saves)  # free: what it needs is not saved yet


class Poison:
    """Fills slots that became free with NaN (integers with -1), once each time.  fill: does it to a slot."""

    def __init__(self, session: PrefillSession | PrefillGroup, fill: Callable[[int], None]) -> None:
        self._session, self._fill = session, fill
        self._done: dict[int, int] = {}

    def free_slots(self) -> None:
        for (index, _), slot in self._session.slots.items():  # one lane: the slot is free when its gate is
            if slot.phase == "free" and self._done.get(index) != slot.epoch:
                self._done[index] = slot.epoch
                self._fill(index)


def poison_slot(memory: SharedMemory, slot: int) -> None:
    """Fill every row of `slot`."""
    for view in memory.views(slot).values():
        view.fill_(torch.nan if view.is_floating_point() else -1)
