"""A list of prompts over several Decodes, in real processes: each Decode serves its share, the choices are in the client's order, and a
prompt that fails, a Decode that is killed or a client that leaves ends the whole list, and takes nothing along."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import msgspec
import pytest
import torch
from pair_tools import TEXT, config, slow
from serving_tools import JSON, Serving, serving

from tidegate.engine.config import FaultSpec
from tidegate.engine.http import proxy
from tidegate.engine.http.bodies import Completion
from tidegate.engine.http.proxy import Proxy, ProxyConfig
from tidegate.engine.model import Model, reference_generate
from tidegate.engine.pair import Worker

LONG = bool(os.environ.get("TIDEGATE_LONG"))
LENGTHS = (90, 3, 41, 1, 88, 64, 17)
NEW, CHUNK = 3, 48


def prompts() -> list[list[int]]:
    return [list(TEXT[7 * n : 7 * n + length]) for n, length in enumerate(LENGTHS)]


@cache
def right() -> list[list[int]]:
    """What each prompt gets alone."""
    torch.set_num_threads(1)
    c = config(new_tokens=NEW, chunk=CHUNK)
    model = Model.random(c.model_config(), c.seed)
    return [list(reference_generate(model, tuple(prompt), c.chunk, c.new_tokens)[0]) for prompt in prompts()]


@contextmanager
def two_decodes(other_faults: tuple[FaultSpec, ...] = (), **changes: Any) -> Iterator[tuple[Serving, Worker]]:
    """Servers of which two are Decodes, "decode" with `changes`, and "other", the test's to kill."""
    c = config(new_tokens=NEW, concurrency=2, chunk=CHUNK, **changes)
    with serving(c) as servers:
        other, url = servers.new_worker("decode", msgspec.structs.replace(servers.config, decode_faults=other_faults))
        try:
            body = msgspec.json.encode({"role": "decode", "url": url, "seconds": 600})
            assert httpx.post(servers.url["proxy"] + "/v1/instances", content=body, headers=JSON, trust_env=False).status_code == 200
            servers.url["other"] = url
            yield servers, other
            if other.process.poll() is None:
                other.stop()
                other.left(60)
                assert other.process.returncode == 0
        finally:
            other.end()


@contextmanager
def proxy_here(servers: Serving, retries: int = 2) -> Iterator[str]:
    """The address of a proxy in this process, where it can be changed."""
    decoders = servers.url["decode"], servers.url["other"]
    here = Proxy(ProxyConfig(prefillers=(servers.url["prefill"],), decoders=decoders, max_retries=retries))
    here.start()
    try:
        yield here.server.url
    finally:
        here.stop()


def ask(url: str) -> httpx.Response:
    content = msgspec.json.encode({"prompt": prompts()})
    return httpx.post(f"{url}/v1/completions", content=content, headers=JSON, timeout=120, trust_env=False)


def spread(servers: Serving, url: str) -> None:
    """AssertionError unless a list that is sent to the proxy at `url` is answered rightly, by both Decodes."""
    before = [servers.figure(role, "tidegate_pulled_bytes_total") for role in ("decode", "other")]
    answer = ask(url)
    assert answer.status_code == 200, answer.text
    found, made = answer.json(), len(LENGTHS) * NEW
    assert [(choice["index"], choice["token_ids"]) for choice in found["choices"]] == list(enumerate(right())), "the choices"
    assert found["usage"] == {"prompt_tokens": sum(LENGTHS), "completion_tokens": made, "total_tokens": sum(LENGTHS) + made}
    after = [servers.figure(role, "tidegate_pulled_bytes_total") for role in ("decode", "other")]
    served = [new - old for new, old in zip(after, before, strict=True)]
    assert min(served) * 3 > max(served), f"the list is spread over both: they pulled {served}"


def whole(prompts: list[Any], count: int) -> list[list[int]]:
    return [list(range(len(prompts)))]


def unsorted(answers: list[Any]) -> Any:
    return msgspec.structs.replace(answers[0], choices=[choice for one in answers for choice in one.choices])


def test_a_list_is_spread_over_the_decodes_and_answered_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_decodes() as (servers, _):
        spread(servers, servers.url["proxy"])
        with proxy_here(servers) as planted:
            for name, plant, told in (("shares", whole, "spread over both"), ("merged", unsorted, "the choices")):
                with monkeypatch.context() as patched:
                    patched.setattr(proxy, name, plant)
                    with pytest.raises(AssertionError, match=told):
                        spread(servers, planted)


def until(done: Callable[[], bool], what: str) -> None:
    for _ in range(600):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError(f"in a minute it has not come about that {what}")


def rest(servers: Serving, *roles: str) -> None:
    """Wait until they hold nothing of any request."""
    for role in roles:
        blocks = servers.figure(role, "tidegate_blocks")
        until(lambda role=role, all_=blocks: servers.figure(role, "tidegate_blocks_free") == all_, f"{role} is empty")  # type: ignore[misc]


