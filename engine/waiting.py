"""What a server waits for, in words: told to whoever asks, and unasked when it takes too long.

Rules: a wait names who waits for what of whom, and the guard that is false, as tla/machines has it; nothing is decided here, and nothing
is kept but when a wait was first seen; one that is older than the limit is said once, and again each time it is twice as old, and when
it is over; while there is one, the server is not well.  Owner's thread only.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec

__all__ = ["LIMIT", "Status", "Wait", "Watch", "age", "guard_at"]

LIMIT = 30.0
"""Seconds."""


class Wait(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that cannot go on.

    kind: gate, read, blocks, memory, start, rows, copy, report, landing, handshake or answer; subject: who waits; wants: for what;
    seconds: for how long; guard: the operator of a machine that is false, and the part of it that is; at: file and line of it.
    slot, lane, epoch, transfer, peer: of what it is about, where there is one.
    """

    kind: str
    subject: str
    wants: str
    seconds: float = 0.0
    guard: str = ""
    at: str = ""
    slot: int = -1
    lane: int = -1
    epoch: int = -1
    transfer: str = ""
    peer: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The same wait, whenever it is looked at."""
        return self.kind, self.subject, self.transfer

    def __str__(self) -> str:
        why = f" [{self.guard} is false, {self.at}]" if self.guard else ""
        return f"{self.subject} has waited {age(self.seconds)} for {self.wants}{why}"


class Status(msgspec.Struct, frozen=True):
    """What `GET /status` answers.

    life: a name for this life of the server, and not its incarnation, which is told to peers only; "" for a proxy.
    mode: seed or read_lease on Prefill; limit: seconds after which a wait makes the server unwell; waits: the oldest first; servers: on
    the proxy, the addresses of those that it asks, by role.
    """

    role: str
    pid: int
    life: str
    limit: float
    waits: tuple[Wait, ...]
    mode: str = ""
    servers: dict[str, tuple[str, ...]] = {}

    @property
    def late(self) -> tuple[Wait, ...]:
        """Those that are past the limit."""
        return tuple(wait for wait in self.waits if wait.seconds > self.limit)


def age(seconds: float) -> str:
    """A span of time, for people."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@cache
def guard_at(name: str) -> str:
    """`Machine.Operator` -> "tla/machines/Machine.tla:line", from the generated machine; "" for an operator that does not say so.

    KeyError for one that there is not.
    """
    machine, _, operator = name.partition(".")
    module = importlib.import_module(f"tidegate.protocol.machines.{re.sub(r'(?<!^)(?=[A-Z])', '_', machine).lower()}")
    found = re.search(r"\[(tla/\S+)\]", vars(module)[operator].__doc__ or "")
    return found[1] if found else ""


@dataclass(slots=True)
class _Seen:
    first: float
    due: float  # how old it is when it is said next; 0: it was never said
    last: Wait


class Watch:
    """look: what waits now; a wait whose `seconds` are 0 is as old as it has been seen here.  limit: seconds; warn: told in words."""

    def __init__(self, look: Callable[[float], Sequence[Wait]], *, limit: float, warn: Callable[[str], None]) -> None:
        self._look, self.limit, self._warn = look, limit, warn
        self._seen: dict[tuple[str, str, str], _Seen] = {}

    def waits(self) -> tuple[Wait, ...]:
        """All that waits now, the oldest first."""
        now = time.monotonic()
        found: dict[tuple[str, str, str], _Seen] = {}
        for wait in self._look(now):
            seen = self._seen.get(wait.key) or _Seen(now - wait.seconds, self.limit, wait)
            seen.last = msgspec.structs.replace(wait, seconds=max(wait.seconds, now - seen.first))
            found[wait.key] = seen
        for key, seen in self._seen.items():
            if key not in found and seen.due > self.limit:
                self._warn(f"goes on again: {seen.last}")
        self._seen = found
        return tuple(sorted((seen.last for seen in found.values()), key=lambda wait: -wait.seconds))

    def tick(self) -> None:
        """Say what has become too old."""
        self.waits()
        for seen in self._seen.values():
            if seen.last.seconds > seen.due:
                seen.due = 2 * seen.last.seconds
                self._warn(str(seen.last))

    def reason(self) -> str:
        """Why the server is not well; "" if it is."""
        late = [wait for wait in self.waits() if wait.seconds > self.limit]
        more = f"; and {len(late) - 1} more: tidegate why tells all" if len(late) > 1 else ""
        return f"{late[0]}{more}" if late else ""
