"""What the three server verbs do alike: read the configuration, serve, and end with a code that means something."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from tidegate.engine.standing import Standing

T = TypeVar("T")
__all__ = ["serve"]


def serve(
    role: str, *, drain: float, make: Callable[[str], T], run: Callable[[T, Standing], None], proxy: str = "", trace: Path | None = None
) -> None:
    """Run a server of `role` to its end.  make: its configuration, given the trace's folder; run: the server itself."""
    from tidegate.engine.errors import ConfigError
    from tidegate.engine.server_options import checked_urls
    from tidegate.engine.standing import Standing

    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {role} %(levelname)s %(message)s")
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        joined = checked_urls("--proxy", [proxy])[0] if proxy else ""
        if drain < 0:
            raise ConfigError(f"--drain is {drain} s: 0 (cancel what is under way) or more")
        if trace is not None:
            trace.mkdir(parents=True, exist_ok=True)
        config = make(str(trace or ""))
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # its threads would take the cores of the copies
        run(config, Standing(role, drain_seconds=drain, proxy=joined))
    except (ConfigError, OSError) as error:  # the text of an OSError is made for users: a port that is taken, memory that is not there
        typer.echo(f"tidegate {role}: {error}", err=True)
        raise typer.Exit(2) from None
