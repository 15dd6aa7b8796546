"""How a step and a message are named: as System.tla names them.

Rules: a label is System.tla's `ev` as a tuple: its op, then its arguments in the order of ARGUMENTS; a message within it is
likewise what System.tla keeps of one, in the order of MESSAGES; a transfer is (run, chunk, layer), for its member is 0.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tidegate.protocol.messages import (
    Abort,
    Blocks,
    Committed,
    Message,
    ReadDone,
    ReadFailed,
    Ready,
    Revoked,
    RunFailed,
    Start,
    TransferId,
)  # fmt: skip

__all__ = ["ARGUMENTS", "MESSAGES", "Label", "named", "short"]

Label: TypeAlias = tuple[Any, ...]
"""(op, argument, ...), the arguments named by ARGUMENTS; a message within it is (op, field, ...), named by MESSAGES."""

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "Admit": ("attempt", "block"), "Registered": ("attempt",), "Schedule": ("attempt",), "Finish": ("attempt",),
    "Abort": ("attempt",), "ReadEnd": ("transfer", "attempt", "how"), "Landed": ("transfer", "attempt"),
    "ResendReport": ("transfer",), "ResendReady": ("transfer",), "Claim": ("run",), "Write": ("run",), "Miss": ("run",),
    "LayerDone": ("transfer",), "SaveEnd": ("transfer", "ok"), "LoadEnd": ("transfer", "ok"), "Evict": ("object",),
    "Revoke": ("transfer",), "Deliver": ("message", "keep"), "Lose": ("message",),
}  # fmt: skip
MESSAGES: dict[str, tuple[str, ...]] = {
    "START": ("attempt",), "ABORT": ("attempt",), "READY": ("transfer", "attempt", "epoch", "final"),
    "READ_DONE": ("transfer",), "READ_FAILED": ("transfer",), "COMMITTED": ("transfer",), "REVOKED": ("transfer",),
    "RUN_FAILED": ("run", "attempt"),
}  # fmt: skip


def short(transfer: TransferId) -> tuple[int, int, int]:
    return (transfer.run, transfer.chunk, transfer.layer)


def named(m: Message) -> Label:
    """What System.tla keeps of a message."""
    match m:
        case Start():
            return ("START", m.attempt)
        case Abort():
            return ("ABORT", m.attempt)
        case Ready():
            return ("READY", short(m.transfer), m.attempt, m.epoch, m.final)
        case ReadDone():
            return ("READ_DONE", short(m.transfer))
        case ReadFailed():
            return ("READ_FAILED", short(m.transfer))
        case Committed():
            return ("COMMITTED", short(m.transfer))
        case Revoked():
            return ("REVOKED", short(m.transfer))
        case RunFailed():
            return ("RUN_FAILED", m.run, m.attempt)
        case Blocks():
            raise ValueError(f"{m} is between engines: no session sends it, and System.tla does not know it")
