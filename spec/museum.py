"""Planted bugs of the system model, one for each of its properties (tla/museum/planted.toml).

Rules: a bug is a replacement of text that occurs exactly once in one module; planted alone, TLC must name exactly the property
that the entry names, in the configuration that it names.  An entry names a machine, or System, which stands for all the modules
of tla/system: a bug does not care in which of them its text stands.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from tidegate.spec.errors import SpecError
from tidegate.spec.paths import root
from tidegate.spec.tlc_output import Result
from tidegate.spec.variant import configurations

__all__ = ["Planted", "plant", "planted", "show"]


class Planted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """mistake: what somebody did wrong, in words; old, new: text of the module; property: what must break, where."""

    property: str
    mistake: str
    module: str
    old: str
    new: str
    configuration: str


def planted(path: Path | None = None) -> list[Planted]:
    """Every bug of the museum."""
    path = path or root() / "tla" / "museum" / "planted.toml"
    return msgspec.convert(tomllib.loads(path.read_text())["planted"], list[Planted])


def plant(bug: Planted) -> dict[str, str]:
    """The module's name and its source with the bug. Raises SpecError if the text to replace does not occur exactly once."""
    pattern = "system/*.tla" if bug.module == "System" else f"*/{bug.module}.tla"
    sources = {path.stem: path.read_text() for path in sorted((root() / "tla").glob(pattern))}
    found = [name for name, text in sources.items() for _ in range(text.count(bug.old))]
    if len(found) != 1:
        raise SpecError(f"{bug.module} has {len(found)} times, not once: {bug.old}")
    return {found[0]: sources[found[0]].replace(bug.old, bug.new)}


def show(bug: Planted) -> Result:
    """TLC's result with the bug planted."""
    (model,) = configurations([bug.configuration])
    return model.run(plant(bug))
