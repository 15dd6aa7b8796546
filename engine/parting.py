"""The Prefills that have ended, as a Decode's session hears of them.

Rules: the owner's thread calls everything here; an end that concerns an attempt is told at once, any other when the next Prefill comes,
for none comes after the last one, and then nothing has happened; what was read of one that has ended has failed, and its attempts
are aborted, so that others that may have had the same START hear of it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidegate.engine.control import public_name

if TYPE_CHECKING:
    from tidegate.engine.decode_core import DecodeCore

__all__ = ["Partings"]

log = logging.getLogger(__name__)


class Partings:
    """Of one core.  deserted: attempts that failed because the Prefill that served them has ended; until they are forgotten."""

    def __init__(self, core: DecodeCore) -> None:
        self._core = core
        self._untold: list[int] = []
        self.deserted: set[int] = set()

    def look(self) -> None:
        """Let go of those whose process has ended."""
        for life in self._core.peers.gone():
            self._part(life)

    def met(self) -> None:
        """Another Prefill has come."""
        if self._untold:
            self._core.execute(self._core.session.prefill_gone(*self._untold))
            self._untold.clear()

    def _part(self, life: int) -> None:
        core = self._core
        core.peers.leave(life)
        log.warning("Prefill %s is gone", public_name(life))
        if core.hands is not None:
            core.hands.left(life)
        due = core.session.may_hear(life)
        for attempt in core.session.depends_on(life):
            self.deserted.add(attempt)
            core.abort(attempt, f"Prefill {public_name(life)}, which served it, is gone")
        self._untold.append(life)
        if due:
            self.met()
