"""`tidegate check`: run TLC over the models and compare each verdict with what its configuration promises."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    configs: Annotated[
        list[str] | None, typer.Argument(metavar="[CONFIG]...", help="Names from tla/models/manifest.toml; all if absent.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only the configurations marked quick.")] = False,
    full: Annotated[bool, typer.Option("--full", help="All configurations (the default when none is named).")] = False,
    mutants: Annotated[bool, typer.Option("--mutants", help="Drop each conjunct of each guard and see the harm.")] = False,
    machine: Annotated[str, typer.Option("--machine", help="With --mutants: this machine only.")] = "",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="With --mutants: TLCs at a time.")] = 2,
    pictures: Annotated[
        Path | None, typer.Option("--pictures", metavar="DIR", help="Where counterexamples are drawn; a temporary folder if absent.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="With --mutants: write tla/mutants.toml anew.")] = False,
) -> None:
    """Model-check the configurations of tla/models (needs the `spec` extra; a source checkout).

    A verdict that was not promised, and that of any configuration which you name, is shown as a table of what changed in each step,
    as a sequence diagram (SVG), and in one sentence.

    Examples: `tidegate check --quick`, `tidegate check --mutants --machine Transfer`
    """
    from tidegate.spec import models
    from tidegate.spec.errors import SpecError

    if quick and full:
        raise typer.BadParameter("--quick and --full exclude each other: give one")
    if mutants and (quick or full or configs):
        raise typer.BadParameter("--mutants chooses its configurations itself: leave out --quick, --full and names")
    if not mutants and (machine or write):
        raise typer.BadParameter("--machine and --write go with --mutants")
    try:
        if mutants:
            from tidegate.spec import mutant_report

            ok = mutant_report.run(machine, jobs=jobs, write=write)
        else:
            ok = models.run(configs or [], quick=quick, pictures=pictures)
    except SpecError as error:
        typer.echo(f"tidegate check: {error}", err=True)
        raise typer.Exit(2) from None
    if not ok:
        raise typer.Exit(1)
