"""What the variables, keys and properties of a model are called, taken from its TLA+ source.

Rules: nothing here lists the names of a model: the machine of a variable is the one that Init starts it with (`runs = [r \\in Runs
|-> PR!Initial]` and `PR == INSTANCE PrefillRun`), its keys are called after the sets that they come from, and a definition is
explained by the comment above it; so a model that grows keeps its words, and one without them is shown as TLA+ writes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tidegate.spec.comments import above
from tidegate.spec.paths import library
from tidegate.spec.values import Value, show

__all__ = ["Definition", "Vocabulary", "items", "record"]

EXTENDS = re.compile(r"^\s*EXTENDS\s+(.+)$", re.MULTILINE)
DEFINITION = re.compile(r"^(\w+)(?:\([\w, ]*\))?\s*==", re.MULTILINE)
INSTANCE = re.compile(r"^(\w+) == INSTANCE (\w+)", re.MULTILINE)
STARTS = re.compile(r"^\s*/\\ (\w+) = \[\w+ \\in (.+?) \|-> (?:\[\w+ \\in (.+?) \|-> )?(?:(\w+)!)?", re.MULTILINE)
KNOWN = {"Blocks": ["block set"], "Gates": ["slot", "lane"]}  # sets whose members are not called after them


FIRST: dict[str, Value] = {"member": 0, "lane": 1}
"""The first of these goes without saying: most models have no other."""


@dataclass(frozen=True)
class Definition:
    """An operator: text from its name to its end, in its columns; comment: the lines above it."""

    name: str
    text: str
    comment: str
    place: str


class Vocabulary:
    """The words of one model.

    module: its main file; changed: source of modules that stand in for those of the checkout (a planted bug).
    """

    def __init__(self, module: Path, changed: Mapping[str, str] | None = None) -> None:
        self.sources: dict[str, str] = {}
        self._read(module, changed or {})
        self.text = "\n".join(self.sources.values())

    def _read(self, module: Path, changed: Mapping[str, str]) -> None:
        text = changed.get(module.stem) or module.read_text()
        self.sources[module.stem] = text
        for line in EXTENDS.findall(text):
            for name in re.findall(r"\w+", line):
                found = [path for folder in library() if (path := folder / f"{name}.tla").exists()]
                if found and name not in self.sources:
                    self._read(found[0], changed)

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """Every operator of the model by name."""
        out = {}
        for module, text in self.sources.items():
            lines = text.splitlines()
            for found in DEFINITION.finditer(text):
                start = text.count("\n", 0, found.start())
                end = start + 1
                while end < len(lines) and (lines[end].startswith(" ") and lines[end].strip()):
                    end += 1
                top = start
                while not (comment := above(lines, top + 1)) and top and lines[top - 1].strip():
                    top -= 1  # definitions without a gap share the comment above the first
                out[found[1]] = Definition(found[1], "\n".join(lines[start:end]), comment, f"{module}.tla:{start + 1}")
        return out

    def comment(self, name: str) -> str:
        """The comment above a definition as one line, without a number such as `I6, I16:` in front; empty if there is none."""
        definition = self.definitions.get(name)
        return re.sub(r"^(?:[IL]\d+[^:]*): ", "", " ".join(definition.comment.split())) if definition else ""

    @cached_property
    def _starts(self) -> dict[str, tuple[list[str], str]]:
        """Variable -> (its domain, and that of its values if they are functions too; the machine it starts as)."""
        machines = dict(INSTANCE.findall(self.text))
        found = STARTS.findall(self.text)
        return {name: ([d for d in domains if d], machines.get(alias, "")) for name, *domains, alias in found}

    def machine(self, variable: str) -> str:
        """The machine whose states a variable holds; empty if none."""
        return self._starts.get(variable, ([], ""))[1]

    def words(self, domain: str) -> list[str]:
        """What the components of a set's members are called: Runs \\X Chunks -> run, chunk.  Empty if nothing is known."""
        out: list[str] = []
        for part in re.split(r"\\X", domain):
            name = part.strip(" ()")
            found = self.definitions.get(name)
            body = re.sub(r"\\\*.*", "", found.text.split("==", 1)[1]) if found else ""
            if name in KNOWN:
                out += KNOWN[name]
            elif "\\X" in body:
                out += self.words(body)
            elif re.fullmatch(r"[A-Z]\w*s", name):
                out.append(re.sub(r"(?<!^)(?=[A-Z])", " ", name[:-1]).lower())
            elif name.startswith("DOMAIN ") and name.split()[1] in self._starts:
                out += self.words(self._starts[name.split()[1]][0][0])
            else:
                return []
        return out

    def domain(self, variable: str) -> list[list[str]]:
        """Words for the keys of a variable, outer ones first; empty if it is no function."""
        return [self.words(domain) for domain in self._starts[variable][0]] if variable in self._starts else []

    def named(self, words: list[str], key: Value) -> str:
        """A key in words: <<1, 2, 1>> -> run 1 chunk 2 layer 1."""
        parts = items(key)
        if parts is None:
            parts = [key]
        if len(words) != len(parts):
            return show(key)
        return " ".join(f"{word} {_plain(part)}" for word, part in zip(words, parts, strict=True) if FIRST.get(word) != part)

    @cached_property
    def transfer(self) -> list[str]:
        """Words for a transfer's name."""
        return self.words("Transfers")


def _plain(value: Value) -> str:
    return value if isinstance(value, str) else show(value)


def items(value: Value) -> list[Value] | None:
    """A sequence's members; None for any other value."""
    if not (isinstance(value, tuple) and value[0] == "fun"):
        return None
    pairs = dict(value[1])
    return [pairs[i] for i in range(1, len(pairs) + 1)] if pairs and set(pairs) == set(range(1, len(pairs) + 1)) else None


def record(value: Value) -> dict[str, Value] | None:
    """A record's fields; None for any other value."""
    if not (isinstance(value, tuple) and value[0] == "fun"):
        return None
    pairs = dict(value[1])
    return pairs if pairs and all(isinstance(k, str) for k in pairs) else None
