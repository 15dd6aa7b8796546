"""`tidegate decode`: a Decode server that lives until it is told to stop."""

from __future__ import annotations

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
    http_port: HttpPort = 0,
    port: Annotated[int | None, typer.Option(help="Control port, where the file has no kv_port; 0: any free one. [0]")] = None,
    proxy: ProxyUrl = "",
    drain: Drain = 60.0,
    trace: Trace = None,
) -> None:
    """Serve completions that a proxy sends: have them prefilled remotely, keep the history in host memory, decode sparsely.

    Exit code: 0 stopped by a signal, everything answered; 2 the configuration cannot be served; 4 it failed while it served.

    Example: `tidegate decode --http-port 8200 --port 5600 --proxy http://127.0.0.1:8000`
    """
    from tidegate.engine.decode_worker import DecodeWorker
    from tidegate.engine.server_options import server_config

    serve(
        "decode", proxy=proxy, drain=drain, trace=trace,
        make=lambda folder: server_config(
            config, model, layers=layers, seed=seed, index_topk_freq=index_topk_freq, max_prompt=max_prompt, new_tokens=new_tokens,
            concurrency=concurrency,
            decode_port=http_port, control_port=port, trace=folder,
        ),
        run=lambda made, host: DecodeWorker(made, host).serve(),
    )  # fmt: skip
