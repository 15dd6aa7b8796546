"""In which phase a machine is, as people name it: one word for the state of any of them.

Rule: it decides nothing; no guard and no session asks it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["phase_of"]


def phase_of(state: Any) -> str:
    """The state's phase; what stands for it in Binding, StepAgreement and ContributorGroup, which have none."""
    if hasattr(state, "phase"):
        return str(state.phase)
    if hasattr(state, "run"):
        return "bound" if state.run else "unbound"
    if hasattr(state, "entered"):
        return "entered" if state.entered else "all ready" if state.ready == state.members else "waiting"
    ended = state.done | state.failed
    return "failed" if state.failed else "succeeded" if ended == state.members else "waiting"
