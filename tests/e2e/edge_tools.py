"""Short real runs in which everything overlaps: copies of very different lengths, failures, aborts, lost and doubled messages.

Rules: a seed decides what is asked to go wrong; the shapes of a run (`SHAPES`) take turns, for each has edges that no other one has.
Answers are compared as ever: a request may fail, and must not be wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from pair_tools import MODEL, TEXT

from tidegate.engine.config import FaultSpec, Request, RunConfig

CHUNK = 16


Slow = tuple[tuple[float, float], ...]
"""Seconds that a copy or an attention takes, and the share of them that takes so long."""
MIXED: Slow = ((0.2, 0.1), (0.08, 0.25), (0.03, 0.3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """layers: each has a slot of its own, but with `shared` the first one; ahead: the next step is claimed when one is written;
    requests: how many; chunks: of a prompt, from and to; fail: share of copies that fail; lose: share of messages that are lost, by tag;
    read, save, attend: how slow those are.
    """

    layers: int
    shared: bool = False
    ahead: bool
    lease: float
    requests: int
    chunks: tuple[int, int]
    fail: float
    lose: float
    more: dict[str, float] = field(default_factory=dict)
    read: Slow = MIXED
    save: Slow = MIXED
    attend: Slow = MIXED


LONG_READ = (1.2, 0.02)
"""Longer than a lease."""
UNSAID = {"ABORT": 0.8, "READ_FAILED": 0.8, "RETIRED": 0.4}
"""Prefill goes on with what Decode has given up, and hears of it by RETIRE."""
SHAPES = (
    Shape(  # attention goes on while the next chunk is claimed
        layers=1, ahead=True, lease=0.8, requests=24, chunks=(2, 5), fail=0.06, lose=0.1, more={"RETIRED": 0.4},
        read=(LONG_READ, (0.15, 0.2), (0.05, 0.2)), save=((0.3, 0.2), (0.12, 0.3)), attend=((0.3, 0.6),),
    ),
    Shape(  # whoever gave up says so late, and may have read everything
        layers=1, ahead=False, lease=0.0, requests=28, chunks=(1, 2), fail=0.02, lose=0.2,
        more={"ABORT": 0.95, "READ_DONE": 0.85, "RETIRE": 0.0, "RETIRED": 0.8},
    ),
    Shape(  # a slot waits for its run's next chunk
        layers=2, ahead=False, lease=0.0, requests=16, chunks=(3, 6), fail=0.04, lose=0.1, more=UNSAID,
        read=((0.25, 0.15), (0.1, 0.2)), save=((0.12, 0.6),), attend=((0.1, 0.4),),
    ),
    Shape(  # a slot is claimed while another layer computes
        layers=2, ahead=True, lease=0.0, requests=16, chunks=(3, 6), fail=0.04, lose=0.1, more=UNSAID,
        read=((0.25, 0.15), (0.1, 0.2)), save=((0.12, 0.6),), attend=((0.2, 0.4),),
    ),
    Shape(  # likewise, and the other layer's slot is loaded for every chunk
        layers=2, shared=True, ahead=True, lease=0.8, requests=12, chunks=(3, 6), fail=0.02, lose=0.1, more=UNSAID,
        read=(LONG_READ, *MIXED),
    ),
)  # fmt: skip
SAID = ("ABORT", "READ_DONE", "READ_FAILED", "RETIRE"), ("READY", "COMMITTED", "REVOKED", "RUN_FAILED", "RETIRED")
"""By Decode, by Prefill."""


def _specs(draw: random.Random, shape: Shape, side: int) -> tuple[FaultSpec, ...]:
    found: list[FaultSpec] = []

    def add(where: Any, mode: Any, chance: float, **more: Any) -> None:
        found.append(FaultSpec(where=where, mode=mode, chance=chance, seed=draw.getrandbits(32), **more))

    for where in ("save", "load") if side else ("read",):
        add(where, "quiet", shape.fail)
    if not side:
        add("read", "unknown", shape.fail, delay=0.05)
        add("read", "unknown", shape.fail / 2, delay=0.5)
    slow = {"save": shape.save, "load": MIXED, "attend": shape.attend} if side else {"read": shape.read}
    for where, times in slow.items():
        for delay, chance in times:
            add(where, "ok", chance, delay=delay)
    for tag in SAID[side]:
        add("send", "lose", shape.more.get(tag, shape.lose), what=tag)
        add("send", "double", 0.3, what=tag)
    return tuple(found)


def overlapping(seed: int) -> RunConfig:
    """Run `seed` of them; the client of every second request gives up."""
    draw, shape = random.Random(f"overlapping/{seed}"), SHAPES[seed % len(SHAPES)]
    lengths = [draw.randint(*shape.chunks) * CHUNK - draw.randint(0, CHUNK - 1) for _ in range(shape.requests)]
    return RunConfig(
        requests=tuple(Request(f"r{n}", tuple(TEXT[n : n + length])) for n, length in enumerate(lengths)),
        chunk=CHUNK, block_size=16, hot_buffer=16, new_tokens=3, poison=True, resend_seconds=0.1, concurrency=4, deadline_seconds=60.0,
        shared_buffers=1 if shape.shared else None, independent_layers=(-1,) if shape.shared else "all",
        prefetch_layers=None if shape.ahead else 0, read_lease=shape.lease,
        model=MODEL | {"dtype": "float32", "num_hidden_layers": shape.layers, "first_k_dense_replace": shape.layers},
        abort_after={f"r{n}": draw.uniform(0.05, 3.0) for n in range(0, shape.requests, 2)},
        prefill_faults=_specs(draw, shape, 1), decode_faults=_specs(draw, shape, 0),
    ).checked()  # fmt: skip
