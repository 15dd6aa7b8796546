"""`tidegate prefill`: a Prefill server that lives until it is told to stop."""

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
    read_lease: Annotated[float, typer.Option(help="Seconds after which Prefill may revoke a read; 0: never.")] = 0.0,
    http_port: Annotated[int, typer.Option(help="HTTP port; 0: any free one.")] = 0,
    pool: Annotated[Path | None, typer.Option(help="Folder of the host pool, to share or keep it. Default: its own.")] = None,
    proxy: Annotated[str, typer.Option(help="URL of a running proxy to join, and to leave at the end.")] = "",
    drain: Annotated[float, typer.Option(help="Seconds that requests may take to end after SIGTERM.")] = 60.0,
    trace: Annotated[Path | None, typer.Option(help="Write this server's trace into this folder.")] = None,
) -> None:
    """Serve prompts that a proxy sends: prefill them over few layer buffers, and have Decode read each layer.

    Exit code: 0 stopped by a signal, everything answered; 2 the configuration cannot be served; 4 it failed while it served.

    Example: `tidegate prefill --http-port 8100 --proxy http://127.0.0.1:8000`
    """
    from tidegate.engine.cli.serving import serve
    from tidegate.engine.prefill_worker import PrefillWorker
    from tidegate.engine.server_options import server_config

    serve(
        "prefill", proxy=proxy, drain=drain, trace=trace,
        make=lambda folder: server_config(
            config, model, layers=layers, seed=seed, max_prompt=max_prompt, new_tokens=new_tokens, concurrency=concurrency,
            read_lease=read_lease, prefill_port=http_port, pool_folder=str(pool or ""), trace=folder,
        ),
        run=lambda made, host: PrefillWorker(made, host).serve(),
    )  # fmt: skip