def pulling(servers: Serving, *roles: str) -> bool:
    return all(servers.figure(role, "tidegate_pulled_bytes_total") > 0 for role in roles)


def opened(url: str) -> int:
    """Requests that a proxy has not answered."""
    return int(httpx.get(f"{url}/health", timeout=60, trust_env=False).json()["open"])


def test_a_prompt_that_fails_ends_the_list_on_every_decode_and_is_named() -> None:
    fails = FaultSpec(where="read", mode="quiet", layer=2, nth=1)
    with two_decodes(decode_faults=(fails,)) as (servers, _):
        answer = ask(servers.url["proxy"])
        assert answer.status_code == 500, answer.text
        failed = re.fullmatch(r"cmpl-r-[0-9a-f]{16}-([0-9]+)", answer.json()["error"]["request_id"])
        assert failed is not None, answer.text
        assert int(failed[1]) in range(len(LENGTHS))
        assert opened(servers.url["proxy"]) == 0
        rest(servers, "decode", "other", "prefill")
        spread(servers, servers.url["proxy"])


ENDLESS, LONG_COPY = slow("read", 3600.0, layer=2), slow("read", 2.0, layer=2, chunk=1)


async def holed(work: Any) -> list[Any]:
    """Planted: what some Decode answered is the answer."""
    return [one for one in await asyncio.gather(*work, return_exceptions=True) if isinstance(one, Completion)]


def test_a_decode_that_is_killed_in_the_middle_of_a_list_leaves_no_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody else may be asked, the client is told who it was; else another answers that share too."""
    with two_decodes((ENDLESS,)) as (servers, other), proxy_here(servers, retries=0) as once, ThreadPoolExecutor(3) as clients:
        with monkeypatch.context() as patched:
            patched.setattr(proxy, "all_or_none", holed)
            planted = clients.submit(ask, once)
            # Prefill may have come to the other Decode's prompts first, and then waits for the read that never ends
            until(lambda: pulling(servers, "other"), "the Decode that is to die has read something")
        asked = [clients.submit(ask, url) for url in (once, servers.url["proxy"])]
        until(lambda: opened(once) == 2 and opened(servers.url["proxy"]) == 1, "all three lists are under way")
        other.process.kill()
        assert (planted.result().status_code, len(planted.result().json()["choices"]) < len(LENGTHS)) == (200, True), "planted: a hole"
        told, moved = [one.result() for one in asked]
        assert told.status_code == 503, told.text
        assert f"no Decode served the request in 1 tries; the last: {servers.url['other']}: " in told.json()["error"]["message"]
        for answer in (moved, ask(servers.url["proxy"])):
            assert answer.status_code == 200, answer.text
            assert [(choice["index"], choice["token_ids"]) for choice in answer.json()["choices"]] == list(enumerate(right()))
        assert opened(once) == opened(servers.url["proxy"]) == 0
        rest(servers, "decode", "prefill")


async def stubborn(request: Any, work: Any) -> Any:
    """Planted: what a client who has left asked for is done all the same."""
    return await work


def leave_in_the_middle(servers: Serving, url: str) -> None:
    """As a client who asks for the list, and is gone when both Decodes have begun."""
    body, at = msgspec.json.encode({"prompt": prompts()}), httpx.URL(url)
    before = {role: servers.figure(role, "tidegate_pulled_bytes_total") for role in ("decode", "other")}
    with socket.create_connection((at.host, at.port), timeout=60) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {at.host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        until(lambda: all(servers.figure(role, "tidegate_pulled_bytes_total") > was for role, was in before.items()), "both have begun")


@pytest.mark.parametrize("planted", [False, *([True] if LONG else [])])
def test_a_client_that_leaves_in_the_middle_of_a_list_ends_it_on_every_decode(monkeypatch: pytest.MonkeyPatch, planted: bool) -> None:
    """With nobody to tell, each Decode reads no more than it had begun to; what it had is given back, and the next list is served."""
    if planted:
        monkeypatch.setattr(proxy, "while_connected", stubborn)
    with two_decodes((LONG_COPY,), decode_faults=(LONG_COPY,)) as (servers, _), proxy_here(servers) as url:
        leave_in_the_middle(servers, url)
        until(lambda: opened(url) == 0, "the proxy has let go of it")
        rest(servers, "decode", "other", "prefill")
        model = servers.config.model_config()
        row = model.torch_dtype.itemsize * model.cache_layers * (model.main_width + model.index_width)
        pulled = sum(servers.figure(role, "tidegate_pulled_bytes_total") for role in ("decode", "other"))
        assert (pulled == sum(LENGTHS) * row) == planted, "the list was read to its end"
        spread(servers, servers.url["proxy"])
