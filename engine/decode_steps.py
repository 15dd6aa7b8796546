"""What every rank of a Decode does alike, the leader and its hands: its memory, a forward, and the meeting that ends it.

Rule: a forward is a function of the words that name it and of rows that all ranks have alike, so every rank drafts, accepts and rolls
back the same, and none is told what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tidegate.engine.config import RunConfig
from tidegate.engine.decode_kv import AttemptStore
from tidegate.engine.decode_memory import DecodeMemory
from tidegate.engine.decode_rows import DecodeRows
from tidegate.engine.model import Model, ModelConfig, Speculating, TensorParallel, speculate
from tidegate.engine.rank_words import Forward

__all__ = ["decode_memory", "decode_sizes", "forward_word", "make_forward"]


def decode_sizes(config: RunConfig, model: ModelConfig) -> dict[str, Any]:
    """How large each rank's memory is, by the names of `DecodeMemory`."""
    return {"layers": model.cache_layers, "blocks": config.decode_blocks, "block_size": config.block_size, "rows": config.concurrency,
            "hot": config.hot_buffer, "poison": config.poison}  # fmt: skip


def decode_memory(config: RunConfig, model: ModelConfig, files: Mapping[str, int]) -> DecodeMemory:
    """The memory of a rank over main KV that all share."""
    return DecodeMemory(config.row_kinds(), **decode_sizes(config, model), files=files)


def forward_word(requests: Sequence[Speculating[int]]) -> Forward:
    """What the other ranks are told, so that they `make_forward` of the same requests."""
    return Forward(tuple((one.key, one.token, one.position, one.end, tuple(one.drafts)) for one in requests))


def make_forward(
    model: Model, rows: DecodeRows, requests: Sequence[Speculating[int]], *, drafts: int
) -> list[tuple[list[int], Tensor]]:
    """`speculate` over the rows of this rank, and where there are several ranks their meeting.  RuntimeError where they differ."""
    found = speculate(model, requests, AttemptStore(rows), drafts=drafts)
    if rows.ranks > 1:
        _meet(model.group, rows)
    return found


def _meet(group: TensorParallel, rows: DecodeRows) -> None:
    """Every rank has made the forward, and all chose and hold the same: the one meeting of a forward.

    Until it returns rank 0 writes and gives away nothing that another rank may still read.
    """
    group.agree("top-k and residency of a forward", rows.forward_digest())
