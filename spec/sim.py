"""A seeded simulation of the real sessions, with every fault, at sizes that no model checker reaches.

Rules: a seed decides everything (sizes, faults, order), whatever PYTHONHASHSEED; after each step the oracle is asked what went
wrong; each World ends without faults and must come to rest with nothing held and every waiter with its verdict; a failure
prints seed, bounds, the latest steps and the command that repeats it.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from tidegate.protocol.errors import ProtocolError
from tidegate.spec.bounds import FAULTS, Bounds
from tidegate.spec.rest import at_rest, waiting
from tidegate.spec.world import Label, World

__all__ = ["Outcome", "random_bounds", "simulate"]

STEPS_PER_WORLD = 1500
PATIENCE = 20_000
SLOW = (
    "LayerDone", "SaveEnd", "LoadEnd", "ReadEnd", "Landed", "Deliver", "Write", "Claim", "Registered", "Finish", "OrphanEnd", "PeerFenced",
)  # fmt: skip
RARE = {"Abort": 0.02, "Evict": 0.05, "Revoke": 0.05, "Lose": 0.1, "CrashDecode": 0.01, "CrashPrefill": 0.01}
FAILING = {"Deliver": (True,), "SaveEnd": (False,), "LoadEnd": (False,), "ReadEnd": ("quiet", "unknown")}


@dataclass
class Outcome:
    """steps: protocol steps taken; digest: of every label, so equal runs have equal digests; wrong: empty if all was well."""

    steps: int = 0
    worlds: int = 0
    digest: str = ""
    operations: dict[str, int] = field(default_factory=dict)
    wrong: str = ""


def random_bounds(rng: random.Random) -> Bounds:
    """A size and a budget for each fault; one World in three has read_lease."""
    members = rng.choice((1, 1, 2, 4))
    layers = rng.choice((1, 2, rng.randint(1, 8), rng.randint(1, 8))) if members == 1 else rng.randint(1, 4)
    sharing = rng.choice((0.0, 0.5, 0.75, 1.0))
    shared = frozenset(layer for layer in range(1, layers + 1) if rng.random() < sharing)
    lease = rng.random() < 0.33
    attempts, chunks = rng.randint(1, 6), rng.randint(1, 4)
    fail, unknown, save, load, evict, abort = (rng.choice((0, 0, 1, 3)) for _ in range(6))
    retiring = rng.random() < 0.5
    return Bounds(
        layers=layers, shared=shared, shared_slots=rng.randint(1, 3) if shared else 0, chunks=chunks, runs=2 * attempts,
        attempts=attempts, blocks=rng.randint(1, 3), read_lease=lease, loss=rng.choice((0, 3, 20)), dup=rng.choice((0, 3, 20)),
        revoke=rng.choice((1, 4)) if lease else 0, prompts=tuple(rng.randint(1, chunks) for _ in range(attempts)),
        members=members, lanes=rng.randint(1, 3), indexer_blocks=rng.randint(1, 6),
        fail=fail, unknown=unknown, save=save, load=load, evict=evict, abort=abort, retiring=retiring,
        crash_decode=rng.choice((0, 0, 0, 1, 2)) if retiring else 0, crash_prefill=rng.choice((0, 0, 0, 1, 2)) if retiring else 0,
    )  # fmt: skip


def simulate(
    steps: int,
    seed: int,
    *,
    faults: Collection[str] = FAULTS,
    world: Callable[[Bounds], World] = World,
    sizes: Callable[[random.Random], Bounds] = random_bounds,
    told: Callable[[Outcome], object] = lambda o: None,
) -> Outcome:
    """At least `steps` steps over as many Worlds as it takes; stops at the first thing that is wrong.

    faults: those that may strike (names of `bounds.FAULTS`).  sizes: draws each World's bounds.  told: is called
    after each World; if it answers True, that is enough.
    """
    spared = dict.fromkeys(set(FAULTS) - set(faults), 0)
    option = f" --faults {','.join(f for f in FAULTS if f in faults) or 'none'}" if spared else ""
    out, sha, number = Outcome(), hashlib.blake2b(digest_size=16), 0
    enough = False
    while out.steps < steps and not out.wrong and not enough:
        rng = random.Random(f"{seed}/{number}")
        bounds = replace(sizes(rng), **spared)  # type: ignore[arg-type]  # the names are those of budgets
        recent: deque[Label] = deque(maxlen=12)
        wrong = _one(world(bounds), rng, _rates(rng), out, sha.update, recent)
        if wrong:
            story = "\n".join(f"    {label}" for label in recent)
            repeat = f"tidegate sim --seed {seed} --steps {out.steps}{option}"
            out.wrong = f"{wrong}\n  world {number} of seed {seed}: {bounds}\n  the latest steps:\n{story}\n  again: {repeat}"
        number += 1
        out.worlds = number
        enough = told(out) is True
    out.digest = sha.hexdigest()
    return out


def _rates(rng: random.Random) -> dict[str, float]:
    """How readily each operation is taken when it is met: in each World other devices are slow, so that other things overlap."""
    rates = {op: 0.05 for op in SLOW if rng.random() < 0.3}
    return RARE | {"ResendReady": 0.2, "ResendReport": 0.2} | rates


def _one(
    w: World, rng: random.Random, rates: dict[str, float], out: Outcome, update: Callable[[bytes], None], recent: deque[Label]
) -> str:
    """One World from its beginning to its rest; what was wrong, or nothing."""
    for step in range(STEPS_PER_WORLD + PATIENCE):
        moves = w.moves() if step < STEPS_PER_WORLD else _ending(w)
        if not moves:
            break
        label = _choose(moves, rng, rates)
        recent.append(label)
        update(repr(label).encode())
        try:
            w.apply(label)
        except ProtocolError as error:
            return f"the sessions refuse what they offered: {error}"
        out.steps += 1
        out.operations[label[0]] = out.operations.get(label[0], 0) + 1
        if w.oracle.wrong:
            return "; ".join(w.oracle.wrong)
    if step < STEPS_PER_WORLD:  # every message was lost before the end
        for _ in range(PATIENCE):
            if not (moves := _ending(w)):
                break
            w.apply(_choose(moves, rng, rates))
            out.steps += 1
    stuck = [] if at_rest(w) else [f"hang: {what}" for what in waiting(w)]
    return "; ".join(w.violations() or stuck)


def _ending(w: World) -> list[Label]:
    """No more faults and no new work; if nothing else can happen, Decode's deadline passes for who still waits."""
    w.limits = dict.fromkeys(w.limits, 0)
    if at_rest(w):
        return []
    moves = [m for m in w.moves() if m[0] != "Admit" and not (m[0] == "Deliver" and m[1][0] == "START")]
    if all(m[0].startswith("Resend") for m in moves):
        w.limits["abort"] = w.used["abort"] + 1
        moves += [m for m in w.moves() if m[0] == "Abort"]
    return moves


def _choose(moves: list[Label], rng: random.Random, rates: dict[str, float]) -> Label:
    """Mostly any move; what is slow here, a fault, and a repetition, only rarely, so that work gets done between them."""
    for _ in range(8):
        label = moves[rng.randrange(len(moves))]
        rate = rates.get(label[0], 1.0)
        if label[-1 if label[0] != "Deliver" else 2] in FAILING.get(label[0], ()):
            rate = min(rate, 0.1)
        if rng.random() < rate:
            return label
    return label
