"""`tidegate run`: a real prompt through two real processes, compared with a run that keeps everything in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from tidegate.engine.config import Request, RunConfig

DEMO_PROMPT = "examples/tide-gates.txt"


def command(
    prompt_file: Annotated[Path | None, typer.Option(help="Text file; its bytes are the tokens. Default: an essay.")] = None,
    prompts: Annotated[int, typer.Option(help="Requests at once: the file, and parts of it that begin later.")] = 2,
    new_tokens: Annotated[int, typer.Option(help="Tokens to generate for each request.")] = 16,
    chunk: Annotated[int, typer.Option(help="Tokens of one prefill chunk.")] = 512,
    shared_buffers: Annotated[int, typer.Option(help="Layer buffers that the sharing layers reuse.")] = 3,
    independent_layers: Annotated[
        str, typer.Option(help="Layers with a buffer of their own: numbers such as 0,-1; all; none.")
    ] = "0",
    hot_buffer: Annotated[int, typer.Option(help="Rows of a layer's hot buffer; at least the model's index_topk.")] = 96,
    layers: Annotated[int, typer.Option(help="Layers of the small seeded model.")] = 8,
    dtype: Annotated[str, typer.Option(help="bfloat16, float32 or float64.")] = "bfloat16",
    seed: Annotated[int, typer.Option(help="Seed of the model's weights.")] = 0,
    read_lease: Annotated[float, typer.Option(help="Seconds after which Prefill may revoke a read; 0: never.")] = 0.0,
    port: Annotated[int, typer.Option(help="Decode's control port; 0: any free one.")] = 0,
    trace: Annotated[Path | None, typer.Option(help="Write the run's trace into this new folder.")] = None,
) -> None:
    """Prefill in one process, decode in another, and compare every token and logit.

    Exit code: 0 all equal; 1 a request failed or differs; 2 the configuration cannot be run; 130 interrupted.

    Example: `tidegate run --prompt-file notes.txt --new-tokens 8 --chunk 256 --shared-buffers 2 --trace /tmp/t`
    """
    from tidegate.engine.config import ConfigError, RunConfig

    try:
        requests = _requests(prompt_file, prompts)
        config = RunConfig(
            requests=requests, new_tokens=new_tokens, chunk=chunk, shared_buffers=shared_buffers,
            independent_layers=_layer_numbers(independent_layers), hot_buffer=hot_buffer,
            model={"num_hidden_layers": layers, "dtype": dtype}, seed=seed, port=port, read_lease=read_lease,
            concurrency=max(1, prompts), trace=str(trace or ""),
        ).checked()  # fmt: skip
        _free(port)
        if trace is not None:
            _new_folder(trace)
    except ConfigError as error:
        typer.echo(f"tidegate run: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(_run(config))


def _layer_numbers(text: str) -> tuple[int, ...] | Literal["all"]:
    from tidegate.engine.config import ConfigError

    if text in ("all", "none", ""):
        return "all" if text == "all" else ()
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise ConfigError(f"independent layers is {text!r}: give numbers such as 0,-1, or all, or none") from None


def _requests(prompt_file: Path | None, prompts: int) -> tuple[Request, ...]:
    """Request i reads the file from byte 37 * i on, so that the prompts differ."""
    from tidegate.engine.config import ConfigError, Request

    path = prompt_file or Path(__file__).resolve().parents[2] / DEMO_PROMPT
    if prompts < 1:
        raise ConfigError(f"prompts is {prompts}: at least 1")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"prompt file {path}: {error.strerror}; give a readable file with --prompt-file") from None
    if not data:
        raise ConfigError(f"prompt file {path} is empty: a prompt has at least one byte")
    return tuple(Request(f"request-{i + 1}", tuple(data[min(37 * i, len(data) - 1) :])) for i in range(prompts))


def _free(port: int) -> None:
    import socket

    from tidegate.engine.config import ConfigError

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"port {port}: {error.strerror}; choose another with --port, or 0 for a free one") from None


def _new_folder(path: Path) -> None:
    from tidegate.engine.config import ConfigError

    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(f"trace folder {path} is not empty: a trace is of one run; give a new folder")
        if not os.access(path, os.W_OK | os.X_OK):
            raise ConfigError(f"trace folder {path} is not writable; give a folder that is")
    except OSError as error:
        raise ConfigError(f"trace folder {path}: {error.strerror}; give a folder that can be written") from None


def _run(config: RunConfig) -> int:
    from rich.console import Console

    from tidegate.engine.pair import PairError, run_pair
    from tidegate.engine.report import compare, tables

    console = Console()
    lengths, plan = ", ".join(str(len(r.prompt)) for r in config.requests), config.plan()
    console.print(f"{len(config.requests)} requests of {lengths} tokens in chunks of {config.chunk}")
    console.print(f"{plan.layers} layers over {len(plan.slots)} buffers; a Prefill and a Decode process")
    try:
        with console.status("starting") as status:
            result = run_pair(config, on_line=lambda role, line: status.update(f"{role}: {line.text or line.kind}"))
        console.print("comparing with the same model, everything resident")
        compared = compare(config, result)
    except PairError as error:
        typer.echo(f"tidegate run: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        typer.echo("tidegate run: interrupted; both workers were ended", err=True)
        return 130
    for table in tables(config, result, compared):
        console.print(table)
    equal = all(c.equal for c in compared)
    console.print("all tokens and logits are bit-equal" if equal else "NOT EQUAL")
    return 0 if equal else 1
