"""More requests than there are places on Decode, which take turns there: each gets the bits that it gets alone."""

from __future__ import annotations

import os
import random
from typing import Any

import msgspec
import pytest
from pair_tools import TEXT, config, run

from tidegate.engine.config import GIB, Request, RunConfig

LONG = bool(os.environ.get("TIDEGATE_LONG"))


def crowd(count: int, longest: int, **changes: Any) -> RunConfig:
    """`count` prompts of random length, ids that repeat, and blocks on Decode for the longest of them and little else."""
    chance, text = random.Random(count), TEXT * (2 + longest // len(TEXT))
    lengths = [longest, *(int(longest ** chance.random()) for _ in range(count - 1))]
    firsts = [chance.randrange(200) for _ in lengths]
    requests = tuple(
        Request(f"r{i % (count - 3)}", tuple(text[first : first + length]))
        for i, (first, length) in enumerate(zip(firsts, lengths, strict=True))
    )  # fmt: skip
    c = config(requests=requests, preempt_after=2, deadline_seconds=600.0, **changes)
    return msgspec.structs.replace(c, host_memory_gib=(c.request_blocks + 3) * c.block_bytes / GIB).checked()


@pytest.mark.parametrize(
    ("count", "longest", "changes"),
    [(12, 230, {"concurrency": 4}), *([
        (12, 230, {"concurrency": 4, "p_tp": 2, "d_tp": 2}),
        (48, 2500, {"concurrency": 12, "chunk": 400, "new_tokens": 24, "prefill_lanes": 4, "step_tokens": 800}),
    ] if LONG else [])],
)  # fmt: skip
def test_requests_take_turns(count: int, longest: int, changes: dict[str, Any]) -> None:
    c = crowd(count, longest, **changes)
    result, compared = run(c)
    assert len(compared) == count
    assert all(one.equal for one in compared), compared
    decode, prefill = result.stats["decode"], result.stats["prefill"]
    assert decode["preempted"] > 0
    assert decode["dropped"] > 0
    assert decode["places_free"] == decode["places"] == c.concurrency
    assert prefill["blocks_free"] == prefill["blocks"]
    assert prefill["slots_free"] == prefill["slots"]
