"""Which runs make the next step of a Prefill: as many as are ready and fit, first come, first served.

Rules: a run is here from the moment that it has its blocks until its last chunk is computed, it has failed, or it gives way; at most
`engine.lanes` are here at once; the first of those that are ready is always in the next step, so each is when those before it have gone;
a step has at most `tokens` tokens to compute, or one chunk.  The computing thread calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tidegate.engine.prefill_parts import Run, RunOver
from tidegate.engine.prefill_turns import GivesWay, PrefillTurns

__all__ = ["Batches", "Runs"]

Parts = list[tuple[Run, int]]


class Runs(GivesWay, Protocol):
    """What is needed of the engine."""

    lanes: int

    def next_run(self, *, wait: bool = True) -> Run | None: ...

    def ready(self, parts: Sequence[tuple[Run, int]]) -> list[bool]: ...


class Batches:
    """tokens: to be computed in one step of several runs; chunk_tokens: of a full chunk; after: tokens of a run that gives way to those
    that wait (`PrefillTurns`), 0 for never.
    """

    def __init__(self, engine: Runs, *, tokens: int, chunk_tokens: int, after: int = 0) -> None:
        self._turns = PrefillTurns(engine, after=after, chunk_tokens=chunk_tokens)
        self._engine, self._tokens, self._chunk_tokens = engine, tokens, chunk_tokens
        self._going: dict[int, tuple[Run, int]] = {}  # by the run's nonce: it, and its next chunk

    def next_step(self) -> Parts | None:
        """(run, chunk) of each; blocks until there is one; None when the engine was stopped and every run has been computed."""
        if (gave := self._turns.gives_way(self._going)) is not None:
            del self._going[gave]
        while len(self._going) < self._engine.lanes:
            run = self._engine.next_run(wait=not self._going)
            if run is None and not self._going:
                return None
            if run is None:
                break
            self._going[run.nonce] = run, run.chunk
        going = list(self._going.values())
        if len(going) > 1:
            going = [part for part, ready in zip(going, self._engine.ready(going), strict=True) if ready]
        return self._fitting(going)

    def _fitting(self, going: Parts) -> Parts:
        parts, left = going[:1], self._tokens - self._cost(*going[0])
        for part in going[1:]:
            if (cost := self._cost(*part)) <= left:
                parts.append(part)
                left -= cost
        return parts

    def _cost(self, run: Run, chunk: int) -> int:
        """Tokens to compute."""
        first, end = (chunk - 1) * self._chunk_tokens, min(chunk * self._chunk_tokens, run.start.tokens)
        return max(0, end - max(first, run.backed))

    def computed(self, parts: Parts, over: Mapping[int, RunOver]) -> None:
        """The step is over; over: the runs of it that have failed."""
        for run, chunk in parts:
            if run.nonce in over or chunk == run.chunks:
                del self._going[run.nonce]
            else:
                self._going[run.nonce] = run, chunk + 1
