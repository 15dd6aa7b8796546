"""One configuration of the system model, run with changed modules or fewer properties.

Rules: the constants, the specification and the VIEW stay what the .cfg says; properties may be left out one by one, so that TLC
goes on to the next one that breaks; nothing in the checkout is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.spec import tlc
from tidegate.spec.bounds import Bounds
from tidegate.spec.models import Model, read_manifest
from tidegate.spec.paths import root
from tidegate.spec.scratch import scratch
from tidegate.spec.tlc_output import Result

__all__ = ["Configuration", "configurations"]

PROPERTIES = re.compile(r"^(INVARIANTS?|PROPERT(?:Y|IES))\b(.*)$", re.MULTILINE)
SAME = ("-fp", "0")  # TLC draws its fingerprint function by lot; with one function a run says the same each time
IN_MEMORY = "-Dtlc2.tool.queue.DiskStateQueue.BufSize=500000"
"""So many states wait in memory: the thread that would write them to the disk can meet a set that TLC is making just then, and dies."""
SECONDS = 240.0  # a mutant may reach many more states than the model; so much is enough to find what breaks


@dataclass(frozen=True)
class Configuration:
    """name, module, config: as in the manifest; states: distinct ones that the unchanged model reaches."""

    name: str
    module: Path
    config: Path
    states: int

    @property
    def text(self) -> str:
        return self.config.read_text()

    @property
    def bounds(self) -> Bounds:
        return Bounds.from_cfg(self.config)

    @property
    def properties(self) -> list[str]:
        """Invariants and properties, in the order of the .cfg."""
        return [name for found in PROPERTIES.finditer(self.text) for name in found[2].split()]

    @property
    def live(self) -> bool:
        """Does it rest on fairness?  TLC then judges one property and cannot name it."""
        return re.search(r"^SPECIFICATION Spec$", self.text, re.MULTILINE) is None

    def without(self, gone: Sequence[str]) -> str:
        """The .cfg's text without these properties."""

        def fewer(found: re.Match[str]) -> str:
            left = [name for name in found[2].split() if name not in gone]
            return f"{found[1]} {' '.join(left)}" if left else ""

        return PROPERTIES.sub(fewer, self.text)

    def run(
        self, changed: Mapping[str, str], gone: Sequence[str] = (), text: str = "", seconds: float | None = SECONDS
    ) -> Result:
        """TLC's result with `changed` modules (name -> source). Raises SpecError where TLC cannot judge, or takes too long."""
        with scratch(self.module, changed) as place:
            config = place.module.parent / self.config.name
            config.write_text(text or self.without(gone))
            jvm = (*(tlc.LIGHT if self.states < 20_000 else tlc.SMALL), IN_MEMORY)
            result = tlc.run_tlc(place.module, config, library=place.library, jvm=jvm, seconds=seconds, options=SAME)
        if result.violated == "<temporal>" and len(self.properties) == 1:
            result.violated = self.properties[0]
        return result


def configurations(names: Sequence[str] = (), *, module: str = "System") -> list[Configuration]:
    """Those of the manifest that must pass, of one module (those named, if any are), by number of states."""
    models = [m for m in _manifest() if m.module.stem == module and m.verdict == "pass" and (not names or m.name in names)]
    found = [Configuration(m.name, m.module, m.config, m.distinct or 0) for m in models]
    return sorted(found, key=lambda c: (c.states, c.name))


def _manifest() -> list[Model]:
    return read_manifest(root() / "tla" / "models" / "manifest.toml", root() / "tla")
