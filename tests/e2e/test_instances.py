"""Several Prefills and several Decodes behind one proxy, in real processes: any of them serves any, to the bit, and whoever ends while
others serve takes nothing along."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import torch
from pair_tools import TEXT, config, slow
from serving_tools import JSON, Serving, serving

from tidegate.engine.config import Request, RunConfig
from tidegate.engine.model import Model, reference_generate
from tidegate.engine.pair import PairError, PairResult, run_pair
from tidegate.engine.report import compare
from tidegate.spec.trace import check
from tidegate.spec.trace_lines import TraceRefused

LONG = bool(os.environ.get("TIDEGATE_LONG"))
SPANS = ((0, 300), (11, 240), (5, 170))
SHORT = [{"prefills": 2, "d_dp": 2}]
MATRIX = [
    {"prefills": 2, "decodes": 2}, {"prefills": 2, "decodes": 2, "d_dp": 2}, {"p_tp": 2, "d_dp": 2},
    {"prefills": 2, "p_tp": 2, "decodes": 2}, {"prefills": 2, "p_tp": 2, "d_tp": 2, "d_dp": 2}, {"prefills": 3},
    {"decodes": 3, "lic8": True},
]  # fmt: skip


def prompts(count: int) -> tuple[Request, ...]:
    spans = [SPANS[n % 3] for n in range(count)]
    return tuple(Request(f"prompt-{n}", tuple(TEXT[first + n : last])) for n, (first, last) in enumerate(spans))


def role(result: PairResult, name: str) -> list[dict[str, float]]:
    return [stats for worker, stats in result.each.items() if worker.partition(".")[0] == name]


@pytest.mark.parametrize("sizes", SHORT + (MATRIX if LONG else []), ids=str)
def test_requests_at_once_over_several_of_each_are_bit_equal(sizes: dict[str, int], tmp_path: Path) -> None:
    c = config(requests=prompts(3), trace=str(tmp_path), **sizes)
    result = run_pair(c, timeout=120)
    accepted = check(tmp_path)
    assert (len(accepted.lives), accepted.died, accepted.runs) == (c.prefills + c.decode_ranks, (), 3)
    compared = compare(c, result)
    assert all(one.equal for one in compared), compared
    prefills, decodes = role(result, "prefill"), role(result, "decode")
    assert (len(prefills), len(decodes)) == (c.prefills, c.decode_ranks)
    assert all(stats["bytes_saved"] > 0 for stats in prefills), "each Prefill has computed something"
    assert sum(stats["bytes_pulled_main"] > 0 for stats in decodes) == min(3, c.decode_ranks), "the requests are spread over the Decodes"
    for stats in decodes:
        assert stats["blocks_free"] == stats["blocks"] == c.decode_blocks
        assert stats["places_free"] == stats["places"]
    for stats in prefills:
        assert (stats["blocks_free"], stats["slots_free"]) == (stats["blocks"], stats["slots"])


ONE_POOL = """
import os
from tidegate.engine import decode_memory

class Same(decode_memory.HostMemory):
    def __init__(self, size, *, file=-1):
        super().__init__(size, file=os.open({path!r}, os.O_RDWR))

decode_memory.HostMemory = Same
from tidegate.engine.decode_worker import main
main()
"""


def test_planted_a_dp_rank_that_reads_into_the_pool_of_another_is_refused(tmp_path: Path) -> None:
    """Both count their blocks from the first."""
    pool, trace = tmp_path / "pool", tmp_path / "trace"
    trace.mkdir()
    pool.write_bytes(b"")
    os.truncate(pool, 1 << 26)
    c = config(requests=prompts(2), d_dp=2, new_tokens=1, trace=str(trace))
    with contextlib.suppress(PairError):
        run_pair(c, timeout=60, decode_argv=[sys.executable, "-c", ONE_POOL.format(path=str(pool))])
    with pytest.raises(TraceRefused, match=r"main of decode\S* lies in the same memory as that of decode"):
        check(trace)


def right(c: RunConfig, prompt: bytes) -> list[int]:
    torch.set_num_threads(1)
    return reference_generate(Model.random(c.model_config(), c.seed), tuple(prompt), c.chunk, c.new_tokens)[0]


def until(good: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not good():
        assert time.monotonic() < end
        time.sleep(0.02)


def join(s: Serving, url: str) -> None:
    body = msgspec.json.encode({"role": "prefill", "url": url, "seconds": 60})
    assert httpx.post(s.url["proxy"] + "/v1/instances", content=body, headers=JSON, trust_env=False).status_code == 200


def deserted(**serve: Any) -> tuple[httpx.Response, dict[str, float], RunConfig]:
    """The answer to a request whose Prefill is killed in the middle, when another one has just joined; Decode's figures; the run."""
    c = config(requests=(Request("longest", tuple(TEXT[:200])),), deadline_seconds=1000.0, prefill_faults=(slow("attend", 0.2),))
    with serving(c, **serve) as s:
        answers: list[httpx.Response] = []
        client = threading.Thread(target=lambda: answers.append(s.post(prompt=list(TEXT[:200]))))
        another, url = s.new_prefill()
        try:
            client.start()
            until(lambda: s.figure("decode", "tidegate_pulled_bytes_total") > 0)
            join(s, url)
            assert s.prefill is not None
            os.kill(s.prefill.process.pid, signal.SIGKILL)
            client.join()
            another.stop()
            another.left(20)
        finally:
            another.end()
        return answers[0], s.stop()["decode"], c


def test_a_request_whose_prefill_is_killed_is_served_by_one_that_has_just_joined() -> None:
    answer, decode, c = deserted()
    assert answer.status_code == 200, answer.text
    assert [choice["token_ids"] for choice in answer.json()["choices"]] == [right(c, TEXT[:200])]
    assert decode["blocks_free"] == decode["blocks"]
    model = c.model_config()
    whole = 200 * model.cache_layers * model.main_width * model.torch_dtype.itemsize
    assert decode["bytes_pulled_main"] > whole, "some of it was read from the one that was killed"


UNASKED = """
from tidegate.engine import decode_worker, parting
parting.Partings.deserted = property(lambda self: set(), lambda self, value: None)
decode_worker.main()
"""


@pytest.mark.skipif(not LONG, reason="the short run shows that it is served")
def test_planted_nobody_else_is_asked() -> None:
    answer, _, _ = deserted(decode_argv=[sys.executable, "-c", UNASKED])
    assert (answer.status_code, "which served it, is gone" in answer.text) == (500, True)
