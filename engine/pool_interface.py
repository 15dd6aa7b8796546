"""What a Prefill host KV pool is, whatever keeps the bytes.

Rules: a key is written once, and one that exists is an answer, not an error; an object is readable only after `finish`, and only
if every layer of it was saved in full; a miss is an answer too, and a success no promise to be readable later: pin before you
read; calls take many keys at once, in the order of the prefix that they make up.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

from tidegate.engine.copying import OnOutcome, Work
from tidegate.kernels.copy import Offsets

__all__ = ["Answer", "Pool", "PoolError"]


class PoolError(OSError):
    """The pool cannot do what was asked; the message says which object, why, and what can be done."""


class Answer(StrEnum):
    """What `allocate` found.  NEW: yours to write.  STORED: readable already.  BUSY: another is writing it, or it is on its way
    out.  FULL: there is no room, and nothing that could be evicted."""

    NEW = "new"
    STORED = "stored"
    BUSY = "busy"
    FULL = "full"


class Pool(Protocol):
    """Objects of up to `layout.rows` rows, all layers together; any thread may call.  Copies end on a thread of the pool's own."""

    def lookup(self, keys: Sequence[bytes]) -> int:
        """How many of `keys`, from the first on, are readable now."""

    def allocate(self, keys: Sequence[bytes], rows: Sequence[int], *, pin: bool = False) -> list[Answer]:
        """Begin objects of so many rows, evicting what is unused for longest where room is short; those STORED are pinned if
        `pin`.  PoolError where a stored one has another number of rows."""

    def save(self, keys: Sequence[bytes], layer: int, memory: Any, offsets: Offsets, work: Work, on_outcome: OnOutcome) -> None:
        """Copy a layer's rows into objects that this process allocated; no byte for those that it has pinned (they are stored).

        offsets: [keys, areas of the layer], where in `memory` the first row of each area lies, in bytes.  The memory stays as it
        is until the outcome has `stopped`.  PoolError or ValueError, with nothing queued, where it cannot be; a failure later
        spoils the objects for good.
        """

    def finish(self, keys: Sequence[bytes], *, pin: bool = False) -> None:
        """Make them readable (and pinned), all or none; PoolError unless every layer of each was saved."""

    def pin(self, keys: Sequence[bytes]) -> int:
        """Keep readable objects from eviction until `unpin`; how many, from the first on up to the first miss.

        A pin ends by itself after some minutes in which nothing was loaded under it; loads then fail, and read nothing wrong.
        """

    def unpin(self, keys: Sequence[bytes]) -> None:
        """Take back one pin of each; PoolError, with nothing done, where there is none."""

    def load(self, keys: Sequence[bytes], layer: int, memory: Any, offsets: Offsets, work: Work, on_outcome: OnOutcome) -> None:
        """Copy a layer's rows out of pinned objects into `memory`; as `save`."""

    def evict(self, keys: Sequence[bytes]) -> list[bool]:
        """Drop readable objects that nobody has pinned; False for the others."""

    def remove(self, keys: Sequence[bytes]) -> None:
        """Drop objects in whatever state, as soon as no copy and no pin needs them.  Absent already: nothing."""

    def stats(self) -> dict[str, int]:
        """Counts, for reports and metrics."""

    def close(self) -> None:
        """Wait for the copies and give everything back.  Again does nothing."""
