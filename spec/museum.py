"""The museum: faults that users of such systems met, planted in our model.

Rules: an exhibit (`tla/museum/*.toml`, `[[exhibit]]`) names its public reference, the property that must fail and the guard that
prevents it here; a property's own bug is a `[[planted]]` of `planted.toml`.  A planted change is a replacement of text that
occurs exactly once in the modules of the machines and the system together (or in the one module or file that it names), so that
it survives a text that moves; the checkout is only read.  What TLC and the sessions make of an exhibit is in `found.toml`,
written by `tidegate check --museum --write` alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.spec.errors import SpecError
from tidegate.spec.paths import root
from tidegate.spec.story_columns import Column
from tidegate.spec.tlc_output import Result
from tidegate.spec.variant import configurations

__all__ = ["Change", "Exhibit", "Found", "Planted", "definition", "exhibits", "found", "plant", "plant_all", "planted", "show"]


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """old, new: text to replace, and by what.  module: the TLA+ module, where the text occurs in more than one, or System for
    those of tla/system.  file: a source file below the checkout instead (or a folder, `protocol/`, for any file in it), for the
    sessions that carry out what the system says."""

    old: str
    new: str
    module: str = ""
    file: str = ""


class Planted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """mistake: what somebody did wrong, in words; old, new, module: the change; property: what must break, where."""

    property: str
    mistake: str
    module: str
    old: str
    new: str
    configuration: str


class Exhibit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One fault, for a reader and for TLC.

    name: kebab-case, unique; theme: its file; title: one line; references: `owner/repository#number`, or a row of ours where the
    fault was read in code and never confirmed (basis = "code", else "reported").  saw: what users saw; how: what went wrong
    there; planted: the same mistake in our model, in words; stands: what stands for what here ({mistake}, {harm} and {Claim}, an
    action of the behaviour, become its number).
    changes: in TLA+; code: the same in the sessions, where the change is not in a machine (those are regenerated).
    property: what TLC must name; rule: the clause of it that breaks, in words; aside: properties that break even earlier and say less.
    guard: `Machine!Definition`, or the name of an operator of the system, that prevents the fault here; conjunct: the decisive text
    in it; means: what it says, in words; prevents: why that is so.
    ours: why the sessions as they are do not come to harm; hurt: what the harm that they come to with the fault has to do with the
    behaviour, where that is not plain.  show: further columns of the picture (spec/story_columns.py); drawing: instead of a picture.
    configuration: a name of tla/models/manifest.toml; constants, specification: what differs from it.
    unreplayed: why the counterexample is not replayed through the sessions, if it is not.
    probe: for a fault about rows or addresses, which the model does not have: the function of tla/museum/probes.py that sees it
    instead of TLC.  Then the guard is `file.py!function`, and only code is changed.
    """

    name: str
    title: str
    references: list[str]
    peers: list[str]
    basis: str = "reported"
    saw: str
    how: str
    planted: str
    stands: str
    changes: list[Change] = []
    code: list[Change] = []
    property: str
    rule: str
    aside: list[str] = []
    guard: str
    conjunct: str
    means: str
    prevents: str
    ours: str = ""
    hurt: str = ""
    show: list[Column] = []
    drawing: str = ""
    configuration: str = ""
    constants: dict[str, str] = {}
    specification: str = ""
    unreplayed: str = ""
    probe: str = ""
    theme: str = ""


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What came of an exhibit.  steps: of the counterexample, 0 where a probe looks; states: distinct ones that TLC had seen by
    then; labels: the steps, in words; harm: what the byte oracle sees when the sessions with the fault take them (or what the probe
    says); ours: what the sessions as they are make of the same schedule."""

    name: str
    property: str
    steps: int = 0
    states: int = 0
    labels: list[str] = []
    harm: str = ""
    ours: str = ""


def folder() -> Path:
    return root() / "tla" / "museum"


def _read(path: Path, key: str, kind: Any) -> list[Any]:
    try:
        return list(msgspec.convert(tomllib.loads(path.read_text()).get(key, []), list[kind]))
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SpecError(f"{path.name}: {error}") from None


def planted(path: Path | None = None) -> list[Planted]:
    """One bug for each property."""
    return _read(path or folder() / "planted.toml", "planted", Planted)


def exhibits(names: Iterable[str] = ()) -> list[Exhibit]:
    """Every exhibit (those named, if any are), by theme. Raises SpecError for a file that does not fit and a name nobody has."""
    every = [msgspec.structs.replace(e, theme=path.stem) for path in sorted(folder().glob("*.toml"))
             for e in _read(path, "exhibit", Exhibit)]  # fmt: skip
    wanted, known = list(names), {e.name for e in every}
    if unknown := [name for name in wanted if name not in known]:
        raise SpecError(f"no exhibit named {', '.join(unknown)}: there are {', '.join(sorted(known))}")
    return [e for e in every if not wanted or e.name in wanted]


def found(path: Path | None = None) -> dict[str, Found]:
    """What came of each exhibit when the museum was last written, by name."""
    path = path or folder() / "found.toml"
    return {f.name: f for f in _read(path, "found", Found)} if path.exists() else {}


# ---- planting -----------------------------------------------------------------------------------------------------


def modules() -> dict[str, Path]:
    """The modules in which a fault may be planted: the machines and the system."""
    top = root() / "tla"
    return {path.stem: path for place in ("machines", "system") for path in sorted((top / place).glob("*.tla"))}


def pool() -> dict[str, Path]:
    """The modules of prefix reuse, in which a fault may be planted that names one of them."""
    return {path.stem: path for path in sorted((root() / "tla" / "pool").glob("*.tla"))}


def _sources(file: str) -> dict[str, Path]:
    """A source file below the checkout, or all of a folder whose name ends in a slash."""
    paths = sorted((root() / file).glob("*.py")) if file.endswith("/") else [root() / file]
    return {str(path.relative_to(root())): path for path in paths}


def part_of(path: Path) -> str:
    """System for a module of tla/system, whatever its own name; nothing for another."""
    return "System" if path.parent.name == "system" else ""


def plant_all(changes: Sequence[Change]) -> dict[str, str]:
    """Module name (or file) -> its source with the changes. Raises SpecError unless each text occurs exactly once."""
    out: dict[str, str] = {}
    for change in changes:
        places = _sources(change.file) if change.file else modules()
        if change.module:
            places = {name: path for name, path in (places | pool()).items() if change.module in (name, part_of(path))}
        texts = {name: out.get(name) or path.read_text() for name, path in places.items()}
        times = {name: text.count(change.old) for name, text in texts.items() if change.old in text}
        if sum(times.values()) != 1:
            where = ", ".join(f"{name} {n} times" for name, n in times.items()) or "no module"
            raise SpecError(f"to plant a fault its text must occur once; it occurs in {where}: {change.old}")
        (name,) = times
        out[name] = texts[name].replace(change.old, change.new)
    return out


def definition(guard: str) -> str:
    """The text of `Machine!Definition`, of a definition of the system, or of `file.py!function`. Raises SpecError if there is none,
    or several."""
    module, _, name = guard.rpartition("!")
    if module.endswith(".py"):
        places, form = [root() / module], rf"^( *)def {re.escape(name)}\(.*?(?=^\1\S|\Z)"
    else:
        places = [modules()[module]] if module in modules() else sorted((root() / "tla" / "system").glob("*.tla"))
        form = rf"^{re.escape(name)}(?:\([^)]*\))? ==.*?(?=^\S|\Z)"
    pattern = re.compile(form, re.MULTILINE | re.DOTALL)
    texts = [hit[0] for path in places for hit in pattern.finditer(path.read_text())]
    if len(texts) != 1:
        raise SpecError(f"{guard} is defined {len(texts)} times, not once")
    return texts[0]


def plant(bug: Planted) -> dict[str, str]:
    """Module name -> source with the bug."""
    return plant_all([Change(bug.old, bug.new, bug.module)])


def show(bug: Planted) -> Result:
    """TLC's result with the bug planted."""
    (model,) = configurations([bug.configuration])
    return model.run(plant(bug))
