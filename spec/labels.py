"""How a step and a message are named: as System.tla names them.

Rules: a label is System.tla's `ev` as a tuple: its op, then its arguments in the order of ARGUMENTS; a message within it is
likewise what System.tla keeps of one, in the order of MESSAGES; a transfer is (run, chunk, layer, member).
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
    Retire,
    Retired,
    Revoked,
    RunFailed,
    Start,
    TransferId,
)  # fmt: skip

__all__ = ["ARGUMENTS", "MESSAGES", "Label", "arguments", "named", "short"]

Label: TypeAlias = tuple[Any, ...]
"""(op, argument, ...), the arguments named by ARGUMENTS; a message within it is (op, field, ...), named by MESSAGES."""

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "Admit": ("attempt", "block"), "Registered": ("attempt",), "Schedule": ("attempt",), "Finish": ("attempt",),
    "Abort": ("attempt",), "ReadEnd": ("transfer", "attempt", "how"), "Landed": ("transfer", "attempt"),
    "ResendReport": ("transfer",), "ResendReady": ("transfer",), "Claim": ("member", "run"), "Write": ("member", "run"),
    "Miss": ("member", "run"), "GiveWay": ("member", "run"), "Join": ("member", "run"), "Stop": ("member", "run"),
    "LayerDone": ("transfer",), "SaveEnd": ("transfer", "ok"), "LoadEnd": ("transfer", "ok"), "Evict": ("object",),
    "Revoke": ("transfer",), "Retire": ("attempt",), "Heed": ("member", "run"), "Forget": ("member", "run"),
    "ResendFailed": ("run",), "CrashDecode": (), "CrashPrefill": (), "OrphanEnd": ("transfer",), "PeerGone": ("life",),
    "PeerFenced": ("life",), "PeerLost": ("life",), "PrefillGone": (), "Owned": ("attempt", "rank"), "Forward": ("attempt",),
    "ForwardEnd": ("attempt", "rank"), "Deliver": ("message", "keep"), "Lose": ("message",),
}  # fmt: skip
"""Deliver of a START has one more, the lane of the run that it begins: `arguments`."""
MESSAGES: dict[str, tuple[str, ...]] = {
    "START": ("attempt",), "ABORT": ("attempt", "member"), "READY": ("transfer", "attempt", "epoch", "final"),
    "READ_DONE": ("transfer", "reader"), "READ_FAILED": ("transfer", "reader"), "COMMITTED": ("transfer",), "REVOKED": ("transfer",),
    "RUN_FAILED": ("run", "attempt", "member"), "RETIRE": ("attempt",), "RETIRED": ("attempt",),
}  # fmt: skip


def arguments(op: str, message: str = "") -> tuple[str, ...]:
    """The names of what follows the op in a label; message: the op of the message, if there is one."""
    return (*ARGUMENTS[op], "lane") if (op, message) == ("Deliver", "START") else ARGUMENTS[op]


def short(transfer: TransferId) -> tuple[int, int, int, int]:
    return (transfer.run, transfer.chunk, transfer.layer, transfer.member)


def named(m: Message) -> Label:
    """What System.tla keeps of a message."""
    match m:
        case Start():
            return ("START", m.attempt)
        case Abort():
            return ("ABORT", m.attempt, m.member)
        case Ready():
            return ("READY", short(m.transfer), m.attempt, m.epoch, m.final)
        case ReadDone():
            return ("READ_DONE", short(m.transfer), m.reader)
        case ReadFailed():
            return ("READ_FAILED", short(m.transfer), m.reader)
        case Committed():
            return ("COMMITTED", short(m.transfer))
        case Revoked():
            return ("REVOKED", short(m.transfer))
        case RunFailed():
            return ("RUN_FAILED", m.run, m.attempt, m.member)
        case Retire():
            return ("RETIRE", m.attempt)
        case Retired():
            return ("RETIRED", m.attempt)
        case Blocks():
            raise ValueError(f"{m} is between engines: no session sends it, and System.tla does not know it")
