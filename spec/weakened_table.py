"""tla/properties.toml and tla/pool/properties.toml: for each part of each property of a model the bug that passes without it, committed;
and `tidegate check --properties`.

Rules: the table has one row for each weakening, in the order of the properties' names, and none besides; a part that is new,
gone or changed makes it stale, as does a part without a bug, and so does a bug that passes otherwise.  A table is written by
`tidegate check --properties --write` alone.
"""

from __future__ import annotations

import json
import threading
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tidegate.spec.errors import SpecError
from tidegate.spec.paths import root
from tidegate.spec.weakened import POOL, SYSTEM, Bug, Row, Subject, all_properties, best, bugs, judge_all

__all__ = ["differences", "document", "read", "run", "stale", "table_path", "write"]

BEGIN, END = "<!-- properties -->", "<!-- end of properties -->"
HOW = "run `tidegate check --properties --write` and read what it says of it"


def table_path(subject: Subject = SYSTEM) -> Path:
    return root() / "tla" / subject.table


def read(path: Path | None = None, subject: Subject = SYSTEM) -> list[Row]:
    """The committed table. Raises SpecError if it is not one."""
    path = path or table_path(subject)
    try:
        return msgspec.convert(tomllib.loads(path.read_text())["weakening"], list[Row])
    except (OSError, KeyError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SpecError(f"{path} is no table of properties ({error}): {HOW}") from None


def stale(rows: Sequence[Row], subject: Subject = SYSTEM) -> list[str]:
    """One line for each part that the table does not have, or has and should not, or has with another text."""
    known = {r.name: r for r in rows}
    now = {w.name: w for p in all_properties(subject) for w in p.weakenings}
    out = [f"{w.name} ({w.line}) has no bug that passes without it: it says nothing, or "
           f"tla/{subject.bugs} lacks a bug; {HOW}"
           for name, w in now.items() if name not in known]  # fmt: skip
    out += [f"{name} ({r.text}) is gone: {HOW}" for name, r in known.items() if name not in now]
    out += [f"{name} was ({known[name].text}), is ({w.line}): {HOW}" for name, w in now.items()
            if name in known and known[name].text != w.line]  # fmt: skip
    return out


def differences(rows: Sequence[Row], judged: Sequence[Row], chosen: Sequence[Bug]) -> list[str]:
    """Where committed rows about the chosen bugs are not among the judged ones."""
    names = {bug.name for bug in chosen}
    wrong = [row for row in rows if row.bug in names and row not in judged]
    now = {(r.name, r.bug): r for r in judged}
    return [f"{r.name}: committed {_short(r)}, now {_short(found) if (found := now.get((r.name, r.bug))) else 'seen all the same'}: {HOW}"
            for r in wrong]  # fmt: skip


def _short(r: Row) -> str:
    later = f", later {r.later}" if r.later else ""
    return f"{r.bug!r} passes in {r.configuration} ({r.how}, {r.steps} steps{later})"


def markdown(rows: Sequence[Row], subject: Subject = SYSTEM) -> str:
    """The table as the page of its model shows it, between its two marks."""
    mistakes = {bug.name: bug.mistake for bug in bugs(subject)}
    count = {how: sum(r.how == how for r in rows) for how in ("alone", "late")}
    lines = [f"{len(rows)} parts of {len({r.of for r in rows})} properties: {count['alone']} alone, {count['late']} late.", "",
             "| without | of | passes | where | how |", "|---|---|---|---|---|"]  # fmt: skip
    for r in rows:
        text = "the whole" if r.kind == "all" else f"`{r.text}`".replace("|", "\\|")
        how = r.how + (f"; {r.later.replace(',', ' after')}" if r.later else "") + (f"; also {r.also}" if r.also else "")
        lines.append(f"| {text} | {r.of} | {mistakes.get(r.bug, r.bug)} | {r.configuration} | {how} |")
    return "\n".join([BEGIN, *lines, END])


def document(text: str, rows: Sequence[Row], subject: Subject = SYSTEM) -> str:
    """The page with the table brought up to date. Raises SpecError if it lacks the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SpecError(f"docs/{subject.page} has not both {BEGIN} and {END}: put them where the table shall stand")
    return before + markdown(rows, subject) + after


def write(rows: Sequence[Row], subject: Subject = SYSTEM) -> Path:
    """Write the table, and the page of its model after it."""
    path, page = table_path(subject), root() / "docs" / subject.page
    head = "# Written by `tidegate check --properties --write`; what the columns mean is told in docs/model.md.\n"
    path.write_text(head + "".join(map(_toml, rows)))
    page.write_text(document(page.read_text(), rows, subject))
    return path


def _toml(row: Row) -> str:
    fields = msgspec.to_builtins(row).items()
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields if value not in ("", 0) or key == "number"]
    return "\n[[weakening]]\n" + "\n".join(lines) + "\n"


def run(*, quick: bool = False, jobs: int = 2, write_table: bool = False, console: Console | None = None) -> bool:
    """Judge all bugs of both models (with quick, those against fairness are left out) and compare with the tables, or write them.
    True if every part has its bug and all is as the tables say."""
    console = console or Console()
    fine = [run_one(subject, quick=quick, jobs=jobs, write_table=write_table, console=console) for subject in (SYSTEM, POOL)]
    return all(fine)


def run_one(subject: Subject, *, quick: bool, jobs: int, write_table: bool, console: Console) -> bool:
    live = {c.name for c in subject.models if c.live}
    chosen = [bug for bug in bugs(subject) if not (quick and bug.configuration in live)]
    judged = _judged(chosen, subject, jobs, console)
    rows = best(judged, subject)
    if write_table:
        console.print(f"wrote {write(rows, subject)}")
        wrong = stale(rows, subject)
    else:
        rows = read(subject=subject)
        wrong = stale(rows, subject) + differences(rows, judged, chosen)
    console.print(summary(rows, subject))
    for line in wrong:
        console.print(Text(line, "bold red"))
    return not wrong


def _judged(chosen: Sequence[Bug], subject: Subject, jobs: int, console: Console) -> list[Row]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    lock = threading.Lock()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("bugs", total=len(chosen))

        def told(bug: Bug, rows: list[Row]) -> None:
            with lock:
                progress.advance(task)
                passes = ", ".join(f"{r.name} {r.how}" for r in rows) or "nothing"
                console.print(Text(f"{bug.name} in {bug.configuration}: passes without {passes}"), highlight=False)

        return judge_all(chosen, subject, jobs=jobs, told=told)


def summary(rows: Sequence[Row], subject: Subject = SYSTEM) -> Table:
    """property, its parts, how many of them a bug passes alone and late."""
    table = Table("property", "parts", "alone", "late", "bugs")
    for p in all_properties(subject):
        mine = [r for r in rows if r.of == p.name]
        counts = (sum(r.how == how for r in mine) for how in ("alone", "late"))
        table.add_row(Text(p.name), str(len(p.weakenings)), *map(str, counts), Text(", ".join(dict.fromkeys(r.bug for r in mine))))
    return table
