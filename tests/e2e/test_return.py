"""A side that is killed and comes back at the same address is served by the other, which goes on; the trace of all that is accepted."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from gate_tools import small
from pair_tools import TEXT, slow
from serving_tools import Serving, serving

from tidegate.engine.config import RunConfig
from tidegate.engine.pair import Worker, worker_argv
from tidegate.spec.trace import check

PROMPT = list(TEXT[:70])


def asked(s: Serving) -> list[int]:
    answer = s.post(prompt=PROMPT, max_tokens=4)
    assert answer.status_code == 200, answer.text
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens


def again(s: Serving, role: str, **ports: int) -> Worker:
    """Start another process of that role at the same ports."""
    lines: Any = queue.Queue()
    worker = Worker(role, worker_argv(role), msgspec.structs.replace(s.config, **ports), lines)
    while (line := lines.get(timeout=60)[1]).kind != "ready":
        assert line.kind != "error", line.text
    return worker


def until_held(s: Serving) -> None:
    """Until Prefill holds something for a read that Decode has not answered."""
    end = time.monotonic() + 60
    while 'tidegate_transfer{phase="held"}' not in httpx.get(s.url["prefill"] + "/metrics", trust_env=False, timeout=60).text:
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def broken_off(s: Serving) -> Iterator[None]:
    """A request is under way, its second chunk is being read, and the block ends it; its client hears of that."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(s.post, prompt=PROMPT, max_tokens=4)
        until_held(s)
        yield
        assert answer.result(timeout=60).status_code >= 500


RANKS = pytest.mark.parametrize("ranks", [1, 2])


def stuck(ranks: int, **changes: Any) -> RunConfig:
    """The second request's first read takes for ever."""
    return small(p_tp=ranks, d_tp=ranks, decode_faults=(slow("read", 300.0, layer=1, chunk=1, nth=2),), deadline_seconds=60.0, **changes)


@RANKS
def test_a_prefill_that_was_killed_and_comes_back_serves_the_same_decode(ranks: int, tmp_path: Path) -> None:
    faults = (slow("read", 3.0, layer=1, chunk=1, nth=2),)
    with serving(small(p_tp=ranks, d_tp=ranks, decode_faults=faults, trace=str(tmp_path))) as s:
        first = asked(s)
        assert s.prefill is not None
        with broken_off(s):
            s.prefill.process.kill()
            s.prefill.end()
            s.prefill = again(s, "prefill", prefill_port=int(s.url["prefill"].rpartition(":")[2]))
            assert asked(s) == first
        assert asked(s) == first
        for worker in (s.prefill, s.run.workers["decode"]):
            worker.stop()
            worker.left(60)
    accepted = check(tmp_path)
    assert (accepted.lives, accepted.died) == (("decode", "prefill", "prefill.1"), ("prefill",))
    assert accepted.events["Schedule"] == 3


@RANKS
@pytest.mark.parametrize("lease", [0.0, 120.0], ids=["seed mode", "read_lease"])
def test_a_decode_that_was_killed_and_comes_back_is_served_by_the_same_prefill(ranks: int, lease: float, tmp_path: Path) -> None:
    """What the dead one has not read keeps the slots that everything goes through, until it is given up."""
    with serving(stuck(ranks, read_lease=lease, trace=str(tmp_path))) as s:
        first = asked(s)
        old, ready = s.run.workers["decode"], s.run.ready["decode"]
        with broken_off(s):
            old.process.kill()
            old.end()
        new = again(s, "decode", port=ready.port, decode_port=ready.http_port, decode_faults=())
        try:
            assert asked(s) == first
            assert asked(s) == first
        finally:
            new.end()
    accepted = check(tmp_path)
    assert accepted.lives == accepted.died == ("decode", "decode.1", "prefill"), "the test has killed all of them"
    assert accepted.events["PeerLost"] == ranks
    assert accepted.events["Schedule"] == 3
