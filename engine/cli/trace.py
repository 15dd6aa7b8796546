"""`tidegate trace`: does TLC accept a recorded run?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidegate.spec.trace import Accepted


def command(folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders written by `tidegate run --trace`.")]) -> None:
    """Judge recorded runs against tla/system/System.tla: machine events and what the data path did (docs/trace.md).

    A long trace takes minutes; how much is judged and how long the rest will take is shown once a minute, at a terminal.

    Exit code: 0 all accepted; 1 one was refused, with the reason; 2 one could not be read or judged; 130 interrupted.

    Example: `tidegate trace /tmp/t`
    """
    from tidegate.spec.errors import SpecError
    from tidegate.spec.trace_lines import TraceRefused

    worst = 0
    for folder in folders:
        try:
            accepted = _judged(folder)
        except TraceRefused as refused:
            typer.echo(f"{folder}: REFUSED\n{refused}")
            worst = max(worst, 1)
        except (SpecError, OSError, ValueError) as error:
            typer.echo(f"{folder}: cannot be judged: {error}", err=True)
            worst = 2
        except KeyboardInterrupt:
            typer.echo(f"tidegate trace: interrupted; {folder} is not judged", err=True)
            raise typer.Exit(130) from None
        else:
            events, physical = sum(accepted.events.values()), sum(accepted.physical.values())
            typer.echo(f"{folder}: accepted: {events} machine events and {physical} physical ones of {accepted.attempts} attempts, "
                       f"{accepted.runs} runs, {accepted.steps} layer steps; {accepted.repeated} repeated deliveries")  # fmt: skip
    raise typer.Exit(worst)


def _judged(folder: Path) -> Accepted:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from tidegate.spec.trace import check

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("lines"), TimeElapsedColumn()
    console = Console(stderr=True)
    quiet = not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, speed_estimate_period=3600, disable=quiet) as progress:
        task = progress.add_task("reading", total=None)
        return check(folder, lambda done, lines: progress.update(task, description="judging", completed=done, total=lines))
