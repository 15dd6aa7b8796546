"""`tidegate prefill`: a Prefill server that lives until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.engine.cli.serving import (
    Concurrency,
    Config,
    Drain,
    HttpPort,
    IndexTopkFreq,
    Layers,
    MaxPrompt,
    ModelFolder,
    NewTokens,
    ProxyUrl,
    Seed,
    Trace,
    serve,
)


def command(
    config: Config = None,
    model: ModelFolder = None,
    layers: Layers = None,
    seed: Seed = None,
    index_topk_freq: IndexTopkFreq = None,
    max_prompt: MaxPrompt = 2048,
    new_tokens: NewTokens = 64,
    concurrency: Concurrency = 4,
    read_lease: Annotated[float, typer.Option(help="Seconds after which Prefill may revoke a read; 0: never.")] = 0.0,
    http_port: HttpPort = 0,
    pool: Annotated[Path | None, typer.Option(help="Folder of the host pool, to share or keep it. Default: its own.")] = None,
    proxy: ProxyUrl = "",
    drain: Drain = 60.0,
    trace: Trace = None,
) -> None:
    """Serve prompts that a proxy sends: prefill them over few layer buffers, and have Decode read each layer.

    Exit code: 0 stopped by a signal, everything answered; 2 the configuration cannot be served; 4 it failed while it served.

    Example: `tidegate prefill --http-port 8100 --proxy http://127.0.0.1:8000`
    """
    from tidegate.engine.prefill_worker import PrefillWorker
    from tidegate.engine.server_options import server_config

    serve(
        "prefill", proxy=proxy, drain=drain, trace=trace,
        make=lambda folder: server_config(
            config, model, layers=layers, seed=seed, index_topk_freq=index_topk_freq, max_prompt=max_prompt, new_tokens=new_tokens,
            concurrency=concurrency,
            read_lease=read_lease, prefill_port=http_port, pool_folder=str(pool or ""), trace=folder,
        ),
        run=lambda made, host: PrefillWorker(made, host).serve(),
    )  # fmt: skip
