"""`tidegate config`: every configuration key with its default, its rule and upstream's word for it, docs/configuration.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def command(
    example: Annotated[bool, typer.Option("--example", help="Print the demo's configuration, to begin a file with.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write docs/configuration.md anew (a source checkout).")] = False,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if docs/configuration.md is stale.")] = False,
) -> None:
    """List the configuration keys, and what is refused.

    Example: `tidegate config --example > mine.json && tidegate run --config mine.json`
    """
    import json

    from tidegate.engine.config_page import page
    from tidegate.engine.run_options import DEFAULTS

    if example:
        typer.echo(json.dumps(DEFAULTS, indent=2))
    elif write:
        PAGE.write_text(page())
        typer.echo(f"wrote {PAGE}")
    elif check:
        if not PAGE.exists() or PAGE.read_text() != page():
            typer.echo("stale: docs/configuration.md; run `tidegate config --write` and commit the result", err=True)
            raise typer.Exit(1)
    else:
        typer.echo(page())
