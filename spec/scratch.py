"""A model in a folder of its own, some of its modules changed.

Rule: the checkout is only read; the folder holds the changed modules and the main one, everything else is found where it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidegate.spec.paths import library

__all__ = ["Place", "scratch"]


@dataclass(frozen=True)
class Place:
    """module: the main module to give to TLC; library: where it finds the others, the changed ones first."""

    module: Path
    library: list[Path]


@contextmanager
def scratch(module: Path, changed: Mapping[str, str]) -> Iterator[Place]:
    """For the time of the block: `module` with the modules named in `changed` (name -> source) in place of the checkout's."""
    with tempfile.TemporaryDirectory(prefix="tidegate-scratch-") as folder:
        top = Path(folder)
        for name, text in {module.stem: module.read_text(), **changed}.items():
            (top / f"{name}.tla").write_text(text)
        yield Place(top / module.name, [top, *library()])
