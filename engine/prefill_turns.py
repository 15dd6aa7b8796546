"""Which prompts of a Prefill give way when others wait for room: turns, so that a long prompt does not keep a short one from its place.

Rules: nobody gives way before it has computed `after` tokens since it got its blocks, so whoever has blocks gets on; who gives way is
resumed at once, and so waits behind those that wait already, and before all that come later; one run a step gives way, of those that can
the one that has computed the most since.  So each is computed, however many there are.  The computing thread calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidegate.engine.prefill_parts import Run

__all__ = ["GivesWay", "PrefillTurns"]


class GivesWay(Protocol):
    """What is needed of the engine."""

    def lacks_blocks(self) -> bool: ...

    def preempt(self, run: int) -> bool: ...

    def resume(self, run: int) -> None: ...


class PrefillTurns:
    """after: tokens; 0: nobody gives way.  chunk_tokens: of a full chunk."""

    def __init__(self, engine: GivesWay, *, after: int, chunk_tokens: int) -> None:
        self._engine, self._after, self._chunk_tokens = engine, after, chunk_tokens

    def gives_way(self, going: Mapping[int, tuple[Run, int]]) -> int | None:
        """Of `going`, (run, next chunk) by its nonce, the one that has given way, if any has: it comes out of `next_run` again."""
        if not self._after:
            return None
        made = {nonce: (chunk - run.chunk) * self._chunk_tokens for nonce, (run, chunk) in going.items()}
        may = sorted((nonce for nonce, tokens in made.items() if tokens >= self._after), key=lambda nonce: -made[nonce])
        if may and self._engine.lacks_blocks():
            for nonce in may:
                if self._engine.preempt(nonce):
                    self._engine.resume(nonce)
                    return nonce
        return None
