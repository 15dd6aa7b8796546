"""`tidegate decode`: a Decode server that lives until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    config: Annotated[Path | None, typer.Option(help="JSON file of both instances (docs/configuration.md). Default: the demo.")] = None,
    model: Annotated[Path | None, typer.Option(help="Folder of a DeepSeek-V3.2-shaped checkpoint. Default: a small seeded one.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the seeded model. [demo: 8]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the seeded model's weights. [demo: 0]")] = None,
    max_prompt: Annotated[int, typer.Option(help="Tokens of the longest prompt; the same on both sides.")] = 2048,
    new_tokens: Annotated[int, typer.Option(help="The most tokens that a request may ask for; the same on both sides.")] = 64,
    concurrency: Annotated[int, typer.Option(help="Requests at once, where the file has no max_num_seqs; the same on both sides.")] = 4,
    http_port: Annotated[int, typer.Option(help="HTTP port; 0: any free one.")] = 0,
    port: Annotated[int | None, typer.Option(help="Control port, where the file has no kv_port; 0: any free one. [0]")] = None,
    proxy: Annotated[str, typer.Option(help="URL of a running proxy to join, and to leave at the end.")] = "",
    drain: Annotated[float, typer.Option(help="Seconds that requests may take to end after SIGTERM.")] = 60.0,
    trace: Annotated[Path | None, typer.Option(help="Write this server's trace into this folder.")] = None,
) -> None:
    """Serve completions that a proxy sends: have them prefilled remotely, keep the history in host memory, decode sparsely.

    Exit code: 0 stopped by a signal, everything answered; 2 the configuration cannot be served; 4 it failed while it served.

    Example: `tidegate decode --http-port 8200 --port 5600 --proxy http://127.0.0.1:8000`
    """
    from tidegate.engine.cli.serving import serve
    from tidegate.engine.decode_worker import DecodeWorker
    from tidegate.engine.server_options import server_config

    serve(
        "decode", proxy=proxy, drain=drain, trace=trace,
        make=lambda folder: server_config(
            config, model, layers=layers, seed=seed, max_prompt=max_prompt, new_tokens=new_tokens, concurrency=concurrency,
            decode_port=http_port, control_port=port, trace=folder,
        ),
        run=lambda made, host: DecodeWorker(made, host).serve(),
    )  # fmt: skip
