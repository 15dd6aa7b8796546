"""`tidegate gen`: compile tla/machines to protocol/machines, or only say whether they are stale."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 and list what is stale.")] = False,
) -> None:
    """Compile the TLA+ machines to Python (needs the `spec` extra; a source checkout).

    Example: `tidegate gen --check`
    """
    from tidegate.spec import gen
    from tidegate.spec.errors import SpecError

    try:
        report = gen.check() if check else gen.generate()
    except SpecError as error:
        typer.echo(f"tidegate gen: {error}", err=True)
        raise typer.Exit(2) from None
    for line in report:
        typer.echo(line)
    if check and report:
        typer.echo("stale: run `tidegate gen` and commit the result", err=True)
        raise typer.Exit(1)
