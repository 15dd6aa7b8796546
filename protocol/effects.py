"""What a session asks its engine to do.  Effects are data: the engine, the simulator and the explorer execute the same ones.

Rule: each copy that an effect begins ends with exactly one event of the same name of work (`transfer`); an effect that asks
for nothing (RunEnded, Reclaimed, ...) reports a verdict, and comes once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.protocol.messages import Message, Ready, Start, TransferId

__all__ = [
    "AttemptFailed", "BeginLoad", "BeginRead", "BeginSave", "Completed", "Effect", "Reclaimed", "Register", "RunEnded",
    "RunStarted", "Send",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Send:
    """Hand `message` to the network; it may be lost, doubled or late."""

    message: Message


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Prefill: compute this request; `run` is its nonce."""

    run: int
    start: Start


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Prefill: the run's one verdict, `done` or `failed` with a reason."""

    run: int
    verdict: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BeginLoad:
    """Prefill: copy this layer of the run's earlier chunks from the pool into `slot`; end: load_end."""

    transfer: TransferId
    slot: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BeginSave:
    """Prefill: copy this step's rows from `slot` to the pool; end: save_end."""

    transfer: TransferId
    slot: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Register:
    """Decode: make the destination of `attempt` known to the backend; end: registered."""

    attempt: int


@dataclass(frozen=True, slots=True)
class BeginRead:
    """Decode: pull what `ready` names into its attempt's destination; end: read_end, then landed if that was unknown."""

    ready: Ready


@dataclass(frozen=True, slots=True)
class Completed:
    """Decode: everything has arrived and is right; the attempt may be scheduled."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """Decode: the attempt has failed; its destination is poisoned."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """Decode: nothing can land any more; the blocks of `attempt` may be given to another."""

    attempt: int


Effect = (
    Send | RunStarted | RunEnded | BeginLoad | BeginSave | Register | BeginRead | Completed | AttemptFailed | Reclaimed
)
