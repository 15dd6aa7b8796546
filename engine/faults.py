"""Turns fault specifications of a test into what the data path and the control plane accept.

Rule: without a specification nothing here is called; with one, which copy or message it hits depends on its count and name
only, never on a clock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidegate.engine.config import FaultSpec
from tidegate.engine.copying import Fault, Faults, Work

__all__ = ["Injector"]


class Injector:
    """Counts what it is asked about and answers with the fault that is due.  injected: how many were."""

    def __init__(self, specs: Sequence[FaultSpec]) -> None:
        self._specs = tuple(specs)
        self._seen: dict[FaultSpec, int] = {}
        self._lock = threading.Lock()
        self.injected = 0

    def _due(self, spec: FaultSpec) -> bool:
        with self._lock:
            self._seen[spec] = self._seen.get(spec, 0) + 1
            due = spec.nth in (0, self._seen[spec])
            self.injected += due
            return due

    def copies(self) -> Faults | None:
        """For CopyWorkers, or None where no copy is concerned."""
        if not any(spec.where in ("read", "save", "load") for spec in self._specs):
            return None
        return self._copy

    def _copy(self, kind: str, work: Work) -> Fault | None:
        for spec in self._specs:
            if spec.where != kind or not self._names(spec, work) or not self._due(spec):
                continue
            if spec.mode in ("ok", "quiet", "unknown"):
                return Fault(mode=spec.mode, delay=spec.delay)
        return None

    @staticmethod
    def _names(spec: FaultSpec, work: Work) -> bool:
        return spec.layer in (0, work.labels.get("layer")) and spec.chunk in (0, work.labels.get("chunk"))

    def attend_delay(self, layer: int, chunk: int) -> float:
        """Seconds by which an attention is to be slowed down."""
        work = Work(0, 0, {"layer": layer, "chunk": chunk})
        return sum(s.delay for s in self._specs if s.where == "attend" and self._names(s, work) and self._due(s))

    def copies_of(self, tag: str) -> int:
        """How many copies of this outgoing message reach the network: 0 if it is lost, 2 if doubled."""
        for spec in self._specs:
            if spec.where == "send" and spec.what == tag and self._due(spec):
                return {"lose": 0, "double": 2}.get(spec.mode, 1)
        return 1
