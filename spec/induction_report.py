"""`tidegate check --induction`: shows the invariant of tla/inductive to be inductive, or prints a counterexample to induction.

Rules: the exit is good only if z3 shows every obligation; with --mutants, only if each part of the invariant is missed by
something, and everything is as tla/inductive/dropped.toml says, or as it may be written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tidegate.spec import induction_table
from tidegate.spec.cti import Cti
from tidegate.spec.induction import Book, Outcome, prove
from tidegate.spec.induction_drop import Part, guards, parts, without, without_guard
from tidegate.spec.induction_table import Row, name_of
from tidegate.spec.mutate import Conjunct
from tidegate.spec.smt_problem import Problem, read

__all__ = ["print_cti", "run", "run_mutants"]


def run(console: Console | None = None) -> bool:
    """Prove every obligation and print them, an action a line. True if all are shown."""
    console = console or Console()
    begin = time.monotonic()
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("reading tla/inductive/AnySize.tla", total=None)
        problem = Problem(read())
        console.print(Text(f"Inv is {len(problem.conjuncts)} conjuncts, {len(problem.properties)} of them the properties "
                           f"{', '.join(problem.properties)}"), highlight=False)  # fmt: skip
        outcomes = prove(problem, lambda o: progress.update(task, description=f"{o.action} => {o.conjunct}"))
    for action, group in groupby(outcomes, lambda o: o.action):
        _print_action(action, list(group), console)
    left = [o for o in outcomes if o.verdict != "shown"]
    for o in left:
        if o.cti:
            print_cti(o.cti, console)
    counts = f"{len(outcomes)} obligations, {len(outcomes) - len(left)} shown, in {time.monotonic() - begin:.0f} s"
    console.print(Text(counts, "bold red" if left else "green"), highlight=False)
    return not left


def _print_action(action: str, outcomes: Sequence[Outcome], console: Console) -> None:
    """Init => Inv, or Inv /\\ action => Inv': which conjuncts were asked for, and what was said."""
    asked = [o for o in outcomes if o.conjunct != "possible"]
    shown = [o.conjunct for o in asked if o.verdict == "shown"]
    arrow = "Init => " if action == "Init" else f"Inv /\\ {action} => "
    seconds = sum(o.seconds for o in outcomes)
    text = f"{arrow}{', '.join(dict.fromkeys(shown)) or 'what it leaves as it was'}: shown, {seconds:.1f} s"
    console.print(Text(text), highlight=False)
    for o in outcomes:
        if o.verdict != "shown":
            what = "can never happen in a state of Inv" if o.conjunct == "possible" and o.verdict == "refuted" else o.verdict
            console.print(Text(f"{arrow}{o.conjunct}: {what}, {o.seconds:.1f} s", "bold red"), highlight=False)


def print_cti(cti: Cti, console: Console) -> None:
    """A counterexample to induction: what the state holds, and what the step makes of it."""
    title = f"{cti.step}: then {cti.broken} does not hold{f' for {cti.because}' if cti.because else ''} ({cti.constants})"
    table = Table("", "before", "after", title=title, title_justify="left")
    for path, old, new in cti.rows:
        table.add_row(Text(path), Text(old), Text("" if old == new else new, "bold"))
    console.print(table)
    console.print("A state of the invariant, not necessarily one that is ever reached; what is as in Init is left out.")


def run_mutants(machine: str = "", *, write: bool = False, console: Console | None = None) -> bool:
    """Leave out each part of the invariant (unless a machine is named) and each guard conjunct, and print what breaks."""
    console = console or Console()
    book = Book.of(Problem(read()))
    everything: list[Part | Conjunct] = [*parts(book.problem), *guards(book.problem.source)]
    chosen = [x for x in everything if machine == "" or (isinstance(x, Conjunct) and x.machine == machine)]
    rows = [row for x, row in zip(chosen, _judged(book, chosen, console), strict=True) if row.breaks or isinstance(x, Conjunct)]
    named = {row.name for row in rows}
    wrong = [f"{name_of(x)} is superfluous: Inv is inductive without it" for x in chosen if name_of(x) not in named]
    if write and machine == "":
        console.print(f"wrote {induction_table.write(rows)}")
    else:
        known = {row.name: row for row in induction_table.read()}
        wrong += induction_table.stale(list(known.values()), everything)
        wrong += [f"{row.name}: the table says {known[row.name].breaks or 'nothing breaks'}, now {row.breaks or 'nothing breaks'}"
                  for row in rows if row.name in known and bool(row.breaks) != bool(known[row.name].breaks)]  # fmt: skip
    for line in wrong:
        console.print(Text(line, "bold red"))
    return not wrong


def _judged(book: Book, chosen: Sequence[Part | Conjunct], console: Console) -> list[Row]:
    out = []
    columns = SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("left out", total=len(chosen))
        for x in chosen:
            row = induction_table.row_of(x, without(book, x) if isinstance(x, Part) else without_guard(book, x))
            said = f"{row.breaks} breaks after {row.action}" if row.breaks else "Inv is inductive without it"
            console.print(Text(f"{row.name} ({row.text}): {said}"), highlight=False)
            out.append(row)
            progress.advance(task)
    return out
