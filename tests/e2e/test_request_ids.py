"""A client that uses a request id again, against real servers: after the first life was given up, with its START still under way; after one
failed; after one ended; and while one lives.  Each is a request of its own, and nothing of one reaches the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import msgspec
import pytest
from pair_tools import TEXT, config
from serving_tools import JSON, Serving, serving

from tidegate.engine.config import FaultSpec, RunConfig
from tidegate.engine.http.proxy import Proxy, ProxyConfig
from tidegate.engine.model import Model, reference_generate

NAME = {"X-Request-Id": "again"}
LATE = 3.0  # seconds that the START of the first life travels


def right(c: RunConfig, prompt: bytes) -> list[int]:
    return list(reference_generate(Model.random(c.model_config(), c.seed), tuple(prompt), c.chunk, c.new_tokens)[0])


def ask(url: str, prompt: bytes, timeout: float = 120.0) -> httpx.Response:
    body = msgspec.json.encode({"prompt": list(prompt)})
    return httpx.post(f"{url}/v1/completions", content=body, headers=JSON | NAME, trust_env=False, timeout=timeout)


def tokens(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return list(answer.json()["choices"][0]["token_ids"])


def until(done: Callable[[], bool], what: str) -> None:
    for _ in range(600):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError(f"in a minute it has not come about that {what}")


def two_at_once(c: RunConfig, url: str, prompts: list[bytes]) -> set[str]:
    """The names of two requests under one id; AssertionError unless each has one of its own, and its own answer."""
    with ThreadPoolExecutor(2) as clients:
        found = list(clients.map(lambda prompt: ask(url, prompt), prompts))
    assert [tokens(one) for one in found] == [right(c, prompt) for prompt in prompts], "two that live at once"
    names = {one.json()["id"] for one in found}
    assert len(names) == len(prompts), names
    assert all(name.startswith("cmpl-again-") for name in names), names
    return names


@contextmanager
def named_by_clients(servers: Serving, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Planted: the address of a proxy that takes what a client calls a request for its name."""
    with monkeypatch.context() as patched:
        patched.setattr(Proxy, "_name", lambda self, given: given)
        here = Proxy(ProxyConfig(prefillers=(servers.url["prefill"],), decoders=(servers.url["decode"],)))
        here.start()
        try:
            yield here.server.url
        finally:
            here.stop()


def test_a_request_id_that_is_used_again_names_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    start = FaultSpec(where="send", what="START", mode="double", delay=LATE, nth=1)
    fails = FaultSpec(where="read", mode="quiet", layer=2, nth=1)
    c = config(proxy_faults=(start,), decode_faults=(fails,), new_tokens=4)
    prompts = [TEXT[n : n + 200 - 20 * n] for n in range(5)]
    with serving(c) as servers:
        began = time.monotonic()
        with pytest.raises(httpx.ReadTimeout):
            ask(servers.url["proxy"], prompts[0], timeout=0.5)
        failed = ask(servers.url["proxy"], prompts[1])
        assert failed.status_code == 500, failed.text
        assert tokens(ask(servers.url["proxy"], prompts[2])) == right(c, prompts[2]), "after one that failed"
        names = {*two_at_once(c, servers.url["proxy"], prompts[3:]), "cmpl-" + failed.headers["X-Request-Id"]}
        assert len(names) == 3, names
        time.sleep(max(0.0, began + LATE + 0.5 - time.monotonic()))  # the STARTs of the first life have come
        assert tokens(ask(servers.url["proxy"], prompts[0])) == right(c, prompts[0]), "the prompt of the first life, asked for anew"
        with named_by_clients(servers, monkeypatch) as url, pytest.raises((AssertionError, KeyError)):
            two_at_once(c, url, prompts[3:])
        for role in ("prefill", "decode"):
            blocks = servers.figure(role, "tidegate_blocks")
            until(lambda role=role, all_=blocks: servers.figure(role, "tidegate_blocks_free") == all_, f"{role} is empty")
        until(lambda: servers.figure("prefill", "tidegate_prefill_run") == 0, "every run is forgotten")
        assert servers.figure("prefill", "tidegate_messages_refused_total") == 0
        assert servers.figure("decode", "tidegate_gave_way_total") == servers.figure("prefill", "tidegate_preemptions_total") == 0
