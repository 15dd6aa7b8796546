"""`tidegate check --museum`: judge the exhibits with progress, and show what came of each.

Rules: the exit is good only if every exhibit fails on its property, comes to harm in the sessions and, unless the result is to
be written, says what tla/museum/found.toml says of it; a run over some exhibits writes and compares those alone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tidegate.spec.museum import Exhibit, Found, exhibits, folder, found
from tidegate.spec.museum_judge import Judged, judge, setting

__all__ = ["difference", "run", "write"]

HOW = "run `tidegate check --museum --write` and read what changed"


def run(names: Sequence[str] = (), *, jobs: int = 2, write_found: bool = False, console: Console | None = None) -> bool:
    """Judge the exhibits named (all if none). True if all is as it should be. Raises SpecError for a name that nobody has."""
    console = console or Console()
    chosen, known = exhibits(names), found()
    judged = _judged(chosen, jobs, console)
    console.print(summary(judged))
    wrong = [f"{j.exhibit.name}: {j.wrong}" for j in judged if j.wrong]
    if write_found:
        console.print(f"wrote {write([j.found for j in judged if j.found and not j.wrong])}")
    else:
        wrong += [line for j in judged if (line := difference(j, known.get(j.exhibit.name)))]
        wrong += [f"{name} is in found.toml and in no theme: {HOW}" for name in sorted(set(known) - {e.name for e in chosen}) if not names]
    for line in wrong:
        console.print(Text(line, "bold red"))
    return not wrong


def difference(j: Judged, before: Found | None) -> str:
    """How what came of an exhibit differs from what was committed, or nothing.  Against fairness TLC's counterexample is not the
    shortest, and not always the same: there only the property and that the sessions come to harm are compared."""
    if j.found is None or j.wrong:
        return ""
    if before is None:
        return f"{j.exhibit.name} is new: {HOW}"
    names = ("property",) if not j.exhibit.probe and setting(j.exhibit).model.live else ("property", "steps", "states", "harm", "ours")
    fields = [f for f in names if getattr(before, f) != getattr(j.found, f)]
    said = ", ".join(f"{f} {getattr(before, f)!r}, now {getattr(j.found, f)!r}" for f in fields)
    return f"{j.exhibit.name}: {said}: {HOW}" if fields else ""


def _judged(chosen: Sequence[Exhibit], jobs: int, console: Console) -> list[Judged]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    lock = threading.Lock()
    with Progress(*columns, console=console, transient=True) as progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task("museum", total=len(chosen))

        def one(exhibit: Exhibit) -> Judged:
            judged = judge(exhibit, control=True)
            with lock:
                steps = judged.found.steps if judged.found else 0
                said = judged.wrong or f"{exhibit.property} {f'in {steps} steps' if steps else 'by a probe'}"
                console.print(Text(f"{exhibit.name}: {said}"), highlight=False)
                progress.update(task, advance=1)
            return judged

        return list(pool.map(one, chosen))


def summary(judged: Sequence[Judged]) -> Table:
    """exhibit, property, steps, what the sessions with the fault did and what ours make of it."""
    table = Table("exhibit", "fails on", "steps", "with the fault", "without it")
    for j in judged:
        f, style = j.found, "bold red" if j.wrong else "green"
        steps = str(f.steps or "probe") if f else ""
        table.add_row(Text(j.exhibit.name, style), Text(f.property if f else ""), steps,
                      Text(j.exhibit.unreplayed or (f.harm if f else j.wrong)), Text(f.ours if f else ""))  # fmt: skip
    table.caption = f"{sum(not j.wrong for j in judged)} of {len(judged)} as they should be"
    return table


def write(rows: Sequence[Found], path: Path | None = None) -> Path:
    """Write found.toml: the rows given, and of the others those whose exhibit still exists, in the museum's order."""
    path = path or folder() / "found.toml"
    known = found(path) | {row.name: row for row in rows}
    head = "# Written by `tidegate check --museum --write`: what came of each exhibit, here and in the sessions.\n"
    path.write_text(head + "".join(_toml(known[e.name]) for e in exhibits() if e.name in known))
    return path


def _toml(row: Found) -> str:
    fields = {key: value for key, value in msgspec.to_builtins(row).items() if value not in ("", 0, [])}
    return "\n[[found]]\n" + "\n".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()) + "\n"
