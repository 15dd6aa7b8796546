"""tla/mutants.toml: what became of each dropped conjunct, committed.

Rules: the table has one entry for each conjunct of each guard, in the order of the sources, and none besides; a conjunct that
is new, gone or changed makes it stale, and so does a judgement that comes out otherwise.  It is written by
`tidegate check --mutants --write` alone.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.spec.errors import SpecError
from tidegate.spec.mutants import DEFENCE, Mutant, Verdict, all_mutants
from tidegate.spec.paths import root

__all__ = ["Entry", "differences", "document", "known", "read", "stale", "table_path", "write"]

BEGIN, END = "<!-- mutants -->", "<!-- end of mutants -->"
HOW = "run `tidegate check --mutants --write` and read what it says of the new ones"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row; the fields are those of mutants.Verdict."""

    machine: str
    guard: str
    number: int
    conjunct: str
    kind: str
    configuration: str = ""
    violates: str = ""
    steps: int = 0
    effect: str = ""
    real: str = ""
    alone: str = ""

    @property
    def name(self) -> str:
        return f"{self.machine}.{self.guard}#{self.number}"


def table_path() -> Path:
    return root() / "tla" / "mutants.toml"


def entry(v: Verdict) -> Entry:
    c = v.mutant.conjunct
    return Entry(c.machine, c.guard, c.number, v.mutant.text, v.kind, v.configuration, v.violated, v.steps, v.effect, v.real,
                 v.alone)  # fmt: skip


def read(path: Path | None = None) -> list[Entry]:
    """The committed table. Raises SpecError if it is not one."""
    path = path or table_path()
    try:
        return msgspec.convert(tomllib.loads(path.read_text())["mutant"], list[Entry])
    except (OSError, KeyError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SpecError(f"{path} is no table of mutants ({error}): {HOW}") from None


def known(entries: Iterable[Entry]) -> dict[str, tuple[str, str]]:
    """Of each row that says killed: where, and by which property (`mutant_jobs.Known`)."""
    return {e.name: (e.configuration, e.violates) for e in entries if e.kind == "killed"}


def stale(entries: Sequence[Entry], mutants: Iterable[Mutant] | None = None) -> list[str]:
    """One line for each conjunct that the table does not have, or has and should not, or has with another text."""
    rows = {e.name: e for e in entries}
    now = {m.name: m for m in (all_mutants() if mutants is None else mutants)}
    out = [f"{m.name} ({m.text}) is new: {HOW}" for name, m in now.items() if name not in rows]
    out += [f"{name} ({e.conjunct}) is gone: {HOW}" for name, e in rows.items() if name not in now]
    out += [
        f"{name} was ({rows[name].conjunct}), is ({m.text}): {HOW}"
        for name, m in now.items()
        if name in rows and rows[name].conjunct != m.text
    ]
    return out + [f"{e.name} is open: {e.effect}" for e in entries if e.kind == "open"]


def differences(entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> list[str]:
    """Where a judgement differs from the committed one in anything that its row says."""
    rows = {e.name: e for e in entries}
    out = []
    for now in map(entry, verdicts):
        e = rows.get(now.name)
        if e is not None and (e.kind, e.violates) != (now.kind, now.violates):
            out.append(f"{e.name}: committed {e.kind} {e.violates}, now {now.kind} {now.violates} ({now.effect}): {HOW}")
        elif e is not None and e != now:
            fields = (f for f in e.__struct_fields__ if getattr(e, f) != getattr(now, f))
            told = "; ".join(f"{f} was {getattr(e, f)!r}, is {getattr(now, f)!r}" for f in fields)
            out.append(f"{e.name}: {told}: {HOW}")
    return out


def markdown(entries: Sequence[Entry]) -> str:
    """The table as docs/model.md shows it, between its two marks: how many of each kind, then every row."""
    kinds = ("killed", *DEFENCE)
    lines = [f"| machine | conjuncts | {' | '.join(kinds)} |", "|---|---|" + "---|" * len(kinds)]
    machines = list(dict.fromkeys(e.machine for e in entries))
    for name, mine in [(m, [e for e in entries if e.machine == m]) for m in machines] + [("all", list(entries))]:
        counts = (sum(e.kind == kind for e in mine) for kind in kinds)
        lines.append(f"| {name} | {len(mine)} | {' | '.join(map(str, counts))} |")
    lines += ["", "| conjunct | text | without it | how |", "|---|---|---|---|"]
    return "\n".join([BEGIN, *lines, *map(_row, entries), END])


def _row(e: Entry) -> str:
    text = e.conjunct.replace("|", "\\|")
    if e.kind == "killed":
        how = f"{e.effect}; with it: {e.real}".replace("|", "\\|")
        return f"| {e.name} | `{text}` | **{e.violates}** in {e.configuration}, {e.steps} steps | {how} |"
    alone = f"; alone the machine breaks {e.alone}" if e.alone else ""
    return f"| {e.name} | `{text}` | {e.kind} | {e.effect}{alone} |"


def document(text: str, entries: Sequence[Entry]) -> str:
    """docs/model.md with the table brought up to date. Raises SpecError if it lacks the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SpecError(f"docs/model.md has not both {BEGIN} and {END}: put them where the table shall stand")
    return before + markdown(entries) + after


def write(verdicts: Sequence[Verdict], path: Path | None = None, order: Sequence[str] = ()) -> Path:
    """Write the table (and, if it is the committed one, docs/model.md after it); rows that were not judged stay as they were.
    order: the names of all conjuncts, if the caller knows them: listing them takes seconds."""
    committed = path is None
    order = order or [m.name for m in all_mutants()]
    path = path or table_path()
    fresh = {v.mutant.name: entry(v) for v in verdicts}
    kept = {e.name: e for e in read(path)} if path.exists() else {}
    rows = [fresh.get(name) or kept.get(name) for name in order]
    head = '# Written by `tidegate check --mutants --write`; what the columns mean is told in docs/model.md.\n'
    path.write_text(head + "".join(_toml(row) for row in rows if row is not None))
    if committed:
        page = root() / "docs" / "model.md"
        page.write_text(document(page.read_text(), read(path)))
    return path


def _toml(row: Entry) -> str:
    fields: dict[str, Any] = msgspec.to_builtins(row)
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items() if value not in ("", 0)]
    return "\n[[mutant]]\n" + "\n".join(lines) + "\n"
