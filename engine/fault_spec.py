"""What a test asks to go wrong, and the part of it that concerns messages.

Rule: without a specification nothing here is called; with one, which copy or message it hits depends on its count and name
(and a seed) only, never on a clock.  This module is light: the proxy, which computes nothing, has message faults too.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from functools import partial
from typing import Literal

import msgspec

from tidegate.engine.noise import Change, Disorder, Noise

__all__ = ["FaultSpec", "MessageFaults"]


class FaultSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One injected fault, for tests: the `nth` (from 1; 0: every) matching copy or message of the worker that has it; or, with a
    `chance` below 1, that share of them, which `seed` and their count decide.

    where: read, save, load, fill, attend, send, or wire (what leaves for a peer at one moment); what: for send the message's tag,
    else ignored; delay: seconds; layer, chunk,
    attempt: 0 matches any; mode: ok (only the delay), quiet, unknown for copies; ok, lose, double for messages; ok (`Noise`), reorder
    (`Disorder`) for the wire.  A delayed message is START only, in the proxy.
    """

    where: Literal["read", "save", "load", "fill", "attend", "send", "wire"]
    mode: Literal["ok", "quiet", "unknown", "lose", "double", "reorder"] = "ok"
    what: str = ""
    nth: int = 0
    delay: float = 0.0
    layer: int = 0
    chunk: int = 0
    chance: float = 1.0
    seed: int = 0

    def hits(self, count: int) -> bool:
        """Is it due at the `count`th (from 1) that matches?"""
        if self.chance < 1.0:
            return random.Random(f"{self.seed}/{self.where}/{self.what}/{count}").random() < self.chance
        return self.nth in (0, count)


class MessageFaults:
    """Counts what it is asked about and answers with the fault that is due.  injected: how many were."""

    def __init__(self, specs: Sequence[FaultSpec]) -> None:
        self._specs = tuple(specs)
        self._seen: dict[FaultSpec, int] = {}
        self._lock = threading.Lock()
        self.injected = 0

    def _due(self, spec: FaultSpec) -> bool:
        with self._lock:
            self._seen[spec] = self._seen.get(spec, 0) + 1
            due = spec.hits(self._seen[spec])
            self.injected += due
            return due

    def message(self, tag: str) -> tuple[int, float]:
        """How many copies of this outgoing message reach the network (0 if it is lost, 2 if doubled), and after how many seconds."""
        for spec in self._specs:
            if spec.where == "send" and spec.what == tag and self._due(spec):
                return {"lose": 0, "double": 2}.get(spec.mode, 1), spec.delay
        return 1, 0.0

    def changes(self) -> tuple[Change, ...]:
        """What happens, one after the other, to one peer's messages when they leave; nothing where nobody asked for it."""
        return tuple((Disorder if s.mode == "reorder" else Noise)(partial(self._seed, s)) for s in self._specs if s.where == "wire")

    def _seed(self, spec: FaultSpec) -> int | None:
        return spec.seed + self._seen[spec] if self._due(spec) else None

    def copies_of(self, tag: str) -> int:
        """As `message`, without a delay."""
        return self.message(tag)[0] if self._specs else 1
