"""`tidegate run`: a real prompt through real processes, by HTTP, compared with a run that keeps everything in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tidegate.engine.config import RunConfig
    from tidegate.engine.worker_io import Line

SHOWN = 8  # lengths of prompts
DEMO_PROMPT = Path(__file__).resolve().parents[2] / "examples/tide-gates.txt"


def command(
    prompt_file: Annotated[Path | None, typer.Option(help="Text file; its bytes are the tokens. Default: an essay.")] = None,
    prompts: Annotated[
        int, typer.Option(help="Requests at once: the file; less than a block of it; a block; then the file from later on.")
    ] = 3,
    new_tokens: Annotated[int, typer.Option(help="Tokens to generate for each request.")] = 16,
    config: Annotated[Path | None, typer.Option(help="JSON file of both instances (docs/configuration.md). Default: the demo.")] = None,
    chunk: Annotated[int | None, typer.Option(help="Tokens of one prefill chunk. [demo: 512]")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens of a KV block. [demo: 64]")] = None,
    shared_buffers: Annotated[int | None, typer.Option(help="Layer buffers that the sharing layers reuse. [demo: 3]")] = None,
    independent_layers: Annotated[
        str | None, typer.Option(help="Layers with a buffer of their own: numbers such as 0,-1; all; none. [demo: 0]")
    ] = None,
    prefetch_layers: Annotated[int | None, typer.Option(help="Layers loaded ahead; below the shared buffers. [demo: 1]")] = None,
    hot_buffer: Annotated[int | None, typer.Option(help="Rows of a layer's hot buffer; at least index_topk. [demo: 128]")] = None,
    host_memory: Annotated[float | None, typer.Option(help="GiB of host memory for Decode's main KV. [demo: 128]")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="bfloat16; with --check-mode float32 or float64. [demo: bfloat16]")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests at once on Decode; the others wait. [demo: all]")] = None,
    prefill_concurrency: Annotated[
        int | None, typer.Option(help="Requests that Prefill computes side by side, in steps of at most --chunk tokens. [demo: 1]")
    ] = None,
    p_tp: Annotated[int | None, typer.Option("--p-tp", help="Ranks of Prefill, a process each; a multiple of Decode's. [demo: 1]")] = None,
    d_tp: Annotated[int | None, typer.Option("--d-tp", help="Ranks of Decode, a process each. [demo: 1]")] = None,
    d_dp: Annotated[
        int | None, typer.Option("--d-dp", help="DP ranks of Decode: each has its own pool and ports, and --d-tp ranks. [demo: 1]")
    ] = None,
    prefills: Annotated[int, typer.Option(help="Prefill instances; any of them serves any Decode.")] = 1,
    decodes: Annotated[int, typer.Option(help="Decode instances, of --d-dp ranks each.")] = 1,
    mtp: Annotated[int | None, typer.Option(help="Tokens that the MTP layer drafts for each request in a forward. [demo: 0]")] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds until a request without its KV fails. [120, or 0.1 for each token of all prompts]")
    ] = None,
    check_mode: Annotated[bool, typer.Option("--check-mode", help="Allow dtypes that are for checks of arithmetic only.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu; npu or cuda where there is one. [demo: cpu]")] = None,
    model: Annotated[Path | None, typer.Option(help="Folder of a DeepSeek-V3.2-shaped checkpoint. Default: a small seeded one.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the seeded model. [demo: 8]")] = None,
    index_topk_freq: Annotated[
        int | None, typer.Option(help="One of so many layers of the seeded model has an indexer; the others use its top-k. [demo: 1]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the seeded model's weights. [demo: 0]")] = None,
    lic8: Annotated[bool, typer.Option("--lic8", help="Keep the indexer's rows in 8 bits, with a scale each.")] = False,
    oracle: Annotated[bool, typer.Option("--oracle", help="Also run small in float64 and compare with transformers.")] = False,
    read_lease: Annotated[float, typer.Option(help="Seconds after which Prefill may revoke a read; 0: never.")] = 0.0,
    port: Annotated[int | None, typer.Option(help="Decode's control port; 0: any free one. [demo: 0]")] = None,
    proxy_port: Annotated[int, typer.Option(help="The proxy's port; 0: any free one.")] = 0,
    prefill_port: Annotated[int, typer.Option(help="Prefill's HTTP port; 0: any free one.")] = 0,
    decode_port: Annotated[int, typer.Option(help="Decode's HTTP port; 0: any free one.")] = 0,
    max_retries: Annotated[int, typer.Option(help="Further tries of a request between the servers.")] = 3,
    retry_delay: Annotated[float, typer.Option(help="Seconds before the first of them; doubles each time.")] = 0.1,
    trace: Annotated[Path | None, typer.Option(help="Write the run's trace into this new folder.")] = None,
) -> None:
    """Prefill in one process, decode in another, ask both through a proxy, and compare every token and logit.

    Exit code: 0 all equal; 1 a request failed or differs; 2 the configuration cannot be run; 4 a server failed; 130 interrupted.

    Example: `tidegate run --prompt-file notes.txt --new-tokens 8 --chunk 256 --shared-buffers 2 --trace /tmp/t`
    """
    from tidegate.engine.errors import ConfigError
    from tidegate.engine.instances import ports
    from tidegate.engine.memory import available, refuse_memory
    from tidegate.engine.model_options import model_options, tokens_of
    from tidegate.engine.oracle import OracleError, need_transformers
    from tidegate.engine.run_options import KEYLESS, prompts_of, run_config, run_settings, with_options
    from tidegate.engine.settings import read_settings

    given = {
        "--chunk": chunk, "--block-size": block_size, "--kv-dtype": kv_dtype, "--device": device, "--port": port,
        "--shared-buffers": shared_buffers, "--independent-layers": _layer_numbers(independent_layers),
        "--prefetch-layers": prefetch_layers, "--hot-buffer": hot_buffer, "--host-memory": host_memory, "--deadline": deadline,
        "--p-tp": p_tp, "--d-tp": d_tp, "--d-dp": d_dp, "--concurrency": concurrency,
        "--prefill-concurrency": prefill_concurrency, "--mtp": mtp,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}
    typed = [*options, *(name for name in KEYLESS if name != "--layers" or layers is not None)]
    try:
        settings = run_settings(read_settings(config) if config else None, options, check_mode=check_mode)
        requests = prompts_of(tokens_of(prompt_file or DEMO_PROMPT, model), prompts, settings.prefill.block_size)
        run = run_config(
            settings, requests, new_tokens=new_tokens, read_lease=read_lease, trace=str(trace or ""), proxy_port=proxy_port,
            prefill_port=prefill_port, decode_port=decode_port, max_retries=max_retries, retry_delay=retry_delay,
            prefills=prefills, decodes=decodes, lic8=lic8,
            **model_options(model, layers=layers, seed=seed, index_topk_freq=index_topk_freq),
        )  # fmt: skip
        refuse_memory(run, available())
        if oracle and lic8:
            raise ConfigError("--oracle beside --lic8: transformers keeps the indexer's rows as they were computed; leave one of them out")
        if oracle:
            need_transformers()
        for name, numbers in ports(run).items():
            for number in numbers:
                _free(number, f"--{name.replace(' ', '-')}")
        if trace is not None:
            new_folder(trace)
    except (ConfigError, OracleError) as error:
        typer.echo(f"tidegate run: {with_options(str(error), typed)}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("tidegate run: interrupted; nothing was started", err=True)
        raise typer.Exit(130) from None
    raise typer.Exit(_run(run, oracle=oracle))


def _layer_numbers(text: str | None) -> Any:
    """What the key takes: a list of numbers, or "all"; other text as it is, to be refused by the key's rule."""
    if text is None or text == "all":
        return text
    try:
        return [int(one) for one in text.split(",")] if text != "none" else []
    except ValueError:
        return text


