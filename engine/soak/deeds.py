"""What is done to running servers, from outside: kill, stop, cut, and another client of the pool that fills it.

Rules: which deeds a round sees, on whom and when, is drawn from the seed before the round begins; a deed undoes itself, so that after
the round everything must come to rest.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
from collections.abc import Collection

import msgspec

from tidegate.engine.pool_interface import Answer
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.soak.fleet import ROLES, Fleet
from tidegate.engine.soak.kinds import KINDS, Life
from tidegate.engine.soak.processes import cut
from tidegate.engine.soak.strangers import Strangers

__all__ = ["Deed", "Deeds", "draw_deeds"]

MOST = 3


class Deed(msgspec.Struct, frozen=True):
    """kind: of KINDS; role: whom it strikes, "pool" for the pool, "everybody" for all; at: seconds after the round began; seconds: how
    long it lasts; seed: of what it draws.
    """

    kind: str
    role: str
    at: float
    seconds: float
    seed: int = 0

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.1f} s" if self.kind in ("stop", "full", "strangers") else ""
        return f"{self.kind} {self.role} at {self.at:.1f} s{lasts}"


def draw_deeds(draw: random.Random, faults: Collection[str]) -> list[Deed]:
    """Of one round, in order; often none."""
    kinds = [name for name in faults if KINDS[name].deed]
    count = draw.choice((0, 1, 1, 2, MOST)) if kinds else 0
    deeds = []
    for kind in [draw.choice(kinds) for _ in range(count)]:
        role = "pool" if kind in ("evict", "full") else "everybody" if kind == "strangers" else draw.choice(ROLES)
        at, seconds = draw.uniform(0.0, 3.0), draw.uniform(0.1, 2.0) * (3 if kind == "strangers" else 1)
        at, seconds = draw.uniform(0.0, 3.0), draw.uniform(0.1, 2.0) * (3 if kind == "strangers" else 1)
        deeds.append(Deed(kind, role, at, seconds, draw.getrandbits(32)))
    return sorted(deeds, key=lambda deed: deed.at)


class Deeds:
    """Does them.  spare: extents of the pool that eviction leaves to whoever needs them now."""

    def __init__(self, fleet: Fleet, pool: LocalPool, *, spare: int) -> None:
        self._fleet, self._pool, self._spare = fleet, pool, spare
        self._strangers = Strangers(fleet.ports, lambda: fleet.pid("prefill"))

    async def carry_out(self, life: Life, deeds: list[Deed]) -> None:
        """All of one round, each at its time, or as soon as the one before is over."""
        began = asyncio.get_running_loop().time()
        for deed in deeds:
            await asyncio.sleep(began + deed.at - asyncio.get_running_loop().time())
            match deed.kind:
                case "kill":
                    await self._kill(life, deed)
                case "stop":
                    await self._stop(deed)
                case "cut":
                    cut(self._fleet.pid(deed.role))
                case "strangers":
                    self._strangers.digest = life.config.slot_layout().digest
                    await self._strangers.come(deed.seed, deed.seconds)
                case "evict" | "full":
                    await self._fill(deed)

    async def _kill(self, life: Life, deed: Deed) -> None:
        """One process alone: the others go on, and serve the one that comes in its place."""
        self._fleet.kill(deed.role)
        await self._fleet.start(life, [deed.role])

    async def _stop(self, deed: Deed) -> None:
        self._fleet.signal(deed.role, signal.SIGSTOP)
        try:
            await asyncio.sleep(deed.seconds)
        finally:
            self._fleet.signal(deed.role, signal.SIGCONT)

    async def _fill(self, deed: Deed) -> None:
        """Allocate, which evicts what is not pinned; and give back, at once or after a while."""
        held: list[bytes] = []
        spare = 0 if deed.kind == "full" else self._spare
        try:
            while (stats := self._pool.stats())["free"] + stats["evictable"] > spare:
                key = secrets.token_bytes(32)
                if self._pool.allocate([key], [1]) != [Answer.NEW]:
                    break
                held.append(key)
            if deed.kind == "full":
                await asyncio.sleep(deed.seconds)
        finally:
            self._pool.remove(held)
