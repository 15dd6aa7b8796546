"""`tidegate check`: run TLC over the models and compare each verdict with what its configuration promises."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    configs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Names from tla/models/manifest.toml (or, with --museum, exhibits); all if absent."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only the configurations marked quick.")] = False,
    full: Annotated[bool, typer.Option("--full", help="All configurations, then the museum.")] = False,
    mutants: Annotated[bool, typer.Option("--mutants", help="Drop each conjunct of each guard and see the harm.")] = False,
    museum: Annotated[bool, typer.Option("--museum", help="Plant the faults of tla/museum, which users of such systems met.")] = False,
    properties: Annotated[
        bool, typer.Option("--properties", help="Weaken each property and see a bug pass, of prefix reuse too; --quick: safety only.")
    ] = False,
    induction: Annotated[
        bool, typer.Option("--induction", help="Show the invariant of tla/inductive to hold at any size, with z3; no TLC.")
    ] = False,
    machine: Annotated[str, typer.Option("--machine", help="With --mutants: this machine only.")] = "",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="With --mutants, --museum, --properties: TLCs at a time.")] = 2,
    pictures: Annotated[
        Path | None, typer.Option("--pictures", metavar="DIR", help="Where counterexamples are drawn; a temporary folder if absent.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="With --mutants, --museum, --properties: write their table anew.")] = False,
) -> None:
    """Model-check the configurations of tla/models (needs the `spec` extra; a source checkout).

    A verdict that was not promised, and that of any configuration which you name, is shown as a table of what changed in each step,
    as a sequence diagram (SVG), and in one sentence.

    With --induction, z3 shows that no action leads out of the invariant of tla/inductive, whatever the number of slots, transfers
    and members; with --mutants as well, each part of it and each guard conjunct is left out once.

    Examples: `tidegate check --quick`, `tidegate check --mutants --machine Transfer`, `tidegate check --museum first-failure-frees`
    """
    from tidegate.spec.errors import SpecError

    modes = {"--museum": museum, "--properties": properties, "--induction": induction, "--mutants": mutants}
    named = [name for name, on in modes.items() if on]
    _refuse(named, quick=quick, full=full, names=bool(configs), machine=bool(machine), write=write)
    try:
        ok = _run(named, configs or [], quick=quick, full=full, machine=machine, jobs=jobs, pictures=pictures, write=write)
    except SpecError as error:
        typer.echo(f"tidegate check: {error}", err=True)
        raise typer.Exit(2) from None
    if not ok:
        raise typer.Exit(1)


def _refuse(named: list[str], *, quick: bool, full: bool, names: bool, machine: bool, write: bool) -> None:
    """BadParameter for options that do not go together."""
    if quick and full:
        raise typer.BadParameter("--quick and --full exclude each other: give one")
    if len(named) > 1 and named != ["--induction", "--mutants"]:
        raise typer.BadParameter(f"{' and '.join(named)} exclude each other: give one (--mutants goes with --induction only)")
    if named and (full or (quick and named != ["--properties"]) or (names and named != ["--museum"])):
        raise typer.BadParameter(
            f"{named[0]} chooses what is checked itself: leave out --full, --quick (but for --properties) and names (but for --museum)"
        )
    if (machine and "--mutants" not in named) or (write and (named in ([], ["--induction"]) or quick)):
        raise typer.BadParameter("--machine goes with --mutants, --write with --mutants, --museum or --properties, and never with --quick")


def _run(
    named: list[str], names: list[str], *, quick: bool, full: bool, machine: str, jobs: int, pictures: Path | None, write: bool
) -> bool:
    if "--induction" in named:
        from tidegate.spec import induction_report

        return induction_report.run_mutants(machine, write=write) if "--mutants" in named else induction_report.run()
    if "--mutants" in named:
        from tidegate.spec import mutant_report

        return mutant_report.run(machine, jobs=jobs, write=write)
    if "--properties" in named:
        from tidegate.spec import weakened_table

        return weakened_table.run(quick=quick, jobs=jobs, write_table=write)
    from tidegate.spec import models, museum_report

    if "--museum" in named:
        return museum_report.run(names, jobs=jobs, write_found=write)
    ok = models.run(names, quick=quick, pictures=pictures)
    return (museum_report.run(jobs=jobs) if full else True) and ok
