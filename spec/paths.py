"""Where the sources are. Rule: the toolchain works on a source checkout only; an installed wheel says so."""

from __future__ import annotations

from pathlib import Path

from tidegate.spec.errors import SpecError


def root() -> Path:
    """The checkout's top folder. Raises SpecError where there is none (an installed wheel carries no TLA+)."""
    top = Path(__file__).resolve().parent.parent
    if not (top / "tla").is_dir():
        raise SpecError(f"{top} holds no folder tla: run from a source checkout, installed with `make install`")
    return top


def library() -> list[Path]:
    """The folders in which a module finds the modules that it extends or instantiates."""
    return [top for top in sorted((root() / "tla").iterdir()) if top.is_dir()]
