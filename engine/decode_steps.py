"""What every rank of a Decode does alike, the leader and its hands: its memory, and the meeting that ends a forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.engine.config import RunConfig
from tidegate.engine.decode_memory import DecodeMemory
from tidegate.engine.decode_rows import DecodeRows
from tidegate.engine.model import ModelConfig, TensorParallel

__all__ = ["decode_memory", "decode_sizes", "meet"]


def decode_sizes(config: RunConfig, model: ModelConfig) -> dict[str, Any]:
    """How large each rank's memory is, by the names of `DecodeMemory`."""
    return {"layers": model.cache_layers, "blocks": config.decode_blocks, "block_size": config.block_size, "rows": config.concurrency,
            "hot": config.hot_buffer, "poison": config.poison}  # fmt: skip


def decode_memory(config: RunConfig, model: ModelConfig, files: Mapping[str, int]) -> DecodeMemory:
    """The memory of a rank over main KV that all share."""
    return DecodeMemory(config.row_kinds(), **decode_sizes(config, model), files=files)


def meet(group: TensorParallel, rows: DecodeRows) -> None:
    """Every rank has made the forward, and all chose and hold the same: the one meeting of a forward.  RuntimeError on every rank if not.

    Until it returns rank 0 writes and gives away nothing that another rank may still read.
    """
    group.agree("top-k and residency of a forward", rows.forward_digest())
