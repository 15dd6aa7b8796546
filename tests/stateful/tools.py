"""What the tests of a World share: which steps are ordinary, how a World goes on, and how it is brought to its end."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.spec.schedule import PATIENCE, drain
from tidegate.spec.world import Label, World

GOES_WELL = {"SaveEnd": True, "LoadEnd": True, "ReadEnd": "ok", "Deliver": False}
FAULTS = ("Lose", "Abort", "Revoke", "Evict")
AGAIN = ("ResendReady", "ResendReport", "Forward")


def well(m: Label) -> bool:
    """No fault."""
    if m[0] in GOES_WELL:
        return bool(m[2 if m[0] == "Deliver" else -1] == GOES_WELL[m[0]])
    return m[0] not in FAULTS


def plain(m: Label) -> bool:
    """Neither a fault nor a repetition."""
    return well(m) and m[0] not in AGAIN


def told(w: World, wrong: list[str]) -> str:
    """What is wrong, and how it came to that, for the message of a failed test."""
    return "; ".join(wrong) + f"\n  Prefill: {'; '.join(w.prefill.story)}\n  Decode: {'; '.join(w.decode.story)}"


def go_on(w: World, *, again: bool = False, without: Collection[Label] = ()) -> None:
    """Take every plain step there is, in turn; with `again` also repetitions, once nothing else can happen, until all is over."""
    for turn in range(PATIENCE):
        moves = [m for m in w.moves() if well(m) and m not in without]
        moves = [m for m in moves if plain(m)] or [m for m in moves if again]
        if not moves:
            return
        w.apply(moves[turn % len(moves)])
        assert not w.violations(), told(w, w.violations())


def rest(w: World) -> list[str]:
    """No more faults; Decode's deadline passes for who then still waits.  What is wrong at the end."""
    if wrong := [said for said in drain(w) if not said.startswith("hang")]:
        return wrong
    for attempt in w.block:
        if w.decode.can_abort(attempt):
            w.limits["abort"] = w.used["abort"] + 1
            w.apply(("Abort", attempt))
    return drain(w)
