"""Small helpers of a Prefill rank's owner: who waits for which step and why, and poison for slots that nobody may read.

Rules: the owner's thread calls everything here; a wait ends by its event, once; each second of it is put down to what it was for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tidegate.engine.prefill_parts import Times
from tidegate.engine.slots import SharedMemory
from tidegate.protocol.messages import TransferId
from tidegate.protocol.prefill import PrefillSession

__all__ = ["Poison", "Waits"]


@dataclass(slots=True)
class _Waiter:
    """The computing thread, which wants to write `step` next."""

    step: TransferId
    for_copies: bool
    woken: threading.Event = field(default_factory=threading.Event)
    since: float = field(default_factory=time.monotonic)


class Waits:
    """Those who wait to write a step."""

    def __init__(self, session: PrefillSession, times: Times) -> None:
        self._session, self._times = session, times
        self._waiters: list[_Waiter] = []

    def begin(self, step: TransferId) -> threading.Event:
        """An event that is set when it is worth asking again."""
        waiter = _Waiter(step, self._for_copies(step))
        self._waiters.append(waiter)
        return waiter.woken

    def end(self, goes_on: Callable[[TransferId], bool]) -> None:
        """Wake those of whose step `goes_on` says yes."""
        for waiter in list(self._waiters):
            self._account(waiter)
            if goes_on(waiter.step):
                self._waiters.remove(waiter)
                waiter.woken.set()
            else:
                waiter.for_copies = self._for_copies(waiter.step)

    def _account(self, waiter: _Waiter) -> None:
        """Put the time since the last look down to what it was waited for."""
        now = time.monotonic()
        if waiter.for_copies:
            self._times.blocked += now - waiter.since
        else:
            self._times.reads += now - waiter.since
        waiter.since = now

    def _for_copies(self, step: TransferId) -> bool:
        """Is it our own load or save that `step` waits for, and not (only) Decode?"""
        slot = self._session.slots[self._session.plan.slot_of(step.layer)]
        return slot.phase in ("free", "loading") or bool(slot.saves)  # free: what it needs is not saved yet


class Poison:
    """Fills slots that became free with NaN (integers with -1), once each time."""

    def __init__(self, session: PrefillSession, memory: SharedMemory) -> None:
        self._session, self._memory = session, memory
        self._done: dict[int, int] = {}

    def free_slots(self) -> None:
        for index, slot in self._session.slots.items():
            if slot.phase == "free" and self._done.get(index) != slot.epoch:
                self._done[index] = slot.epoch
                for area in self._memory.layout.areas_of(index):
                    view = self._memory.view(index, area.name)
                    view.fill_(torch.nan if view.is_floating_point() else -1)
