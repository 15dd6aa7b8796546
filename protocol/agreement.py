"""Whether the ranks of a Prefill instance may compute the next step of a run together (tla/machines/StepAgreement.tla).

Rules: a rank that is asked gives its vote at once, whatever its gate, so asking is a collective in which nobody waits; a vote
stands until all have been heard, so a rank that said "ready" takes no event in between that would change it; once one has entered,
all come, a rank whose run has failed meanwhile as well: it computes and publishes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tidegate.protocol.machines import step_agreement as SA

__all__ = ["Vote", "agreed"]

Vote = Literal["ready", "entered", "not yet"]
"""A member's word on a step (`PrefillSession.vote`); `not yet` also where it never will be, as its run has failed."""


def agreed(votes: Sequence[Vote]) -> bool:
    """May the step be computed?  votes: of member 0, 1, ..., all of them (an all-gather)."""
    members = frozenset(range(len(votes)))
    ready = frozenset(m for m in members if votes[m] == "ready")
    entered = frozenset(m for m in members if votes[m] == "entered")
    return SA.CanEnter(SA.State(members, ready, entered))
