"""Small real runs: a tiny model, two processes, and what they must be compared with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tidegate.engine.config import FaultSpec, Request, RunConfig
from tidegate.engine.pair import PairResult, run_pair
from tidegate.engine.recorder import read_lines
from tidegate.engine.report import Comparison, compare

MODEL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "first_k_dense_replace": 6, "q_lora_rank": 32,
    "kv_lora_rank": 96, "qk_rope_head_dim": 16, "index_topk": 12, "index_head_dim": 32,
}  # fmt: skip
TEXT = b"When the tide falls the gate swings out and lets the river run; when it rises, the sea shuts it again. " * 4


def config(dtype: str = "bfloat16", **changes: Any) -> RunConfig:
    """Two requests of one id, 4 and 3 chunks, 7 layers over 2 shared slots and an independent one."""
    settings: dict[str, Any] = {
        "requests": (Request("same", tuple(TEXT[:300])), Request("same", tuple(TEXT[11:240]))), "chunk": 80,
        "hot_buffer": 16, "new_tokens": 6, "block_size": 16, "poison": True, "resend_seconds": 0.1,
        "shared_buffers": 2, "independent_layers": (-1,), "tags": True,
        "model": MODEL | {"dtype": dtype},
    }  # fmt: skip
    return RunConfig(**(settings | changes)).checked()


def run(c: RunConfig, **options: Any) -> tuple[PairResult, list[Comparison]]:
    result = run_pair(c, timeout=60, **options)
    decode = result.stats["decode"]
    assert decode["blocks_free"] == decode["blocks"] == c.decode_blocks, f"{decode['blocks_free']} of {c.decode_blocks} blocks came back"
    return result, compare(c, result)


def slow(where: str, seconds: float, **names: Any) -> FaultSpec:
    return FaultSpec(where=where, delay=seconds, **names)  # type: ignore[arg-type]


def written_tags(trace: Path) -> dict[tuple[int, int, int], str]:
    """(run, chunk, layer) -> tag of the rows that Prefill computed there."""
    lines = read_lines(trace / "prefill-0.jsonl")
    return {(x["run"], x["chunk"], x["layer"]): x["tag"] for x in lines if x["kind"] == "write_end"}


def bound_runs(trace: Path) -> dict[int, int]:
    """attempt -> the run that served it."""
    lines = read_lines(trace / "prefill-0.jsonl")
    starts = [x for x in lines if x["kind"] == "event" and x["op"] == "Deliver" and x["message"]["type"] == "START"]
    return {x["message"]["attempt"]: x["run"] for x in starts}


def mutated(role: str, machine: str, source: str, before: str = "") -> list[str]:
    """The command of a worker whose machine does what the generated `source` says, after the code `before`; no file of the product
    is touched.
    """
    return [
        sys.executable, "-c",
        f"{before}\n"
        "import importlib, sys\n"
        "from tidegate.spec import gen\n"
        f"module = importlib.import_module('tidegate.protocol.machines.{machine}')\n"
        f"with gen.installed(module, {source!r}):\n"
        f"    importlib.import_module('tidegate.engine.{role}_worker').main()\n",
    ]  # fmt: skip