def _free(port: int, option: str) -> None:
    import socket

    from tidegate.engine.errors import ConfigError

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"port {port}: {error.strerror}; choose another with {option}, or 0 for a free one") from None


def new_folder(path: Path) -> None:
    """Make it; ConfigError where it is there and not empty, or cannot be written."""
    from tidegate.engine.errors import ConfigError

    if path.exists() and not path.is_dir():
        raise ConfigError(f"trace folder {path} is a file: give a new folder with --trace")
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(f"trace folder {path} is not empty: a trace is of one run; give a new folder")
        if not os.access(path, os.W_OK | os.X_OK):
            raise ConfigError(f"trace folder {path} is not writable; give a folder that is")
    except OSError as error:
        raise ConfigError(f"trace folder {path}: {error.strerror}; give a folder that can be written") from None


def _run(config: RunConfig, *, oracle: bool) -> int:
    from rich.console import Console

    from tidegate.engine.endings import Ending
    from tidegate.engine.pair import PairError, run_pair
    from tidegate.engine.report import compare, tables, verdict

    console = Console()
    lengths, plan = ", ".join(str(len(r.prompt)) for r in config.requests[:SHOWN]), config.plan()
    lengths += ", ..." if len(config.requests) > SHOWN else ""
    console.print(f"{len(config.requests)} requests of {lengths} tokens in chunks of {config.chunk}")
    processes = 1 + config.prefills * config.p_tp + config.decode_ranks * config.d_tp
    console.print(f"{plan.layers} layers over {len(plan.slots)} buffers; {_servers(config)} in {processes} processes")
    try:
        with console.status("starting") as status:
            def told(role: str, line: Line) -> None:
                status.update(f"{role}: {line.text or line.kind}")
                if line.kind == "waits":
                    console.print(f"{role}: {line.text}", markup=False, highlight=False, soft_wrap=True)

            result = run_pair(config, on_line=told)
        console.print("comparing with the same model, everything resident")
        compared = compare(config, result)
    except PairError as error:
        typer.echo(f"tidegate run: {error}", err=True)
        return Ending.FAILED
    except KeyboardInterrupt:
        typer.echo("tidegate run: interrupted; all workers were ended", err=True)
        return 130
    for table in tables(config, result, compared):
        console.print(table)
    console.print(verdict(compared), markup=False, highlight=False, soft_wrap=True)
    return 0 if all(c.equal for c in compared) and (not oracle or _agrees(config, console)) else 1


