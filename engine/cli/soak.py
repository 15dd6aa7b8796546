"""`tidegate soak`: the servers as real processes, under random traffic and random faults, every answer compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    minutes: Annotated[float, typer.Option(help="No round begins after so many.")] = 1.0,
    faults: Annotated[str, typer.Option(help="Those that may strike, by name, with commas; all; or none. --list names them.")] = "all",
    seed: Annotated[int | None, typer.Option(help="Draws questions, sizes, faults and moments. [a new one, which is told]")] = None,
    trace: Annotated[Path | None, typer.Option(help="Record every life in this new folder, and judge all at the end.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say what faults there are, and which may cost a request its answer.")] = False,
) -> None:
    """Start proxy, Prefill and Decode, and treat them badly while clients ask.

    Servers live through rounds: clients ask, some leave, messages are lost, copies fail, processes are stopped, cut off and killed.
    After each round every answer is compared, to the bit, with a run that keeps everything in memory, and nobody may still hold a
    buffer, a block, a pin, a descriptor or a thread that it should have given back.  An error is an answer only where a fault may have
    caused it.  The same seed draws the same questions and deeds; what the clock makes of them differs.  With --trace TLC judges what
    was recorded, as `tidegate trace` does: takes about half as long again.

    Exit code: 0 nothing was wrong; 1 something was, and it is told with the seed; 2 it could not be run, or judged.

    Examples: `tidegate soak --minutes 10`, `tidegate soak --faults kill,stop --seed 7`, `tidegate soak --trace /tmp/t`
    """
    import math
    import random

    from rich.console import Console

    from tidegate.engine.cli.run import new_folder
    from tidegate.engine.cli.trace import told
    from tidegate.engine.errors import ConfigError
    from tidegate.engine.soak.kinds import KINDS, chosen
    from tidegate.engine.soak.report import lines
    from tidegate.engine.soak.run import soak

    console = Console(soft_wrap=True, highlight=False, markup=False)
    if list_:
        for name, kind in KINDS.items():
            console.print(f"{name:8} {kind.about}{' (may cost an answer)' if kind.costs else ''}")
        return
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    try:
        if not 0 < minutes < math.inf:
            raise ConfigError(f"--minutes is {minutes}: more than 0, and finite")
        names = chosen(faults)
        if trace is not None:
            new_folder(trace)
        console.print(f"seed {seed}")
        out = soak(minutes, names, seed, told=console.print, traces=trace)
    except (ConfigError, OSError) as error:
        typer.echo(f"tidegate soak: {error}", err=True)
        raise typer.Exit(2) from None
    for line in lines(out):
        console.print(line)
    lives = [] if trace is None else sorted(path for path in trace.iterdir() if any(path.iterdir()))  # one that did not start has none
    code = told(lives) if lives else 0
    if out.found or code == 1:
        console.print(f"again: tidegate soak --minutes {minutes:g} --faults {','.join(names) or 'none'} --seed {seed}")
        raise typer.Exit(1)
    raise typer.Exit(code)
