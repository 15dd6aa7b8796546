"""Compiles tla/machines/*.tla to protocol/machines/*.py, and says what is stale.

Rules: a generated file holds the sha256 of its source; stale means that compiling again would give another file, that a
source has no file, or that a file has no source; checking writes nothing.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from tidegate.spec.emit import python_source, snake
from tidegate.spec.errors import SpecError
from tidegate.spec.paths import library, root
from tidegate.spec.sany import load

MARK = '"""Generated from '


def compile_file(path: Path, place: str | None = None) -> str:
    """The Python source of one machine module. place: how docstrings name it; from the checkout's top if absent."""
    if place is None:
        top = root()
        place = str(path.resolve().relative_to(top)) if path.resolve().is_relative_to(top) else path.name
    return python_source(load(path, library()), place)


def compile_text(name: str, text: str, place: str | None = None) -> str:
    """The Python source of a module given as text, under the name of its MODULE line (for mutants)."""
    with tempfile.TemporaryDirectory(prefix="tidegate-gen-") as folder:
        path = Path(folder) / f"{name}.tla"
        path.write_text(text)
        return compile_file(path, place or f"{name}.tla")


def outputs(top: Path) -> dict[Path, Path]:
    """Generated file -> source, for every machine. Raises SpecError where two machines would share a file."""
    out: dict[Path, Path] = {}
    for source in sorted((top / "tla" / "machines").glob("*.tla")):
        target = top / "protocol" / "machines" / f"{snake(source.stem)}.py"
        if target in out:
            raise SpecError(f"{source.name} and {out[target].name} would both become {target.name}: rename one")
        out[target] = source
    return out


def orphans(top: Path) -> list[Path]:
    """Generated files whose source is gone."""
    known = outputs(top)
    files = sorted((top / "protocol" / "machines").glob("*.py"))
    return [f for f in files if f.name != "__init__.py" and f not in known]


def generate(top: Path | None = None) -> list[str]:
    """Write what is out of date and remove what has no source; one line per file changed."""
    top = top or root()
    report = []
    for target, source in outputs(top).items():
        text = compile_file(source, str(source.relative_to(top)))
        if not target.exists() or target.read_text() != text:
            target.write_text(text)
            report.append(f"wrote {target.relative_to(top)}")
    for path in orphans(top):
        if not path.read_text().startswith(MARK):
            raise SpecError(f"{path.relative_to(top)} was not generated: this folder is for generated files, move it")
        path.unlink()
        report.append(f"removed {path.relative_to(top)}")
    return report


def check(top: Path | None = None) -> list[str]:
    """One line per stale file; empty if all is up to date."""
    top = top or root()
    report = []
    for target, source in outputs(top).items():
        name, origin = target.relative_to(top), source.relative_to(top)
        if not target.exists():
            report.append(f"{name}: missing, {origin} was never compiled")
        elif target.read_text() != compile_file(source, str(origin)):
            report.append(f"{name}: differs from what {origin} compiles to")
    return report + [f"{path.relative_to(top)}: no source in tla/machines" for path in orphans(top)]


def load_source(name: str, source: str) -> ModuleType:
    """Generated source -> a new module object, not registered anywhere."""
    module = ModuleType(name)
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    return module


@contextmanager
def installed(module: ModuleType, source: str) -> Iterator[None]:
    """For the time of the block, `module` (an imported machine) does what `source` says, for everyone who uses it.

    Record classes stay the module's own, so that states made before compare equal to states made inside.
    """
    tree = ast.parse(source)
    kept = {n.name for n in tree.body if isinstance(n, ast.ClassDef) and hasattr(module, n.name)}
    tree.body = [n for n in tree.body if not (isinstance(n, ast.ClassDef) and n.name in kept)]
    before = dict(module.__dict__)
    try:
        exec(compile(tree, f"<{module.__name__}, changed>", "exec"), module.__dict__)
        yield
    finally:
        module.__dict__.clear()
        module.__dict__.update(before)