def _servers(config: RunConfig) -> str:
    """Which servers there are."""
    if config.prefills == config.decode_ranks == 1:
        return "proxy, Prefill and Decode"
    ranks = f" of {config.d_dp} DP ranks" if config.d_dp > 1 else ""
    return f"proxy, {config.prefills} Prefill{'s' * (config.prefills > 1)} and {config.decodes} Decode{'s' * (config.decodes > 1)}{ranks}"


def _agrees(config: RunConfig, console: Console) -> bool:
    """Does transformers agree with a small run of the same checkpoint?"""
    from tidegate.engine.oracle import OracleError
    from tidegate.engine.oracle_run import oracle_run
    from tidegate.engine.pair import PairError

    try:
        with console.status("asking the oracle") as status:
            report = oracle_run(config, on_line=lambda role, line: status.update(f"oracle, {role}: {line.text or line.kind}"))
    except (OracleError, PairError, ValueError) as error:
        typer.echo(f"tidegate run: --oracle: {error}", err=True)
        return False
    except KeyboardInterrupt:
        typer.echo("tidegate run: interrupted; the oracle's workers were ended", err=True)
        raise typer.Exit(130) from None
    for line in report.lines():
        console.print(f"oracle (transformers, float64): {line}")
    return report.agrees and report.resident_equal
