"""Planted bugs of the system model, one for each of its properties (tla/museum/planted.toml).

Rules: a bug is a replacement of text that occurs exactly once in one module; planted alone, TLC must name exactly the property
that the entry names, in the configuration that it names.
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


def plant(bug: Planted) -> str:
    """The source of the module with the bug. Raises SpecError if the text to replace does not occur exactly once."""
    (source,) = (root() / "tla").glob(f"*/{bug.module}.tla")
    text = source.read_text()
    if text.count(bug.old) != 1:
        raise SpecError(f"{source.name} has {text.count(bug.old)} times, not once: {bug.old}")
    return text.replace(bug.old, bug.new)


def show(bug: Planted) -> Result:
    """TLC's result with the bug planted."""
    (model,) = configurations([bug.configuration])
    return model.run({bug.module: plant(bug)})
