"""`tidegate trace`: does TLC accept a recorded run?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders written by `tidegate run --trace`.")]) -> None:
    """Judge recorded runs against tla/system/System.tla: machine events and what the data path did (docs/trace.md).

    Exit code: 0 all accepted; 1 one was refused, with the reason; 2 one could not be read or judged.

    Example: `tidegate trace /tmp/t`
    """
    from tidegate.spec.errors import SpecError
    from tidegate.spec.trace import check
    from tidegate.spec.trace_lines import TraceRefused

    worst = 0
    for folder in folders:
        try:
            accepted = check(folder)
        except TraceRefused as refused:
            typer.echo(f"{folder}: REFUSED\n{refused}")
            worst = max(worst, 1)
        except (SpecError, OSError, ValueError) as error:
            typer.echo(f"{folder}: cannot be judged: {error}", err=True)
            worst = 2
        else:
            events, physical = sum(accepted.events.values()), sum(accepted.physical.values())
            typer.echo(f"{folder}: accepted: {events} machine events and {physical} physical ones of {accepted.attempts} attempts, "
                       f"{accepted.runs} runs, {accepted.steps} layer steps; {accepted.repeated} repeated deliveries")  # fmt: skip
    raise typer.Exit(worst)
