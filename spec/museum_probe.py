"""Faults about rows and addresses, which the model does not have: each is planted in our source, and a probe must see it.

Rules: a probe is a function of tla/museum/probes.py that asserts one property of the data path through its public parts; it runs
in a process of its own, in which the changed sources are imported in place of the checkout's; the same probe must pass where
nothing is changed.  Nothing here imports the data path: only the child process does.

    python -m tidegate.spec.museum_probe EXHIBIT-AS-JSON [--plain]
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType

import msgspec

from tidegate.spec.museum import Exhibit, folder, plant_all
from tidegate.spec.paths import root

__all__ = ["ELSE", "probe"]

PLAIN = "--plain"
ELSE = "the probe fails otherwise: "


class _Loader(SourceFileLoader):
    """A module of the checkout whose source is another."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> CodeType | None:
        return compile(self.text, f"<{fullname}, changed>", "exec")


class _Finder(MetaPathFinder):
    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = {"tidegate." + file.removesuffix(".py").replace("/", "."): (file, text) for file, text in texts.items()}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self.texts:
            return None
        file, text = self.texts[fullname]
        place = str(root() / file)
        return spec_from_file_location(fullname, place, loader=_Loader(fullname, place, text))


def probe(exhibit: Exhibit, *, plain: bool = False) -> str:
    """What the probe says of the exhibit's fault, or nothing where it sees none. plain: of our source as it is."""
    line = [sys.executable, "-m", "tidegate.spec.museum_probe", msgspec.json.encode(exhibit).decode(), *([PLAIN] if plain else [])]
    done = subprocess.run(line, capture_output=True, text=True, cwd=root())
    if done.returncode not in (0, 1):
        return f"{ELSE}{(done.stderr or done.stdout).strip().splitlines()[-1]}"
    return done.stdout.strip()


def said(exhibit: Exhibit, plain: bool) -> str:
    """In the child: run the probe."""
    if not plain:
        sys.meta_path.insert(0, _Finder(plant_all(exhibit.code)))
    functions = runpy.run_path(str(folder() / "probes.py"))
    try:
        functions[exhibit.probe]()
    except AssertionError as error:
        return str(error) or "an assertion without words"
    return ""


def main() -> int:
    try:
        print(words := said(msgspec.json.decode(sys.argv[1], type=Exhibit), PLAIN in sys.argv))
    except Exception:
        traceback.print_exc()
        return 2
    return int(bool(words))


if __name__ == "__main__":
    sys.exit(main())
