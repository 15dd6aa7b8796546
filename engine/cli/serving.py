"""What the three server verbs have alike: their options, reading the configuration, serving, ending with a code that means something."""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

if TYPE_CHECKING:
    from tidegate.engine.standing import Standing

__all__ = [
    "Concurrency",
    "Config",
    "Drain",
    "HttpPort",
    "IndexTopkFreq",
    "Layers",
    "MaxPrompt",
    "ModelFolder",
    "NewTokens",
    "ProxyUrl",
    "Seed",
    "Trace",
    "serve",
]

T = TypeVar("T", bound=msgspec.Struct)
Config = Annotated[Path | None, typer.Option(help="JSON file of both instances (docs/configuration.md). Default: the demo.")]
ModelFolder = Annotated[Path | None, typer.Option(help="Folder of a DeepSeek-V3.2-shaped checkpoint. Default: a small seeded one.")]
Layers = Annotated[int | None, typer.Option(help="Layers of the seeded model. [demo: 8]")]
IndexTopkFreq = Annotated[
    int | None, typer.Option(help="One of so many layers of the seeded model has an indexer; the others use its top-k. [demo: 1]")
]
Seed = Annotated[int | None, typer.Option(help="Seed of the seeded model's weights. [demo: 0]")]
MaxPrompt = Annotated[int, typer.Option(help="Tokens of the longest prompt; the same on both sides.")]
NewTokens = Annotated[int, typer.Option(help="The most tokens that a request may ask for; the same on both sides.")]
Concurrency = Annotated[int, typer.Option(help="Requests at once, where the file has no max_num_seqs; the same on both sides.")]
HttpPort = Annotated[int, typer.Option(help="HTTP port; 0: any free one.")]
ProxyUrl = Annotated[str, typer.Option(help="URL of a running proxy to join, and to leave at the end.")]
Drain = Annotated[float, typer.Option(help="Seconds that requests may take to end after SIGTERM.")]
Trace = Annotated[Path | None, typer.Option(help="Write this server's trace into this folder.")]


def serve(
    role: str, *, drain: float, make: Callable[[str], T], run: Callable[[T, Standing], None], proxy: str = "", trace: Path | None = None
) -> None:
    """Run a server of `role` to its end.  make: its configuration, given the trace's folder; run: the server itself.

    What killed ones left is swept first; the server has a folder of its own, which is removed at its end.
    """
    from tidegate.engine.endings import Ending, end_with_any_thread
    from tidegate.engine.errors import ConfigError
    from tidegate.engine.folders import run_folder, sweep
    from tidegate.engine.server_options import checked_urls
    from tidegate.engine.standing import Standing

    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {role} %(levelname)s %(message)s")
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        joined = checked_urls("--proxy", [proxy])[0] if proxy else ""
        if not 0 <= drain < math.inf:
            raise ConfigError(f"--drain is {drain} s: 0 (cancel what is under way) or more, and finite")
        if trace is not None:
            trace.mkdir(parents=True, exist_ok=True)
        sweep()
        config = make(str(trace or ""))
        folder, lock = run_folder()
    except (ConfigError, OSError) as error:
        typer.echo(f"tidegate {role}: {error}", err=True)
        raise typer.Exit(Ending.REFUSED) from None
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # its threads would take the cores of the copies
    host = Standing(role, drain_seconds=drain, proxy=joined, scratch=str(folder))
    end_with_any_thread(host.fail)
    try:
        run(msgspec.structs.replace(config, scratch_folder=str(folder)), host)
    except typer.Exit:
        raise  # those who ran in processes of their own have said why
    except Exception as error:
        if not isinstance(error, ConfigError | OSError):  # the text of those is made for users: a port that is taken, say
            logging.getLogger("tidegate").exception("the server failed")
        host.fail(str(error) or type(error).__name__)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
