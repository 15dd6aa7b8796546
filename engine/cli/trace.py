"""`tidegate trace`: does TLC accept a recorded run?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidegate.spec.errors import SpecError
    from tidegate.spec.trace import Accepted


def command(folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders written by `tidegate run --trace`.")]) -> None:
    """Judge recorded runs against tla/system/System.tla: machine events and what the data path did (docs/trace.md).

    Several runs are judged together, which is faster than one by one. How far a long one is, is shown at a terminal once a minute.

    Exit code: 0 all accepted; 1 one was refused, with the reason; 2 one could not be read or judged; 130 interrupted.

    Examples: `tidegate trace /tmp/t`, `tidegate trace runs/*`
    """
    raise typer.Exit(told(folders))


def told(folders: list[Path]) -> int:
    """Judge them, and say so of each; the exit code."""
    from tidegate.spec.trace import Accepted
    from tidegate.spec.trace_lines import TraceRefused

    worst = 0
    try:
        verdicts = _judged(folders)
    except KeyboardInterrupt:
        which = f"{folders[0]} is" if len(folders) == 1 else f"the {len(folders)} runs are"
        typer.echo(f"tidegate trace: interrupted; {which} not judged", err=True)
        raise typer.Exit(130) from None
    for folder, verdict in zip(folders, verdicts, strict=True):
        if isinstance(verdict, Accepted):
            events, physical = sum(verdict.events.values()), sum(verdict.physical.values())
            typer.echo(f"{folder}: accepted: {events} machine events and {physical} physical ones of {verdict.attempts} attempts, "
                       f"{verdict.runs} runs, {verdict.steps} layer steps; {verdict.repeated} repeated deliveries"
                       f"{_lives(verdict)}")  # fmt: skip
        elif isinstance(verdict, TraceRefused):
            typer.echo(f"{folder}: REFUSED\n{verdict}")
            worst = max(worst, 1)
        else:
            typer.echo(f"{folder}: cannot be judged: {verdict}", err=True)
            worst = 2
    return worst


def _lives(accepted: Accepted) -> str:
    """Which instances there were, where that is not one of each, and which of them died."""
    several = f"; {', '.join(accepted.lives)}" if len(accepted.lives) > 2 else ""
    return several + (f"; {' and '.join(accepted.died)} died, and their traces end there" if accepted.died else "")


def _judged(folders: list[Path]) -> list[Accepted | SpecError | OSError | ValueError]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from tidegate.spec.trace import check_all

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("lines"), TimeElapsedColumn()
    console = Console(stderr=True)
    quiet = not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, speed_estimate_period=3600, disable=quiet) as progress:
        task = progress.add_task("reading", total=None)
        return check_all(folders, lambda done, lines: progress.update(task, description="judging", completed=done, total=lines))
