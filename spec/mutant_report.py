"""Runs the mutants with progress, and shows the result as a table.

Rules: the exit is good only if no verdict is open and, unless the table is to be written, all agree with tla/mutants.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tidegate.spec import mutant_table, widths
from tidegate.spec.mutant_jobs import judge_all
from tidegate.spec.mutants import Mutant, Verdict, all_mutants
from tidegate.spec.variant import Configuration, configurations

__all__ = ["MOST_STATES", "looked_in", "run", "summary"]

MOST_STATES = 50_000
"""In configurations with more states nothing is looked for; a row may name one all the same."""


def run(machine: str = "", *, jobs: int = 2, write: bool = False, console: Console | None = None) -> bool:
    """Judge every mutant (of one machine, if named). True if all is as the table says, or as it may be written."""
    console = console or Console()
    mutants = all_mutants(machine)
    order = [m.name for m in all_mutants()] if write else []
    keep = (lambda verdict: mutant_table.write([verdict], order=order)) if write else None
    verdicts = _judged(mutants, jobs, console, keep)
    console.print(summary(verdicts))
    wrong = [f"{v.mutant.name} is open: {v.effect}" for v in verdicts if not v.fine]
    if write:
        widths.write()
        console.print(f"wrote {mutant_table.table_path()}")
    else:
        entries = [e for e in mutant_table.read() if machine in ("", e.machine)]
        wrong += mutant_table.stale(entries, mutants) + mutant_table.differences(entries, verdicts)
    for line in dict.fromkeys(wrong):
        console.print(Text(line, "bold red"))
    return not wrong


def _judged(
    mutants: Sequence[Mutant], jobs: int, console: Console, keep: Callable[[Verdict], object] | None = None
) -> list[Verdict]:
    """keep: gets each verdict as it comes, so that an interrupted run loses none."""
    models = looked_in()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("mutants", total=len(mutants))

        def told(v: Verdict) -> None:
            if keep:
                keep(v)
            progress.update(task, advance=1)
            where = f"{v.violated} in {v.configuration}, {v.steps} steps" if v.violated else ""
            console.print(Text(f"{v.mutant.name}: {v.kind} {where}"), highlight=False)

        def looked(model: Configuration, left: int) -> None:
            console.print(Text(f"which conjuncts decide in {model.name}: known; {left} more configurations"), highlight=False)

        table = mutant_table.read() if mutant_table.table_path().exists() else []
        return judge_all(mutants, models, mutant_table.known(table), jobs=jobs, told=told, looked=looked)


def looked_in() -> list[Configuration]:
    """The configurations in which harm is looked for."""
    return [c for c in configurations() if c.states <= MOST_STATES and not c.name.startswith(widths.WIDE)]


def summary(verdicts: Sequence[Verdict]) -> Table:
    """machine, conjunct, verdict, property, steps, what the replay did."""
    table = Table("guard", "conjunct", "verdict", "property", "steps", "without it", "with it")
    for v in verdicts:
        style = "green" if v.kind == "killed" else "yellow" if v.fine else "bold red"
        alone = f"alone: {v.alone}" if v.alone else ""
        table.add_row(Text(v.mutant.name), Text(v.mutant.text), Text(v.kind, style), Text(v.violated or alone),
                      str(v.steps or ""), Text(v.effect), Text(v.real))  # fmt: skip
    counts = {kind: sum(v.kind == kind for v in verdicts) for kind in sorted({v.kind for v in verdicts})}
    table.caption = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    return table
