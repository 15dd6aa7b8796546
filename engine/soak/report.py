"""What a soak did and what it found, and how that is said."""

from __future__ import annotations

import msgspec

__all__ = ["Report", "lines"]


class Report(msgspec.Struct):
    """found: empty if nothing is wrong; said: what each process said last, with a finding; equal: requests whose tokens were right,
    logits_equal: prompts of them whose logits were compared too; failed: with an error that a fault may have caused; left: by their
    client; injected: faults in copies and messages, as workers that ended in order counted them; deeds, reasons: how many of each.
    """

    lives: int = 0
    rounds: int = 0
    asked: int = 0
    equal: int = 0
    logits_equal: int = 0
    failed: int = 0
    left: int = 0
    injected: int = 0
    deeds: dict[str, int] = {}
    reasons: dict[str, int] = {}
    seconds: float = 0.0
    found: list[str] = []
    said: dict[str, list[str]] = {}


def lines(out: Report) -> list[str]:
    """For people; findings last."""
    deeds = ", ".join(f"{count} {name}" for name, count in out.deeds.items()) or "nothing"
    return [
        f"{out.lives} lives, {out.rounds} rounds, {out.asked} requests in {out.seconds:.0f} s: {out.equal} equal ({out.logits_equal} "
        f"prompts in their logits too), {out.failed} failed with a reason, {out.left} left by their client",
        f"injected: {out.injected} in copies and messages; done: {deeds}",
        *(f"  {count:4} {reason}" for reason, count in sorted(out.reasons.items())),
        *(f"{role}> {line}" for role, said in out.said.items() for line in said),
        *(f"FOUND: {one}" for one in out.found or ()),
        *([] if out.found else ["every answer was right, and nothing was left"]),
    ]
