"""The oracle's run: the same checkpoint, the same processes, float64, a short prompt, and then transformers.

Rule: it is a run like any other (both workers, shared buffers, pulls), so that what is compared is the engine and not its model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from tidegate.engine.config import Request, RunConfig
from tidegate.engine.oracle import OracleError, OracleReport, oracle_compare
from tidegate.engine.pair import run_pair
from tidegate.engine.worker_io import Line

__all__ = ["oracle_config", "oracle_run"]

TOKENS, CHUNK, NEW = 160, 64, 8  # top-k below the context, several chunks, and seconds instead of minutes


def oracle_config(config: RunConfig) -> RunConfig:
    """What is run for the oracle instead of `config`, which names its checkpoint; ConfigError as `checked`."""
    request = Request("oracle", config.requests[0].prompt[:TOKENS])
    return msgspec.structs.replace(
        config, requests=(request,), new_tokens=min(config.new_tokens, NEW), chunk=min(config.chunk, CHUNK), model={"dtype": "float64"},
        num_blocks=0, concurrency=1, trace="", abort_after={},
    ).checked()  # fmt: skip


def oracle_run(config: RunConfig, *, on_line: Callable[[str, Line], None] = lambda role, line: None) -> OracleReport:
    """Run `config` small and in float64, and compare.

    Raises OracleError where the run fails or transformers is not there, PairError where a worker dies, ConfigError as `checked`.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-oracle-") as scratch:
        named = config.with_checkpoint(Path(scratch) / "model")
        small = oracle_config(named)
        line = run_pair(small, on_line=on_line).results[0]
        if not line.ok:
            raise OracleError(f"the oracle's float64 run failed: {line.text}")
        logits = np.frombuffer(line.logits, np.float32).reshape(small.new_tokens, -1)
        return oracle_compare(named.checkpoint, small.requests[0].prompt, small.chunk, small.new_tokens, logits)
