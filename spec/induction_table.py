"""tla/inductive/dropped.toml: what breaks without each part of the invariant and each conjunct of a guard, committed.

Rules: one row for each part of each conjunct of Inv that is no property, and for each guard conjunct of the machines that the
module applies, in the order of the sources; a part that nothing misses has no row: it has to go; a guard conjunct that the
invariant does not need says so by naming nothing.  Written by `tidegate check --induction --mutants --write` alone.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidegate.spec.errors import SpecError
from tidegate.spec.induction import Outcome
from tidegate.spec.induction_drop import Part
from tidegate.spec.mutate import Conjunct
from tidegate.spec.paths import root

__all__ = ["Row", "name_of", "path", "read", "row_of", "stale", "write"]

HOW = "run `tidegate check --induction --mutants --write` and read what it says of the new ones"


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """name: of the part or the guard conjunct; text: its source; after action, `breaks` does not hold any more (empty: Inv is
    inductive without it)."""

    name: str
    text: str
    action: str = ""
    breaks: str = ""


def path() -> Path:
    return root() / "tla" / "inductive" / "dropped.toml"


def name_of(what: Part | Conjunct) -> str:
    return what.name if isinstance(what, Part) else f"{what.machine}.{what.guard}#{what.number}"


def row_of(what: Part | Conjunct, outcome: Outcome | None) -> Row:
    """outcome: what breaks, or None. Raises SpecError for one that z3 left open."""
    text = " ".join(what.text.split())
    if outcome is None:
        return Row(name_of(what), text)
    if outcome.verdict != "refuted":
        raise SpecError(f"{name_of(what)}: z3 cannot say whether {outcome.conjunct} holds after {outcome.action} without it")
    return Row(name_of(what), text, outcome.action, outcome.conjunct)


def read(file: Path | None = None) -> list[Row]:
    """The committed table. Raises SpecError if it is not one."""
    file = file or path()
    try:
        return msgspec.convert(tomllib.loads(file.read_text())["row"], list[Row])
    except (OSError, KeyError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SpecError(f"{file}: {error}: {HOW}") from None


def write(rows: Sequence[Row], file: Path | None = None) -> Path:
    file = file or path()
    head = "# Written by `tidegate check --induction --mutants --write`; what it means is told in docs/any-size.md.\n"
    body = []
    for row in rows:
        fields = {k: v for k, v in msgspec.to_builtins(row).items() if v != ""}
        body.append("\n[[row]]\n" + "".join(f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in fields.items()))
    file.write_text(head + "".join(body))
    return file


def stale(rows: Sequence[Row], everything: Sequence[Part | Conjunct]) -> list[str]:
    """In which ways the table does not fit the sources, in words."""
    known = {row.name: row for row in rows}
    texts = {name_of(what): " ".join(what.text.split()) for what in everything}
    out = [f"{name} is not in the table: {HOW}" for name in texts if name not in known]
    out += [f"{name} is in the table, but no more in the sources: {HOW}" for name in known if name not in texts]
    return out + [f"{name} was {known[name].text} and is {text}: {HOW}" for name, text in texts.items()
                  if name in known and known[name].text != text]  # fmt: skip
