"""The planted change as a reader wants to see it: our lines and the wrong ones, under the name of the definition that they stand in.

Rules: what is shown is the difference between our source and the planted one, computed, and nothing that is alike but the head of
a definition or the whole of a short one; of several changed definitions only the guard's, if it is among them; a guard that itself is
not changed shows its decisive line first.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tidegate.spec.errors import SpecError
from tidegate.spec.museum import Exhibit, definition, modules, plant_all
from tidegate.spec.paths import root

__all__ = ["guard_diff"]

SHORT = 7  # lines of a definition that is shown whole
MANY = 6  # changed lines that are shown all
TLA = re.compile(r"^(\w+)(?:\([^)]*\))? ==")
PYTHON = re.compile(r"^ *(?:def|class) (\w+)")
TYPES = ("Messages",)  # sets of values that follow the change and decide nothing


def guard_diff(exhibit: Exhibit) -> list[str]:
    """The lines of a ```diff block. Raises SpecError if the fault cannot be planted."""
    changes = plant_all(exhibit.code if exhibit.probe else exhibit.changes)
    hunks = [hunk for name, new in sorted(changes.items()) for hunk in _hunks(_old(name), new.splitlines(), name)]
    name = exhibit.guard.rpartition("!")[2]
    own = [line for where, lines in hunks if where == name for line in lines]
    if own:
        return _fewer(own, exhibit.conjunct)
    others = [line for where, lines in hunks if where not in TYPES for line in lines]
    return [*_decisive(exhibit), *others]


def _fewer(lines: list[str], decisive: str) -> list[str]:
    """Of many changed lines those that hold the decisive text, each with what becomes of it."""
    first = decisive.strip().split("\n")[0]
    marked = [line for line in lines if line[0] != " "]
    ours = [i for i, line in enumerate(lines) if line[0] == "-" and first in line]
    if len(marked) <= MANY or not ours:
        return lines
    start = lines[ours[0]].split("=")[0].replace("-", "+", 1)
    theirs = [line for line in lines if line.startswith(start)]
    left = len(marked) - 1 - len(theirs)
    return [*(line for line in lines[:1] if line[0] == " "), lines[ours[0]], *theirs, f"  ... and {left} more lines that go with it"]


def _old(name: str) -> list[str]:
    path = modules().get(name) or root() / name
    return path.read_text().splitlines()


def _hunks(old: list[str], new: list[str], name: str) -> Iterator[tuple[str, list[str]]]:
    """(the definition, its lines with - and + in front) for each definition that differs."""
    form = PYTHON if Path(name).suffix == ".py" else TLA
    parts: dict[int, list[tuple[int, int, int, int]]] = {}
    for kind, i, j, k, n in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            parts.setdefault(_head(old, i, form), []).append((i, j, k, n))
    for head, places in parts.items():
        found = form.match(old[head])
        yield (found[1] if found else "", _marked(old, new, head, places, form))


def _head(lines: list[str], at: int, form: re.Pattern[str]) -> int:
    """The line at which the definition begins that holds the line `at`."""
    return next((i for i in range(min(at, len(lines) - 1), -1, -1) if form.match(lines[i])), at)


def _marked(old: list[str], new: list[str], head: int, places: list[tuple[int, int, int, int]], form: re.Pattern[str]) -> list[str]:
    """A definition with - before our lines and + before the wrong ones; a long one with its head and the changed lines alone."""
    end = next((i for i in range(head + 1, len(old)) if not old[i].strip() or form.match(old[i])), len(old))
    whole = form is TLA and end - head <= SHORT
    lines: list[tuple[str, str]] = []
    at = head
    for i, j, k, n in places:
        alike = old[at:i] if whole else old[head : head + 1] if at == head and i > head else []
        lines += [(" ", line) for line in alike] + [("-", line) for line in old[i:j]] + [("+", line) for line in new[k:n]]
        at = j
    lines += [(" ", line) for line in old[at:end] if whole]
    lines = [(mark, bare) for mark, line in lines if (bare := re.sub(r"\s*\\\*.*$", "", line))]
    text = textwrap.dedent("\n".join(line for _, line in lines)).split("\n")
    return [f"{mark} {line}".rstrip() for (mark, _), line in zip(lines, text, strict=True)]


def _decisive(exhibit: Exhibit) -> list[str]:
    """The lines of the guard that hold its decisive text."""
    try:
        lines = definition(exhibit.guard).rstrip().split("\n")
    except SpecError:  # a guard that is no definition of a module
        return []
    first = exhibit.conjunct.strip().split("\n")[0].strip()
    found = [line for line in lines if first in line][:1]
    return [f"  {lines[0].rstrip()}"] * (lines[0] not in found) + [f"  {line.rstrip()}" for line in found]
