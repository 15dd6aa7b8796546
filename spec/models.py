"""`tidegate check`: runs TLC over the configurations of tla/models/manifest.toml and compares verdicts with promises.

Rules: a configuration differs from its promise if its verdict does, if it violates another property than the one named, or
if it reaches another number of states than the manifest says; two TLCs run at a time; every configuration is judged, even
after one that differs.

A manifest is a list of tables of any name (`[[model]]`), each with: name; module (a file name in one of the folders of tla,
or a path below tla) and cfg (below tla/models); expect = "pass" (default), "deadlock" or {violates = "Property"}; and,
optionally, distinct (states), workers (1), quick (false), deadlock (false: do not look for deadlocks), options (TLC's own).
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from tidegate.spec import tlc
from tidegate.spec.errors import SpecError
from tidegate.spec.paths import library, root
from tidegate.spec.tlc_output import Result

AT_ONCE = 2
QUICK_SILENCE = 180.0  # s: a quick configuration takes seconds
PROGRESS = re.compile(r"Progress\((\d+)\).*?: ([\d,]+) states generated.*?, ([\d,]+) distinct")


@dataclass
class Model:
    """One configuration; violates: the property that it must violate, None if it must pass (or, with `ends`, deadlock)."""

    name: str
    module: Path
    config: Path
    verdict: str = "pass"
    violates: str | None = None
    distinct: int | None = None
    workers: int = 1
    quick: bool = False
    deadlock: bool = False
    options: list[str] = field(default_factory=list)

    @property
    def promise(self) -> str:
        return f"violates {self.violates}" if self.violates else self.verdict


@dataclass
class Outcome:
    """What TLC said about a model; error: why it could say nothing; wrong: how that differs from the promise, empty if not."""

    model: Model
    seconds: float
    result: Result | None
    error: str = ""

    @property
    def said(self) -> str:
        if self.result is None:
            return "error"
        return f"violates {self.result.violated}" if self.result.verdict == "violated" else self.result.verdict

    @property
    def wrong(self) -> str:
        if self.result is None:
            return self.error
        m, r = self.model, self.result
        # TLC does not name a temporal property that fails
        named = r.violated == m.violates or (r.violated == "<temporal>" and m.violates is not None)
        if r.verdict != m.verdict or (m.violates and not named):
            return f"promised: {m.promise}"
        if m.distinct is not None and m.distinct != r.distinct:
            return f"promised: {m.distinct} states"
        return ""


def read_manifest(path: Path, tla: Path) -> list[Model]:
    """The models of a manifest. Raises SpecError for an entry that cannot be run, naming it."""
    if not path.exists():
        raise SpecError(f"{path} does not exist: list the configurations there")
    try:
        data = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: {error}") from None
    entries = [entry for value in data.values() if isinstance(value, list) for entry in value if isinstance(entry, dict)]
    models = [_model(entry, path, tla) for entry in entries]
    twice = {m.name for m in models if sum(o.name == m.name for o in models) > 1}
    if twice:
        raise SpecError(f"{path}: {', '.join(sorted(twice))} named more than once")
    return models


def _model(entry: dict[str, Any], path: Path, tla: Path) -> Model:
    unknown = set(entry) - {"name", "module", "cfg", "expect", "distinct", "workers", "quick", "deadlock", "options", "about"}
    if unknown or not {"name", "module", "cfg"} <= set(entry):
        raise SpecError(f"{path}: {entry.get('name', entry)}: needs name, module and cfg; does not know {sorted(unknown)}")
    expect = entry.get("expect", "pass")
    violates = expect.get("violates") if isinstance(expect, dict) else None
    if violates is None and expect not in ("pass", "deadlock"):
        raise SpecError(f'{path}: {entry["name"]}: expect is {expect!r}: give "pass", "deadlock" or {{violates = "Property"}}')
    given = {k: entry[k] for k in ("distinct", "workers", "quick", "options") if k in entry}
    return Model(
        entry["name"],
        _find(entry["module"], ".tla", path, [tla, path.parent, *(f for f in sorted(tla.iterdir()) if f.is_dir())]),
        _find(entry["cfg"], ".cfg", path, [path.parent, tla, *(f for f in sorted(tla.iterdir()) if f.is_dir())]),
        "violated" if violates else str(expect),
        violates,
        deadlock=bool(entry.get("deadlock", expect == "deadlock")),
        **given,
    )


def _find(name: str, suffix: str, path: Path, folders: Sequence[Path]) -> Path:
    file = name if name.endswith(suffix) else name + suffix
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    raise SpecError(f"{path}: {file} is in none of {', '.join(f.name for f in folders)}")


def judge(model: Model, on_line: Callable[[str], None] | None = None) -> Outcome:
    """Run TLC on one model."""
    begin = time.monotonic()
    jvm = tlc.LIGHT if (model.distinct or 0) < 20_000 else tlc.SMALL
    try:
        result = tlc.run_tlc(
            model.module, model.config, library=library(), workers=model.workers, deadlock=model.deadlock,
            options=model.options, jvm=jvm, on_line=on_line, silence=QUICK_SILENCE if model.quick else tlc.SILENCE,
        )  # fmt: skip
    except SpecError as error:
        return Outcome(model, time.monotonic() - begin, None, str(error))
    return Outcome(model, time.monotonic() - begin, result)


def run(
    names: Sequence[str], *, quick: bool = False, manifest: Path | None = None, console: Console | None = None,
    pictures: Path | None = None,
) -> bool:
    """Judge the models named (all if none; with quick, those marked quick) and print the result. True if all promises hold.
    pictures: the folder for drawings of counterexamples, a temporary one if absent.

    Raises SpecError for a manifest or name that does not fit.
    """
    console = console or Console()
    path = manifest or root() / "tla" / "models" / "manifest.toml"
    models = read_manifest(path, root() / "tla")
    if unknown := set(names) - {m.name for m in models}:
        raise SpecError(f"no configuration named {', '.join(sorted(unknown))}: there are {', '.join(m.name for m in models)}")
    chosen = [m for m in models if (not names or m.name in names) and (not quick or m.quick)]
    if not chosen:
        raise SpecError(f"{path} has nothing to check: mark configurations with quick = true, or leave --quick out")
    outcomes = _judge_all(chosen, console)
    for o in outcomes:
        if o.result is not None and (o.wrong or names) and o.result.trace:
            print_counterexample(o, console, pictures)
        elif o.wrong:
            console.print(Text(f"{o.model.name}: {o.wrong}"))
    console.print(summary(outcomes))
    return not any(o.wrong for o in outcomes)


def _judge_all(models: list[Model], console: Console) -> list[Outcome]:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[note]}"), TimeElapsedColumn()
    done: dict[str, Outcome] = {}
    with Progress(*columns, console=console, transient=True) as progress, ThreadPoolExecutor(AT_ONCE) as pool:
        lock = threading.Lock()

        def one(model: Model) -> Outcome:
            with lock:
                task = progress.add_task(model.name, total=None, note="")

            def line(text: str) -> None:
                if found := PROGRESS.search(text):
                    progress.update(task, note=f"depth {found[1]}, {found[3]} states")

            outcome = judge(model, line)
            progress.remove_task(task)
            return outcome

        for future in as_completed([pool.submit(one, m) for m in sorted(models, key=lambda m: m.quick)]):
            outcome = future.result()
            done[outcome.model.name] = outcome
            mark = "differs" if outcome.wrong else "as promised"
            console.print(Text(f"{outcome.model.name}: {outcome.said} in {outcome.seconds:.1f} s, {mark}"), highlight=False)
    return [done[m.name] for m in models]


def summary(outcomes: Sequence[Outcome]) -> Table:
    """The table of results."""
    names = [Column("configuration", overflow="fold"), Column("verdict", overflow="fold")]  # names are worth a second line
    table = Table(names[0], "states", "generated", "seconds", names[1], "")
    for o in outcomes:
        counts = (f"{o.result.distinct:,}", f"{o.result.generated:,}") if o.result else ("", "")
        mark = Text(f"differs: {o.wrong.splitlines()[0]}", "bold red") if o.wrong else Text("as promised", "green")
        table.add_row(Text(o.model.name), *counts, f"{o.seconds:.1f}", Text(o.said), mark)
    return table


def print_counterexample(outcome: Outcome, console: Console, pictures: Path | None = None) -> None:
    """A model's counterexample, step by step, what it shows in a sentence, and where it is drawn.

    pictures: the folder for the drawing; a new one in the system's folder for temporary files if absent.
    """
    from tidegate.spec.counterexample import explain

    assert outcome.result is not None
    model = outcome.model
    wanted = model.violates is not None and not outcome.wrong
    shown = explain(outcome.result, model.module, model.config.read_text(), title=f"{model.name}: {outcome.said}", wanted=wanted)
    console.print(shown.table())
    if shown.ending:
        console.print(shown.ending)
    console.print(Text(shown.sentence))
    if shown.diagram:
        folder = pictures or Path(tempfile.mkdtemp(prefix="tidegate-check-"))
        console.print(Text(f"drawn: {shown.write(folder / f'{model.name}.svg')}"), soft_wrap=True)
