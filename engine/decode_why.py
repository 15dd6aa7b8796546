"""What a Decode waits for: prompts for memory, attempts for a Prefill and for their rows, reads for their end and their answer.

Rule: read off the tables that decide; nothing is changed.  Owner's thread only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.engine.waiting import Wait, guard_at

if TYPE_CHECKING:
    from tidegate.engine.decode_core import DecodeCore

__all__ = ["decode_waits"]

COMPLETE, COMMIT, DRAINED = "RequestCompletion.CanComplete", "Read.CanCommit", "FailureInvalidation.CanDrained"


def decode_waits(core: DecodeCore, now: float) -> list[Wait]:
    """All that waits in `core` at `now` (monotonic seconds)."""
    return [*_memory(core), *_attempts(core), *_reads(core, now)]


def _attempt(core: DecodeCore, attempt: int) -> str:
    return f"attempt {attempt} of {core.session.starts[attempt].request}"


def _memory(core: DecodeCore) -> Iterator[Wait]:
    for attempt, wanted in core.wanted.items():
        if why := core.memory.why(attempt):
            yield Wait("memory", f"{wanted.request}", f"memory: {why}", transfer=str(attempt))


def _attempts(core: DecodeCore) -> Iterator[Wait]:
    """Attempts that have their memory and not their rows."""
    session = core.session
    for attempt in core.wanted:
        state = session.attempts.get(attempt)
        phase = state.phase if state else ""
        if phase == "allocated":
            yield Wait("start", _attempt(core, attempt), "its destination to be registered at every rank", guard=f"{COMPLETE}: phase",
                       at=guard_at(COMPLETE), transfer=str(attempt))  # fmt: skip
        elif phase in ("registered", "advertised"):
            yield Wait("start", _attempt(core, attempt), "a Prefill to begin it: no READY has come", guard=f"{COMPLETE}: phase",
                       at=guard_at(COMPLETE), transfer=str(attempt), peer=core.peers.said())  # fmt: skip
        elif state is not None and phase == "receiving":
            chunks = f"1 to {state.chunks}" if state.chunks else "from 1, how many is not known yet"
            by_chunk = sorted(Counter(chunk for chunk, _ in state.got).items())
            run = session.bindings[attempt].run
            have = ", ".join(f"{layers} of {session.layers} layers of chunk {chunk}" for chunk, layers in by_chunk)
            yield Wait("rows", _attempt(core, attempt), f"rows of {core.peers.said(run)}, run {run}, chunks {chunks}; "
                       f"committed are {have or 'none'}", guard=f"{COMPLETE}: every (chunk, layer) is committed", at=guard_at(COMPLETE),
                       transfer=str(attempt), peer=core.peers.said(run))  # fmt: skip


def _reads(core: DecodeCore, now: float) -> Iterator[Wait]:
    session = core.session
    for transfer, since in core.reading.items():
        state, ready = session.reads[transfer], session.readies[transfer]
        peer, who = core.peers.said(transfer.run), f"{ready.request}: {transfer}"
        if state.phase == "reading":
            yield Wait("copy", who, f"the copy out of slot {ready.slot} (epoch {ready.epoch}) of {peer} to end", now - since,
                       f'{COMMIT}: phase = "done"', guard_at(COMMIT), ready.slot, -1, ready.epoch, str(transfer), peer)  # fmt: skip
        elif state.landing:
            wants = "the backend's word that nothing of its failed copy lands any more; its blocks are nobody's until then"
            yield Wait("landing", who, wants, now - since, f"{DRAINED}: open = {{}}", guard_at(DRAINED), ready.slot, -1, ready.epoch,
                       str(transfer), peer)  # fmt: skip
    for transfer, since in core.unanswered():
        ready, peer = session.readies[transfer], core.peers.said(transfer.run)
        yield Wait("report", f"{ready.request}: {transfer}", f"the answer of {peer} to its report, which is said again and again",
                   now - since, f'{COMPLETE}: every (chunk, layer) is committed', guard_at(COMPLETE), slot=ready.slot, epoch=ready.epoch,
                   transfer=str(transfer), peer=peer)  # fmt: skip
