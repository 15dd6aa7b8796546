"""Turns fault specifications of a test into what the data path and the control plane accept.

Rule: without a specification nothing here is called; with one, which copy or message it hits depends on its count and name
only, never on a clock.
"""

from __future__ import annotations

from tidegate.engine.copying import Fault, Faults, Work
from tidegate.engine.fault_spec import FaultSpec, MessageFaults

__all__ = ["Injector"]


class Injector(MessageFaults):
    """Message faults, and those of copies."""

    def copies(self) -> Faults | None:
        """For CopyWorkers, or None where no copy is concerned."""
        if not any(spec.where in ("read", "save", "load", "fill") for spec in self._specs):
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
