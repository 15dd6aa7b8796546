"""`tidegate sim`: the real sessions in a seeded, hostile world."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    steps: Annotated[int, typer.Option(help="Protocol steps to take, at least.")] = 200_000,
    seed: Annotated[int, typer.Option(help="Decides everything; the same seed is the same run.")] = 0,
    faults: Annotated[
        str, typer.Option(help="Those that may strike, with commas: loss, dup, fail, unknown, save, load, evict, abort, revoke.")
    ] = "all",
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes; each takes a share of the steps, with a seed of its own: seed, seed + 1, ...")
    ] = 1,
) -> None:
    """Simulate the sessions with lost, doubled and late messages, failures, aborts, evictions and revocations.

    Exit code: 0 nothing was wrong; 1 something was, and it is told with the command that repeats it.

    Examples: `tidegate sim --steps 100000 --seed 7`, `tidegate sim --steps 10000000 --jobs 2`
    """
    import time

    from rich.console import Console
    from rich.progress import Progress

    from tidegate.spec.bounds import FAULTS
    from tidegate.spec.sim_jobs import simulate_jobs

    if steps < 1:
        typer.echo(f"tidegate sim: steps is {steps}: at least 1", err=True)
        raise typer.Exit(2)
    named = [name.strip() for name in faults.split(",")]
    chosen = FAULTS if named == ["all"] else tuple(name for name in named if name not in ("", "none"))
    if unknown := set(chosen) - set(FAULTS):
        choice = f"choose from {', '.join(FAULTS)}, or all, or none"
        typer.echo(f"tidegate sim: no fault is named {', '.join(sorted(unknown))}: {choice}", err=True)
        raise typer.Exit(2)
    console, began = Console(), time.monotonic()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("steps", total=steps)
        out = simulate_jobs(steps, seed, jobs, faults=chosen, told=lambda done: progress.update(task, completed=done))
    seconds = time.monotonic() - began
    console.print(f"{out.steps:,} steps in {out.worlds:,} worlds, {out.steps / seconds:,.0f} steps/s, peak {out.peak:,.0f} MiB a process")
    for number, one in enumerate(out.outcomes):
        console.print(f"seed {seed + number}: {one.steps:,} steps, digest {one.digest}", highlight=False)
    console.print(", ".join(f"{op} {count:,}" for op, count in out.operations.items()))
    if out.wrong:
        console.print(out.wrong, markup=False)
        raise typer.Exit(1)
    console.print("nothing was lost, torn, leaked or left waiting")
