"""`tidegate check`: run TLC over the models and compare each verdict with what its configuration promises."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    configs: Annotated[
        list[str] | None, typer.Argument(metavar="[CONFIG]...", help="Names from tla/models/manifest.toml; all if absent.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only the configurations marked quick.")] = False,
    full: Annotated[bool, typer.Option("--full", help="All configurations (the default when none is named).")] = False,
) -> None:
    """Model-check the configurations of tla/models (needs the `spec` extra; a source checkout).

    Example: `tidegate check --quick`
    """
    from tidegate.spec import models
    from tidegate.spec.errors import SpecError

    if quick and full:
        raise typer.BadParameter("--quick and --full exclude each other: give one")
    try:
        ok = models.run(configs or [], quick=quick)
    except SpecError as error:
        typer.echo(f"tidegate check: {error}", err=True)
        raise typer.Exit(2) from None
    if not ok:
        raise typer.Exit(1)
