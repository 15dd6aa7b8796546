"""`tidegate coverage`: which labelled edges of the machines the simulator and real processes walk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    traces: Annotated[
        list[Path] | None, typer.Argument(metavar="[TRACES]...", help="Folders with traces of real processes, at any depth.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps to simulate, at most: it ends when all is walked that can be.")] = 3_000_000,
    seed: Annotated[int, typer.Option(help="Of the simulation.")] = 2026,
    processes: Annotated[
        bool, typer.Option("--processes", help="Only read TRACES; what the other ways walk is taken from the list.")
    ] = False,
    some: Annotated[
        bool, typer.Option("--some", help="Processes need not have walked all: what they have not is named, and is no failure.")
    ] = False,
    names: Annotated[bool, typer.Option("--names", help="Also name every edge that is not walked, with the reason.")] = False,
) -> None:
    """Walk the machines' labelled edges, and compare what is not walked with tla/coverage.toml (needs a source checkout).

    An edge is a machine's shape, an event, and the shape after it: the phase, and which of the other fields are not empty.
    Three ways: the simulator walks what it can; a pair, one rank a side driven as the engine drives it, owes what the simulator walked;
    real processes owe what the pair walked.  Without TRACES processes are left out.  Every worker that is started with
    TIDEGATE_TRACES=DIR leaves its events there.
    Exit code: 0 all is walked, or known not to be, with a reason; 1 something else; 2 it could not be told.

    Example: `tidegate run --trace /tmp/t && tidegate coverage /tmp/t --names`
    """
    from rich.console import Console
    from rich.progress import Progress

    from tidegate.spec import coverage
    from tidegate.spec.errors import SpecError

    if processes and not traces:
        raise typer.BadParameter("--processes reads traces and nothing else: give the folders that `tidegate run --trace` wrote")
    console = Console()
    try:
        known = coverage.unwalked()
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("")

            def told(what: str, done: int, of: int) -> None:
                progress.update(task, description=what, completed=done, total=of)

            if processes:
                progress.update(task, description="reading traces")
                result = coverage.of_processes(known, traces or [])
            else:
                result = coverage.cover(known, steps=steps, seed=seed, traces=traces or [], told=told)
        wrong = result.wrong(known, some=some)
    except SpecError as error:
        typer.echo(f"tidegate coverage: {error}", err=True)
        raise typer.Exit(2) from None
    if names:
        for where in result.ways:
            for edge in sorted(result.missing(where)):
                why = next((u.why for u in known if u.where == where and u.of(edge)), "nobody says why")
                console.print(f"not in the {where}: {edge}: {why}", markup=False, highlight=False, soft_wrap=True)
    console.print(coverage.table(result))
    for line in wrong:
        console.print(line, markup=False, highlight=False, soft_wrap=True, style="bold red")
    if wrong:
        raise typer.Exit(1)
