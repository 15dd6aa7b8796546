"""When the engines have their sessions forget what is over, and repeat what asks for it.

Rules: the owner's thread calls everything here; a run is forgotten only when its blocks are given back and nobody is told of it any
more; what has to be said until it is answered is said after one interval, then after two, four, ... up to LONGEST, for nobody is kept
waiting by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tidegate.engine.prefill_group import PrefillGroup
from tidegate.protocol.effects import Effect
from tidegate.protocol.prefill import PrefillSession

__all__ = ["LONGEST", "Again", "RunsOver"]

LONGEST = 30.0

K = TypeVar("K")


class Again(Generic[K]):
    """What has to be said again, and when.  first: seconds to the first repetition."""

    def __init__(self, first: float) -> None:
        self._first = first
        self._due: dict[K, tuple[float, float]] = {}  # when, and how long after that

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: K) -> None:
        """It has just been said for the first time, or is about to be."""
        self._due.setdefault(key, (time.monotonic() + self._first, 2 * self._first))

    def keep(self, needed: Callable[[K], bool]) -> None:
        """Drop those that need not be said any more."""
        self._due = {key: due for key, due in self._due.items() if needed(key)}

    def due(self) -> Iterator[K]:
        """Those whose time has come; each is due again later."""
        now = time.monotonic()
        for key, (when, wait) in list(self._due.items()):
            if now >= when:
                self._due[key] = (now + wait, min(2 * wait, LONGEST))
                yield key


class RunsOver:
    """The runs of a Prefill session that are over.  execute: carries out effects; forgotten: told of each run."""

    def __init__(
        self, session: PrefillSession | PrefillGroup, resend_seconds: float, execute: Callable[[list[Effect]], None],
        forgotten: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._session, self._execute, self._forgotten = session, execute, forgotten
        self._failed: Again[int] = Again(resend_seconds)
        self._retired: set[int] = set()

    def failed(self, run: int) -> None:
        """It has failed: Decode is told until it has retired the attempt."""
        self._failed.add(run)

    def retired(self, attempt: int) -> None:
        """RETIRE of this attempt has come."""
        self._retired |= {run for run, state in self._session.runs.items() if state.attempt == attempt}

    def lost(self) -> None:
        """The life of Decode that asked for some of them is lost."""
        self._retired |= {run for run, state in self._session.runs.items() if state.retired}

    def look(self, busy: Callable[[int], bool]) -> None:
        """Forget whom nobody will ask about; busy: has it still blocks, or waits it for some?"""
        for run in list(self._retired):
            if not busy(run) and self._session.can_forget(run):
                self._execute(self._session.forget(run))
                self._retired.remove(run)
                self._forgotten(run)

    def tick(self) -> None:
        """Say again which runs failed."""
        self._failed.keep(self._session.is_untold)
        for run in self._failed.due():
            self._execute(self._session.resend_failed(run))
