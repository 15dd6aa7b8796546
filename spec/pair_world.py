"""One Prefill rank and one Decode rank, as the engine drives their sessions: what real processes can reach, decided by walking it.

Rules: a World with less: whatever is left out is what the engine never asks, and the reason stands beside it; nothing is left out
because it is rare, so an edge that is not walked here is one that no pair of processes walks, and real ones are held to that
(`coverage`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from tidegate.protocol.messages import TransferId
from tidegate.spec.bounds import Bounds
from tidegate.spec.labels import Label
from tidegate.spec.oracle import T
from tidegate.spec.walks import mixed_bounds
from tidegate.spec.world import World

__all__ = ["PairWorld", "pair_bounds"]


def pair_bounds(rng: random.Random) -> Bounds:
    """As `mixed_bounds`, of one rank a side."""
    return replace(mixed_bounds(rng), members=1, decode_ranks=1, indexer_blocks=1)


class PairWorld(World):
    """Of one member."""

    def moves(self) -> list[Label]:
        """What is complete is scheduled in the very call that completed it."""
        due = [("Schedule", a) for a in self.block if a not in self.oracle.finished and self.decode.can_schedule(a)]
        return due or super().moves()

    def worker(self) -> Iterator[Label]:
        attending = {cast(T, x[1]) for x in self.io if x[0] == "attend"}
        lanes = {self.lane[t[0]] for t in attending}
        for label in super().worker():
            run = label[2]
            if label[0] == "Write" and self.lane[run] in lanes:
                continue  # one thread computes: the owner hears that an attention has ended before it is asked to write again
            if label[0] == "Claim" and not self._at_once(run, attending):
                continue
            yield label

    def _at_once(self, run: int, attending: set[T]) -> bool:
        """A claim ahead is made in the very call that wrote, where it can be; and of its own slot a run can always take it."""
        step = self.prefill.step_of(run)
        mine = {t for t in attending if t[0] == run and t[2] == step.layer}  # an earlier chunk's
        if not mine or self.plan.is_shared(step.layer):
            return True
        saved = {x[1] for x in self.io if x[0] == "save"}
        return mine <= saved and all(self.prefill.is_held(TransferId(*t)) for t in mine)

    def faults(self) -> Iterator[Label]:
        """Nobody tells a session what the pool evicts: the engine's pool holds what an open run may load, or the load fails."""
        return (label for label in super().faults() if label[0] != "Evict")
