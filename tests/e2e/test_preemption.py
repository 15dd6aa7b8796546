"""More requests than there are places on Decode, which take turns there: each gets the bits that it gets alone."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from pair_tools import TEXT, config, run
from serving_tools import serving

from tidegate.engine.config import GIB, Request, RunConfig
from tidegate.engine.pool_keys import pool_objects

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


def test_metrics_count_turns_where_they_happen() -> None:
    """Long prompts more than either side has blocks for, among short ones that want a place on Decode."""
    prompts = [list(TEXT[7 * i : 7 * i + length]) for i, length in enumerate((300, 150, 160, 20, 7, 12, 9, 290, 140))]
    c = config(chunk=48, num_blocks=19, pool_blocks=5 * pool_objects(300, 16, 48) // 2, concurrency=3, prefill_preempt_after=48,
               prefill_lanes=2, step_tokens=96, preempt_after=2, new_tokens=20,
               requests=(Request("longest", tuple(prompts[0])),))  # fmt: skip
    c = msgspec.structs.replace(c, host_memory_gib=(3 * c.request_blocks // 2 + 1) * c.block_bytes / GIB).checked()
    names = [f"tidegate_{name}_total" for name in ("preemptions", "resumptions", "gave_way")]
    with serving(c) as servers:
        assert not any(servers.figure(role, name) for role in ("prefill", "decode") for name in names)
        assert servers.post(prompt=prompts[0]).status_code == 200
        assert not any(servers.figure(role, name) for role in ("prefill", "decode") for name in names), "nobody waited"
        with ThreadPoolExecutor(len(prompts)) as clients:
            assert [one.status_code for one in clients.map(lambda prompt: servers.post(prompt=prompt), prompts)] == [200] * len(prompts)
        short = [prompts[0][n : n + 5] for n in range(9)]  # with blocks for all of them, and rows for three
        with ThreadPoolExecutor(len(short)) as clients:
            assert [one.status_code for one in clients.map(lambda prompt: servers.post(prompt=prompt), short)] == [200] * len(short)
        counted = {role: [servers.figure(role, name) for name in names] for role in ("prefill", "decode")}
        assert all(count > 0 for counts in counted.values() for count in counts), counted
        stats = servers.stop()
    assert counted["decode"] == [stats["decode"][name] for name in ("preempted", "preempted", "dropped")]
    assert counted["prefill"] == [stats["prefill"][name] for name in ("preempted", "resumed", "gave_way")]
