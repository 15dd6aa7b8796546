"""The command `tidegate`.

Rules: one verb, one module with a function `command` whose docstring ends in an example; a verb imports what it needs inside
that function, so that `tidegate --help` stays fast.  Exit codes (`engine/endings.py`): 0 as wished; 1 the verb found what it looks for
(a stale file, a violated model, a wrong token); 2 it could not do its work (bad arguments, no Java, a broken module); 4 a server failed;
128 and the number of the signal that ended it.  SIGTERM and SIGHUP end a verb as Ctrl-C does, so that it leaves nothing behind.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

import typer

from tidegate.engine.cli import check, config, coverage, decode, draw, gen, prefill, proxy, run, sim, soak, trace, why

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
app.command("check")(check.command)
app.command("config")(config.command)
app.command("coverage")(coverage.command)
app.command("decode")(decode.command)
app.add_typer(draw.app, name="draw")
app.command("gen")(gen.command)
app.command("prefill")(prefill.command)
app.command("proxy")(proxy.command)
app.command("run")(run.command)
app.command("sim")(sim.command)
app.command("soak")(soak.command)
app.command("trace")(trace.command)
app.command("why")(why.command)


@app.callback()
def tidegate() -> None:
    """KV cache offloading for disaggregated Prefill and Decode, with model-checked gates."""


def main() -> None:
    """Entry point of the console script."""
    heard: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # once: what is cleaned up now shall not be cut short
            signal.signal(one, signal.SIG_IGN)
        heard.append(number)
        raise KeyboardInterrupt

    for one in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(one) is not signal.SIG_IGN:  # nohup
            signal.signal(one, end)
    try:
        app()
    finally:
        if heard:
            sys.exit(128 + heard[0])
