"""What a Prefill waits for: steps for their gates, slots for the answers of Decodes, runs for blocks.

Rule: read off the tables that decide, session by session; nothing is changed.  Owner's thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from tidegate.engine.prefill_group import PrefillGroup
from tidegate.engine.waiting import Wait, guard_at
from tidegate.protocol.messages import TransferId
from tidegate.protocol.prefill import PrefillSession

if TYPE_CHECKING:
    from tidegate.engine.prefill_core import PrefillCore

__all__ = ["prefill_waits"]

RELEASE, CLAIM, WRITE, PIN, ENTER = (
    "PhysicalBuffer.CanRelease", "PhysicalBuffer.CanClaim", "PhysicalBuffer.CanWrite", "PoolObject.CanPin", "StepAgreement.CanEnter",
)  # fmt: skip


def prefill_waits(core: PrefillCore, now: float) -> list[Wait]:
    """All that waits in `core` at `now` (monotonic seconds)."""
    return [*_reads(core, now), *_steps(core), *_blocks(core), *core.links.waits(now)]


def _sessions(core: PrefillCore) -> list[PrefillSession]:
    session = core.session
    return list(session.sessions) if isinstance(session, PrefillGroup) else [session]


def _run(core: PrefillCore, run: int) -> str:
    return f"run {run} of {core.session.starts[run].request}"


def _reads(core: PrefillCore, now: float) -> Iterator[Wait]:
    """Slots that a Decode still reads, for all that is known here."""
    for transfer, since in core.answers.held():
        session = _sessions(core)[transfer.member]
        ready, lane, peer = session.readies[transfer], session.gate_of(transfer)[1], core.links.peer(transfer.run)
        yield Wait(
            "read", f"slot {ready.slot} (lane {lane}, epoch {ready.epoch})",
            f"the answer of {peer} to READY of {transfer}, for {ready.request}", now - since, f"{RELEASE}: transfers = {{}}",
            guard_at(RELEASE), ready.slot, lane, ready.epoch, str(transfer), peer,
        )  # fmt: skip


def _steps(core: PrefillCore) -> Iterator[Wait]:
    """Steps whose turn it is, and what shuts them out, at the first rank that is not ready."""
    for step in core.waits.steps:
        for session in _sessions(core):
            mine = msgspec.structs.replace(step, member=session.member)
            if step.run in session.runs and session.vote(step) == "not yet":
                yield _shut_out(core, session, mine)
                break


def _shut_out(core: PrefillCore, session: PrefillSession, step: TransferId) -> Wait:
    index, lane = session.gate_of(step)
    slot = session.slots[index, lane]
    who = f"{_run(core, step.run)}, chunk {step.chunk} layer {step.layer} at rank {step.member},"
    if slot.owner == step.run and slot.phase in ("loading", "computing"):
        wants, guard, part = f"its load into slot {index}", WRITE, 'phase = "computing"'
    elif slot.phase == "free" or slot.owner == step.run:
        missing = [chunk for _, chunk in session.needed(step) if session.pool[step.run, chunk].phase != "readable"]
        wants, guard, part = f"chunks {missing} of its own to be saved, to load them into slot {index}", PIN, 'phase = "readable"'
        if not missing:  # the leader has its slot, and this rank follows when it has written the step before
            wants, guard, part = f"rank {step.member} to take slot {index}", ENTER, "every member is ready"
    else:
        wants, guard, part = f"slot {index} (lane {lane}, epoch {slot.epoch}), which {_needed_by(slot)}", CLAIM, 'phase = "free"'
    return Wait("gate", who, wants, 0.0, f"{guard}: {part}", guard_at(guard), index, lane, slot.epoch, str(step))


def _needed_by(slot: object) -> str:
    """Who still needs what is in it."""
    parts = [
        f"{word} {', '.join(map(str, sorted(work, key=str)))}"
        for word, work in (("Decode may read:", slot.transfers), ("is saved:", slot.saves), ("attention reads:", slot.attending))  # type: ignore[attr-defined]
        if work
    ]
    return "; ".join(parts) or f"is being written by run {slot.owner}"  # type: ignore[attr-defined]


def _blocks(core: PrefillCore) -> Iterator[Wait]:
    for run in core.places.queued:
        yield Wait("blocks", _run(core, run), f"room: {core.places.why(run)}", transfer=str(run))
