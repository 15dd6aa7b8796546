"""`tidegate decode`: a Decode server that lives until it is told to stop."""

from __future__ import annotations

import sys
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
    d_dp: Annotated[
        int | None, typer.Option("--d-dp", help="DP ranks, a process each, with ports one after another. [data_parallel_size, or 1]")
    ] = None,
    dp_rank: Annotated[
        int | None, typer.Option("--dp-rank", help="Serve this DP rank only, from 0. Default: all of them, and end if one fails.")
    ] = None,
    led: Annotated[bool, typer.Option("--led", hidden=True, help="End when standard input does.")] = False,
    proxy: ProxyUrl = "",
    drain: Drain = 60.0,
    trace: Trace = None,
) -> None:
    """Serve completions that a proxy sends: have them prefilled remotely, keep the history in host memory, decode sparsely.

    With several DP ranks each has its own pool and --concurrency, joins the proxy by itself, and listens at the ports --http-port + rank
    and --port + rank * tensor_parallel_size.

    Exit code: 0 stopped by a signal, everything answered; 2 the configuration cannot be served; 4 it failed while it served.

    Example: `tidegate decode --http-port 8200 --port 5600 --proxy http://127.0.0.1:8000`
    """
    from tidegate.engine.config import RunConfig
    from tidegate.engine.dp_ranks import end_with_leader, run_ranks
    from tidegate.engine.server_options import server_config
    from tidegate.engine.standing import Standing

    def run(made: RunConfig, host: Standing) -> None:
        if made.d_dp == 1:
            from tidegate.engine.decode_worker import DecodeWorker

            DecodeWorker(made, host).serve()
        elif code := run_ranks([[*itself, "--dp-rank", str(rank), "--led"] for rank in range(made.d_dp)]):
            raise typer.Exit(code)

    itself = [sys.executable, "-c", "from tidegate.engine.cli import main; main()", *sys.argv[1:]]
    if led:
        end_with_leader()
    serve(
        "decode", proxy=proxy, drain=drain, trace=trace,
        make=lambda folder: server_config(
            config, model, layers=layers, seed=seed, index_topk_freq=index_topk_freq, max_prompt=max_prompt, new_tokens=new_tokens,
            concurrency=concurrency, decode_port=http_port, control_port=port, d_dp=d_dp, dp_rank=dp_rank, trace=folder,
        ),
        run=run,
    )  # fmt: skip
