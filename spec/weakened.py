"""Shows that each part of each property of a model (the system, prefix reuse) says something: without it a planted bug passes.

Rules: a bug passes a weaker form of a property in one of two ways, both decided by TLC over all that its configuration reaches:
  alone  the property breaks, no other property of the configuration does, and the weaker form holds: with it the bug passes;
  late   the property breaks in a run in which no other property, and not the weaker form either, breaks; those break in longer
         runs only.
A part for which no bug of the model does either says nothing and fails the check.  A property that rests on
fairness is the only one of its configuration; `also` then names what breaks of the safety properties.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import msgspec

from tidegate.spec.errors import SpecError
from tidegate.spec.museum import Planted, plant, planted
from tidegate.spec.mutants import all_mutants
from tidegate.spec.paths import root
from tidegate.spec.variant import Configuration, configurations
from tidegate.spec.watch import broken
from tidegate.spec.weaken import Property, Weakening, properties

__all__ = ["POOL", "SYSTEM", "Bug", "Row", "Subject", "all_properties", "best", "bugs", "judge", "judge_all"]


@dataclass(frozen=True)
class Subject:
    """A model whose properties are weakened.  module: the one that its configurations run; folder: of its modules; bugs: the file with
    its bugs; table: where the rows are kept; page: where they are shown."""

    module: str
    folder: str
    bugs: str
    table: str
    page: str

    @property
    def models(self) -> list[Configuration]:
        return configurations(module=self.module)


SYSTEM = Subject("System", "system", "museum/weakened.toml", "properties.toml", "model.md")
POOL = Subject("PrefixReuse", "pool", "pool/planted.toml", "pool/properties.toml", "reuse.md")


class Bug(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """name; mistake: what somebody did wrong, in words; configuration: where it is planted; and one of (module, old, new),
    mutant, planted: see tla/museum/weakened.toml.  property: the one that must see it, where that is said."""

    name: str
    mistake: str
    configuration: str
    module: str = "System"
    old: str = ""
    new: str = ""
    mutant: str = ""
    planted: str = ""
    property: str = ""

    def changed(self) -> dict[str, str]:
        """Name and source of the changed module. Raises SpecError if it cannot be planted."""
        if self.mutant:
            machine = self.mutant.partition(".")[0]
            found = [m.changed for m in all_mutants(machine) if m.name == self.mutant]
        elif self.planted:
            found = [plant(b) for b in planted() if b.property == self.planted][:1]  # of several, its first
        else:
            found = [plant(Planted("", self.mistake, self.module, self.old, self.new, self.configuration))]
        if len(found) != 1:
            raise SpecError(f"bug {self.name!r}: there is no {self.mutant or self.planted}: name one that exists, or give old and new")
        return found[0]


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"of": "property"}):
    """of (`property` in the table), number, kind, text: the weakening; bug, configuration: what passes, where; how: alone or late;
    steps: of the property's shortest run (0 where it rests on fairness); later: what breaks later, and after how many steps; also:
    see above."""

    of: str
    number: int
    kind: str
    text: str
    bug: str
    configuration: str
    how: str
    steps: int = 0
    later: str = ""
    also: str = ""

    @property
    def name(self) -> str:
        return f"{self.of}#{self.number}"


def bugs(subject: Subject = SYSTEM) -> list[Bug]:
    """All bugs of a model, in the order of the file. Raises SpecError for a file that holds something else."""
    path = root() / "tla" / subject.bugs
    if subject is not SYSTEM:  # there every bug is planted, and named by what somebody did wrong
        return [Bug(b.mistake, b.mistake, b.configuration, b.module, b.old, b.new, property=b.property) for b in planted(path)]
    try:
        return msgspec.convert(tomllib.loads(path.read_text())["bug"], list[Bug])
    except (KeyError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SpecError(f"{path} is no list of bugs: {error}") from None


@cache
def all_properties(subject: Subject = SYSTEM) -> tuple[Property, ...]:
    """Every property that a configuration of the model checks, by name."""
    return tuple(properties(sorted({name for c in subject.models for name in c.properties}), root() / "tla" / subject.folder))


def judge(bug: Bug, subject: Subject = SYSTEM) -> list[Row]:
    """What the bug passes: a row for each weakening that is blind to it. Raises SpecError if TLC cannot judge it, or the property that
    the bug names does not see it."""
    (model,) = (m for m in subject.models if m.name == bug.configuration)
    changed, known = bug.changed(), all_properties(subject)
    rows, said = (_judge_live if model.live else _judge_safe)(bug, model, changed, known)
    if bug.property not in {"", *said}:
        raise SpecError(f"{bug.property} does not see that {bug.mistake}: in {model.name} {', '.join(said) or 'nothing'} breaks")
    return rows


def _row(w: Weakening, bug: Bug, how: str, steps: int = 0, later: str = "", also: str = "") -> Row:
    return Row(w.of, w.number, w.kind, w.line, bug.name, bug.configuration, how, steps, later, also)


Judged = tuple[list[Row], list[str]]
"""The rows, and which properties of the configuration break."""


def _judge_safe(bug: Bug, model: Configuration, changed: dict[str, str], known: Sequence[Property]) -> Judged:
    asked = [p for p in known if p.name in model.properties]
    said = broken(model, changed, asked)
    rows = []
    for p in asked:
        others = {name: said[name] for name in said if name in model.properties and name != p.name}
        for w in p.weakenings if p.name in said else ():
            rest = others | ({w.name: said[w.name]} if w.name in said else {})
            if not rest:
                rows.append(_row(w, bug, "alone", said[p.name]))
            elif min(rest.values()) > said[p.name]:
                first = min(rest, key=lambda name: (rest[name], name))
                rows.append(_row(w, bug, "late", said[p.name], f"{first}, {rest[first]} steps"))
    return rows, [p.name for p in asked if p.name in said]


def _judge_live(bug: Bug, model: Configuration, changed: dict[str, str], known: Sequence[Property]) -> Judged:
    (p,) = (p for p in known if p.name in model.properties)
    if model.run(changed).violated != p.name:
        return [], []
    safe = [q for q in known if not q.temporal]
    said = broken(model, changed, safe)
    also = ", ".join(sorted(name for name in said if "#" not in name))
    rows = [_row(p.weakenings[0], bug, "alone", also=also)]
    for w in p.weakenings[1:]:
        main = model.module.stem
        text = changed.get(main) or model.module.read_text()
        end = list(re.finditer(r"^====+\s*$", text, re.MULTILINE))[-1].start()
        weaker = f"{text[:end]}Weaker ==\n{p.written(w)}\n{text[end:]}"
        config = model.without(model.properties) + "\nPROPERTY Weaker\n"
        if model.run({**changed, main: weaker}, text=config).verdict == "pass":
            rows.append(_row(w, bug, "alone", also=also))
    return rows, [p.name]


def best(rows: Iterable[Row], subject: Subject = SYSTEM) -> list[Row]:
    """For each weakening the row that says most: alone before late, the smaller configuration first."""
    states = {c.name: c.states for c in subject.models}
    order = sorted(rows, key=lambda r: (r.how != "alone", bool(r.also), states[r.configuration], r.bug))
    found = {r.name: r for r in reversed(order)}
    return [found[w.name] for p in all_properties(subject) for w in p.weakenings if w.name in found]


def judge_all(
    chosen: Sequence[Bug], subject: Subject = SYSTEM, *, jobs: int = 2, told: Callable[[Bug, list[Row]], None] = lambda bug, rows: None
) -> list[Row]:
    """Judge all bugs, `jobs` TLCs at a time; `told` hears of each as it comes, from any thread."""

    def one(bug: Bug) -> list[Row]:
        rows = judge(bug, subject)
        told(bug, rows)
        return rows

    all_properties(subject)
    with ThreadPoolExecutor(jobs) as pool:
        return [row for rows in pool.map(one, chosen) for row in rows]
