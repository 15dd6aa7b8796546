"""What the Decode ranks do when rank 0 says so, as tla/system/SystemRanks.tla has it, and what inference finds in a destination.

Rules: no session hears of any of this: rank 0's is told of a registration when every rank has its own, and of the end of inference
when no rank computes any more (`Moves` offers no other); what inference reads is looked at whenever it begins, goes on or ends.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from tidegate.protocol.effects import Effect
from tidegate.spec.oracle import NOWHERE

if TYPE_CHECKING:
    from tidegate.spec.world import World

__all__ = ["check_use", "forward", "forward_end", "owned"]


def owned(w: World, attempt: int, rank: int) -> list[Effect]:
    del w.io["own", attempt, rank]
    return []


def forward(w: World, attempt: int) -> list[Effect]:
    check_use(w, attempt)
    w.io.update((("forward", attempt, rank), NOWHERE) for rank in range(w.bounds.decode_ranks))
    return []


def forward_end(w: World, attempt: int, rank: int) -> list[Effect]:
    check_use(w, attempt)
    del w.io["forward", attempt, rank]
    return []


def check_use(w: World, attempt: int) -> None:
    """Inference of the attempt reads its destination now."""
    b = w.bounds
    steps = product(range(1, b.chunks_of(attempt) + 1), range(1, b.layers + 1), range(b.members))
    due = [((c, layer, part), m) for c, layer, m in steps for part in b.sends(m)]
    w.oracle.uses(attempt, due, w.dest[w.block[attempt]])
