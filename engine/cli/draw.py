"""`tidegate draw`: the machines as diagrams, docs/machines.md."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if docs/machines.md is stale.")] = False,
) -> None:
    """Draw each machine from its reachable graph (needs the `spec` extra; a source checkout).

    Example: `tidegate draw --check`
    """
    from tidegate.spec import draw
    from tidegate.spec.errors import SpecError

    try:
        stale = draw.check() if check else []
        written = None if check else draw.write()
    except SpecError as error:
        typer.echo(f"tidegate draw: {error}", err=True)
        raise typer.Exit(2) from None
    if written:
        typer.echo(f"wrote {written}")
    if stale:
        typer.echo(f"stale: {', '.join(stale)}; run `tidegate draw` and commit the result", err=True)
        raise typer.Exit(1)
