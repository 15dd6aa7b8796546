"""A list of prompts over several Decodes, in real processes: each Decode serves its share, the choices are in the client's order, and a
prompt that fails ends the whole list."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import msgspec
import pytest
import torch
from pair_tools import TEXT, config
from serving_tools import JSON, Serving, serving

from tidegate.engine.config import FaultSpec, RunConfig
from tidegate.engine.http import proxy
from tidegate.engine.http.proxy import Proxy, ProxyConfig
from tidegate.engine.model import Model, reference_generate

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
def two_decodes(**changes: Any) -> Iterator[tuple[Serving, list[str]]]:
    """Servers of which two are Decodes, the first with `changes`; the addresses of those."""
    c = config(new_tokens=NEW, concurrency=2, chunk=CHUNK, **changes)
    with serving(c) as servers:
        other, url = servers.new_worker("decode", without_faults(servers.config))
        try:
            body = msgspec.json.encode({"role": "decode", "url": url, "seconds": 600})
            assert httpx.post(servers.url["proxy"] + "/v1/instances", content=body, headers=JSON, trust_env=False).status_code == 200
            servers.url["other"] = url
            yield servers, [servers.url["decode"], url]
            other.stop()
            other.left(60)
            assert other.process.returncode == 0
        finally:
            other.end()


def without_faults(c: RunConfig) -> RunConfig:
    return msgspec.structs.replace(c, decode_faults=())


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
    with two_decodes() as (servers, decodes):
        spread(servers, servers.url["proxy"])
        planted = Proxy(ProxyConfig(prefillers=(servers.url["prefill"],), decoders=tuple(decodes)))
        planted.start()
        try:
            for name, plant, told in (("shares", whole, "spread over both"), ("merged", unsorted, "the choices")):
                with monkeypatch.context() as patched:
                    patched.setattr(proxy, name, plant)
                    with pytest.raises(AssertionError, match=told):
                        spread(servers, planted.server.url)
        finally:
            planted.stop()


def until(done: Callable[[], bool], what: str) -> None:
    for _ in range(600):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError(f"in a minute it has not come about that {what}")


def test_a_prompt_that_fails_ends_the_list_on_every_decode_and_is_named() -> None:
    fails = FaultSpec(where="read", mode="quiet", layer=2, nth=1)
    with two_decodes(decode_faults=(fails,)) as (servers, _):
        answer = ask(servers.url["proxy"])
        assert answer.status_code == 500, answer.text
        failed = re.fullmatch(r"cmpl-r-[0-9a-f]{16}-([0-9]+)", answer.json()["error"]["request_id"])
        assert failed is not None, answer.text
        assert int(failed[1]) in range(len(LENGTHS))
        assert servers.health("proxy")["open"] == 0
        for role in ("decode", "other", "prefill"):
            blocks = servers.figure(role, "tidegate_blocks")
            until(lambda role=role, all_=blocks: servers.figure(role, "tidegate_blocks_free") == all_, f"{role} is empty")  # type: ignore[misc]
        spread(servers, servers.url["proxy"])
