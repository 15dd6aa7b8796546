"""One read of a Decode rank, from its READY to the backend's end event.

Rules: a READY that does not fit is a read that failed quietly; a read that failed is begun again only when its copy has stopped, while its
attempt still wants it, and as often as was allowed: to the protocol that is one read, and its transfer is held all the while; what may
have been overwritten meanwhile is not believed, for COMMITTED is asked for as ever.  Owner's thread only.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from tidegate.engine.copying import Outcome, Work
from tidegate.engine.decode_checks import kind_of
from tidegate.engine.decode_peer import peer_name
from tidegate.engine.pull_shm import Part
from tidegate.engine.tracing import labels
from tidegate.protocol.messages import Ready

if TYPE_CHECKING:
    from tidegate.engine.decode_core import DecodeCore

__all__ = ["OneRead"]


class OneRead:
    """The pull that `ready` asks for.  retries: further tries after the first."""

    def __init__(self, core: DecodeCore, ready: Ready, retries: int) -> None:
        self._core, self._ready, self._left, self._reported = core, ready, retries, False
        self._parts: list[Part] = []

    def begin(self) -> None:
        """Begin it, or say at once, quietly, why it cannot be."""
        core, ready = self._core, self._ready
        core.reading[ready.transfer] = time.monotonic()
        try:
            self._parts = core.peers.parts(ready, core.memory.owned[ready.attempt], len(core.wanted[ready.attempt].prompt))
        except ValueError as error:
            self._told(Outcome(False, True, str(error)))
            return
        if self._parts:
            self._copy()
        else:  # all of it is other ranks' to send: that is an outcome, and it is acknowledged
            self._told(Outcome(True, True))

    def _copy(self) -> None:
        core, ready = self._core, self._ready
        if core.hands is not None and (rank := core.peers.topology.d_rank(ready.transfer.member)):
            core.hands.read(rank, ready, self._parts, self._told)
            return
        work = Work(ready.slot, ready.epoch, labels(ready.transfer))
        core.backend.submit(peer_name(ready.incarnation, ready.transfer.member), self._parts, work, self._told)

    def _told(self, outcome: Outcome) -> None:
        self._core.post(partial(self._ended, outcome))

    def _ended(self, outcome: Outcome) -> None:
        if self._again(outcome):
            return
        core, transfer = self._core, self._ready.transfer
        if outcome.stopped:
            core.reading.pop(transfer, None)
        first, self._reported = not self._reported, True
        if first:
            how = "ok" if outcome.ok else "quiet" if outcome.stopped else "unknown"
            for part in self._parts if outcome.ok else ():
                core.pulled[kind_of(part.region)] += part.total
            core.execute(core.session.read_end(transfer, how, outcome.reason))
        elif outcome.stopped:
            core.execute(core.session.landed(transfer))

    def _again(self, outcome: Outcome) -> bool:
        """Begin once more where that is allowed."""
        core, ready = self._core, self._ready
        failed = not outcome.ok and outcome.stopped and not self._reported
        if not (failed and self._parts and self._left and core.session.can_abort(ready.attempt)):
            return False
        core.read_again(ready, self._left, outcome.reason)
        self._left -= 1
        self._copy()
        return True
