"""The real sessions with and without one conjunct, side by side through everything that may happen.

Rules: both Worlds are offered the same moves and take the same move; what leaves a session (effects and messages), what memory
holds and what the oracle says must be equal after every step; the search is exhaustive over the pairs of states.  If the
sessions' own states are equal too, in every pair, the reachable graph is unchanged; otherwise only the machine's own record
differs, and nobody can ever tell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tidegate.protocol.errors import ProtocolError
from tidegate.spec import gen
from tidegate.spec.bounds import Bounds
from tidegate.spec.world import Label, World

__all__ = ["Outcome", "lockstep"]

SESSIONS = 2  # of World.key(): the snapshots of both sessions come first


@dataclass(frozen=True)
class Outcome:
    """pairs: of states explored.  difference: the first thing that somebody could notice, or nothing.
    same: the sessions' states were equal throughout."""

    pairs: int
    difference: str = ""
    same: bool = True


class _Switch:
    """One guard of an imported machine, switched between what it is and what the mutant makes of it."""

    def __init__(self, module: ModuleType, guard: str, source: str) -> None:
        self.module, self.guard = module, guard
        self.real: Callable[..., bool] = getattr(module, guard)
        with gen.installed(module, source):
            self.mutated: Callable[..., bool] = getattr(module, guard)

    def set(self, mutated: bool) -> None:
        setattr(self.module, self.guard, self.mutated if mutated else self.real)


def _step(world: World, label: Label) -> tuple[World, list[Any]]:
    """A copy of the world one step on, and what came out of it."""
    after = world.clone()
    try:
        effects = [type(effect).__name__ for effect in after.apply(label)]
    except (ProtocolError, LookupError) as error:
        effects = [type(error).__name__]
    return after, [*effects, *after.violations()]


def lockstep(bounds: Bounds, module: ModuleType, guard: str, source: str, most: int = 250_000) -> Outcome:
    """Explore both.  source: the module generated from the mutated machine.  More than `most` pairs count as a difference."""
    switch = _Switch(module, guard, source)
    first = World(bounds)
    seen = {(hash(first.key()),) * 2}  # 64 bits each, as TLC does
    todo = deque([(first, first.clone())])
    same = True
    try:
        while todo:
            real, mutant = todo.popleft()
            switch.set(False)
            moves = real.moves()
            after = [_step(real, label) for label in moves]
            switch.set(True)
            others = mutant.moves()
            if moves != others:
                odd = sorted(set(map(str, moves)) ^ set(map(str, others)))
                return Outcome(len(seen), f"{odd[0]} is offered with the conjunct or without it, not both", same)
            for label, (one, out) in zip(moves, after, strict=True):
                two, other_out = _step(mutant, label)
                left, right = one.key(), two.key()
                if out != other_out or left[SESSIONS:] != right[SESSIONS:]:
                    return Outcome(len(seen), f"after {label}: {out} with the conjunct, {other_out} without", same)
                same = same and left == right
                pair = (hash(left), hash(right))
                if pair not in seen:
                    seen.add(pair)
                    todo.append((one, two))
            if len(seen) > most:
                return Outcome(len(seen), f"more than {most} pairs of states", same)
    finally:
        switch.set(False)
    return Outcome(len(seen), "", same)
