"""Attempts that were preempted on a Decode rank: they have their blocks and no row, until one is free for them.

Rules: to the session nothing happens, the attempt stays scheduled; its reader is nobody's while it is parked, so that no step can name
it; where it goes on nothing is hot.  Owner's thread only.
"""

from __future__ import annotations

from tidegate.engine.decode_hands import DecodeHands
from tidegate.engine.decode_memory import DecodeMemory
from tidegate.engine.hot_buffer import Reader

__all__ = ["Parking"]


class Parking:
    """readers: of the attempts that have a row, attempt -> its reader; hands: the other ranks, if there are any; preempted, resumed: how
    often.
    """

    hands: DecodeHands | None = None

    def __init__(self, memory: DecodeMemory, readers: dict[int, Reader]) -> None:
        self._memory, self._readers = memory, readers
        self._parked: dict[int, Reader] = {}
        self.preempted = self.resumed = 0

    def park(self, attempt: int) -> None:
        """Its row goes to whoever waits for one.  KeyError for an attempt that has no reader."""
        self._parked[attempt] = self._readers.pop(attempt)
        self._memory.park(attempt)
        self.preempted += 1
        if self.hands is not None:
            self.hands.park(attempt)

    def ask(self, attempt: int) -> None:
        """Have it wait for a row; again does nothing.  KeyError for one that is not parked."""
        if attempt not in self._parked:
            raise KeyError(f"attempt {attempt} is not preempted: only what `preempt` named, and not `finish`, can be resumed")
        self._memory.unpark(attempt)

    def returned(self) -> list[int]:
        """Those that have a row again now."""
        new = self._memory.unparked()
        self.resumed += len(new)
        for one in new:
            self._readers[one.attempt] = reader = self._parked.pop(one.attempt)
            reader.move(one.row)
            if self.hands is not None:
                self.hands.unpark(one)
        return [one.attempt for one in new]

    def forget(self, attempt: int) -> None:
        """It is over; nothing if it is not parked."""
        self._parked.pop(attempt, None)
