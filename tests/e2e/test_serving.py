"""Real processes asked by HTTP: right answers, clear errors, and nothing that a stranger sends changes either."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pair_tools import TEXT, config, run, slow
from serving_tools import JSON, Serving, serving

from tidegate.engine.config import FaultSpec, Request, RunConfig
from tidegate.engine.http.client import Asked, Client
from tidegate.engine.model import Model, reference_generate
from tidegate.engine.pair import PairError
from tidegate.spec.trace import check

NEW = 6
LONGEST = TEXT[:200]


def small(**changes: Any) -> RunConfig:
    return config("float32", **({"requests": (Request("longest", tuple(LONGEST)),), "new_tokens": NEW} | changes))


def right(c: RunConfig, *prompts: bytes, new_tokens: int = NEW) -> list[list[int]]:
    torch.set_num_threads(1)
    model = Model.random(c.model_config(), c.seed)
    return [reference_generate(model, tuple(prompt), c.chunk, new_tokens)[0] for prompt in prompts]


def tokens(answer: httpx.Response) -> list[list[int]]:
    assert answer.status_code == 200, answer.text
    return [choice["token_ids"] for choice in answer.json()["choices"]]


def error(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


@pytest.fixture(scope="module")
def warm() -> Iterator[Serving]:
    """Up for all tests of this module that do no lasting harm; at their end everything must be given back."""
    with serving(small(concurrency=2)) as made:
        yield made
        stats = made.stop()["decode"]
        assert stats["places_free"] == stats["places"]


def test_text_and_ids_one_and_many_are_answered_in_order(warm: Serving) -> None:
    prompts = [LONGEST[:150], LONGEST[20:60], LONGEST[3:4], LONGEST, LONGEST[50:170]]
    answer = warm.post(prompt=[one.decode() if n % 2 else list(one) for n, one in enumerate(prompts)])
    assert tokens(answer) == right(warm.config, *prompts)
    assert tokens(warm.post(prompt=list(prompts[0]), max_tokens=2)) == right(warm.config, prompts[0], new_tokens=2)
    assert {warm.health(role)["code"] for role in warm.url} == {200}


def test_requests_that_meet_do_not_mix(warm: Serving) -> None:
    prompts = [LONGEST[n : n + 40 + 7 * n] for n in range(6)]
    found: dict[int, list[list[int]]] = {}

    def ask(n: int) -> None:
        found[n] = tokens(warm.post(prompt=list(prompts[n]), headers={"X-Request-Id": "one-name"}))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n][0] for n in range(len(prompts))] == right(warm.config, *prompts)


GOOD: dict[str, Any] = {"prompt": "abc", "max_tokens": 1, "kv_transfer_params": {
    "request_id": "cmpl-a-0", "do_remote_prefill": False, "do_remote_decode": True, "remote_engine_id": "d", "remote_host": "127.0.0.1",
    "remote_port": 1, "remote_tp_size": 1, "remote_cached_tokens": 0, "attempt": 1, "incarnation": 1, "prompt_digest": "0" * 16,
}}  # fmt: skip
INSIDE = GOOD["kv_transfer_params"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda one: st.lists(one, max_size=4) | st.dictionaries(st.sampled_from([*GOOD, *INSIDE, "x"]), one, max_size=4),
    max_leaves=8,
)  # fmt: skip
DOORS = [("proxy", "/v1/completions"), ("proxy", "/v1/metaserver"), ("decode", "/v1/completions"), ("prefill", "/v1/completions")]


@st.composite
def bad(draw: st.DrawFn) -> bytes:
    """Bytes, JSON of any kind, or a good body with one value changed, one field added, or cut short."""
    kind = draw(st.sampled_from(["bytes", "json", "changed", "inside", "cut"]))
    good = msgspec.json.encode(GOOD)
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    if kind == "cut":
        return good[: draw(st.integers(0, len(good) - 1))]
    if kind == "json":
        value = draw(VALUES)
        if isinstance(value, dict):
            value.pop("prompt", None)  # with one it may be good
        return msgspec.json.encode(value)
    inside = INSIDE | ({draw(st.sampled_from([*INSIDE, "x"])): draw(VALUES)} if kind == "inside" else {})
    changed = {draw(st.sampled_from(["max_tokens", "kv_transfer_params", "stream", "x"])): draw(VALUES)} if kind == "changed" else {}
    return msgspec.json.encode(GOOD | {"prompt": [], "kv_transfer_params": inside} | changed)


@pytest.mark.parametrize(("role", "path"), DOORS)
def test_whatever_is_sent_is_refused_counted_and_changes_nothing(role: str, path: str, warm: Serving) -> None:
    before, sent = warm.health(role)["http_refused"], 0
    client = httpx.Client(base_url=warm.url[role], headers=JSON, trust_env=False, timeout=60)

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=bad())
    def visit(data: bytes) -> None:
        nonlocal sent
        answer = client.post(path, content=data)
        sent += 1
        assert 400 <= answer.status_code < 500, (data, answer.text)
        assert answer.json()["error"]["code"] == answer.status_code
        assert len(error(answer)) > 10

    visit()
    client.close()
    assert warm.health(role)["http_refused"] - before == sent >= 30
    assert tokens(warm.post(prompt="abc")) == right(warm.config, b"abc")


def test_an_oversized_body_is_refused_by_everyone(warm: Serving) -> None:
    for role, path in DOORS:
        answer = warm.post_bytes(role, path, b" " * ((1 << 24) + 1), {"X-Request-Id": "large"})
        assert (answer.status_code, "the body is longer than" in error(answer)) == (413, True)
    answer = warm.post(prompt=list(LONGEST + b"x"))
    assert (answer.status_code, error(answer)) == (400, "a prompt of 201 tokens: memory is set aside for 1 to 200, send fewer")


def test_a_client_that_leaves_in_the_middle_of_its_answer_takes_nothing_along() -> None:
    """The first client leaves while Decode generates for it, the second is answered."""
    clients: list[Client] = []
    c = small(new_tokens=400, concurrency=2, model=small().model | {"max_position_embeddings": 1024})

    def leave(role: str, line: Any) -> None:
        if role == "decode" and line.text.startswith("decode cmpl-leaves") and line.text.endswith("16 tokens"):
            clients[0].close()

    with serving(c, on_line=leave) as s:
        clients.append(Client(s.url["proxy"], [Asked("leaves", tuple(LONGEST[:100]), 400)], lambda told: None))
        s.run.until(lambda: 0 in s.run.debug, 60)
        assert s.run.debug[0].text == "the client has gone"
        assert tokens(s.post(prompt=list(LONGEST[:90]), max_tokens=4)) == right(c, LONGEST[:90], new_tokens=4)
        assert s.stop()["decode"]["places_free"] == 2


def test_no_prefill_is_503_and_a_prefill_that_is_killed_too_long_before_the_deadline() -> None:
    c = small(deadline_seconds=1000.0, prefill_faults=(slow("attend", 0.3),))
    with serving(c) as s:
        answers: list[httpx.Response] = []
        client = threading.Thread(target=lambda: answers.append(s.post(prompt=list(LONGEST))))
        client.start()
        while s.health("decode")["active"] == 0:
            time.sleep(0.01)
        assert s.prefill is not None
        os.kill(s.prefill.process.pid, signal.SIGKILL)
        client.join()
        answers.append(s.post(prompt=list(LONGEST)))
        for answer in answers:
            assert answer.status_code == 503
            assert error(answer).startswith("no Prefill served it: no Prefill served the request in 3 tries")
            assert answer.json()["error"]["request_id"].startswith("cmpl-r-")
        assert s.health("proxy")["code"] == 503
        assert s.stop()["decode"]["places_free"] == c.concurrency


def test_an_announcement_made_twice_and_a_start_sent_twice(tmp_path: Path) -> None:
    """Decode posts each announcement twice, the proxy sends each prompt twice: two runs an attempt, one of which Decode refuses."""
    start = FaultSpec(where="send", what="START", mode="double")
    result, compared = run(config(trace=str(tmp_path), decode_faults=(start,), proxy_faults=(start,)))
    assert all(one.equal for one in compared), compared
    assert (result.stats["proxy"]["announced_again"], result.stats["proxy"]["dispatched"]) == (2, 2)
    assert check(tmp_path).runs == 4
    assert result.stats["decode"]["places_free"] == 2


def test_a_start_that_comes_after_its_attempt_is_over(tmp_path: Path) -> None:
    """The first client has long left when its START arrives: Decode refuses the run, and the other request is right."""
    late = FaultSpec(where="send", what="START", delay=2.0, nth=1)
    requests = (Request("late", tuple(TEXT[:80])), Request("other", tuple(TEXT[11:171])))
    result, compared = run(config(requests=requests, abort_after={"late": 0.5}, proxy_faults=(late,), trace=str(tmp_path),
                                  prefill_faults=(slow("attend", 0.4),)))  # fmt: skip
    assert (result.results[0].status, result.results[0].text) == (0, "the client gave up after 0.5 s")
    assert compared[1].equal
    accepted = check(tmp_path)
    assert (accepted.attempts, accepted.runs) == (2, 2)
    assert result.stats["decode"]["places_free"] == 2


LATE_REGISTRATION = """
import threading
from tidegate.engine import decode_worker, pull_shm
real = pull_shm.ShmPull.register
pull_shm.ShmPull.register = lambda self, *rest: threading.Timer(3.0, real, (self, *rest)).start()
decode_worker.main()
"""
LIES = """
from tidegate.engine.http import decode_server
async def lenient(self, one):
    answer = await one.answer.wait()
    return getattr(answer, "tokens", [0] * one.new_tokens)
decode_server.DecodeServer._one = lenient
from tidegate.engine import decode_worker
decode_worker.main()
"""


def test_planted_advertised_before_it_is_registered() -> None:
    """The first read lands nowhere: the request fails and says where it should have landed."""
    result, compared = run(config(requests=config().requests[:1]), decode_argv=[sys.executable, "-c", LATE_REGISTRATION])
    assert not compared[0].equal
    assert (result.results[0].status, "' is not registered" in result.results[0].text) == (500, True)


def test_planted_a_failed_request_is_answered_200() -> None:
    with pytest.raises(PairError, match=r"same was answered 200 with \[0, 0, 0, 0, 0, 0\]; Decode says ok=False, \[\], reading run"):
        run(config(requests=config().requests[:1], decode_faults=(FaultSpec(where="read", mode="quiet", layer=2, chunk=4),)),
            decode_argv=[sys.executable, "-c", LIES])  # fmt: skip
