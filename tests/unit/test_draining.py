"""Servers that come and go: who is asked, what a server that drains takes, and what it says of itself meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import Response

from tidegate.engine.http.asking import Retries, Servers, ask
from tidegate.engine.http.bodies import Instance
from tidegate.engine.http.errors import Refusal
from tidegate.engine.http.metrics import Sample, metrics
from tidegate.engine.http.proxy import Proxy, ProxyConfig
from tidegate.engine.http.server import WORK, Answer, HttpServer, json_response
from tidegate.engine.standing import Joined

JSON = {"Content-Type": "application/json"}


class Slow:
    """A server whose work takes until the test says."""

    def __init__(self) -> None:
        self.begun: Future[Answer[int]] = Future()
        self.server = HttpServer("slow", [("POST", WORK, self.work), ("GET", "/metrics", self.metrics)])
        self.server.start()

    async def work(self, request: Request) -> Response:
        answer: Answer[int] = Answer()
        self.begun.set_result(answer)
        return json_response({"n": await answer.wait()})

    async def metrics(self, request: Request) -> Response:
        return await metrics(lambda tell: tell([
            Sample("read", "Reads.", 2, (("phase", "held"),)), Sample("read", "Reads.", 3, (("phase", "done"),)),
            Sample("gates_total", "Gates.", 7),
        ]), self.server)  # fmt: skip


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.server.stop()


def post(server: HttpServer) -> httpx.Response:
    return httpx.post(server.url + WORK, content=b"{}", headers=JSON, timeout=30, trust_env=False)


def test_a_server_that_drains_ends_what_it_has_and_takes_nothing_new(slow: Slow) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post, slow.server)
        answer = slow.begun.result(timeout=30)
        assert not slow.server.drain(0.0)
        refused = post(slow.server)
        assert refused.status_code == 503
        assert refused.headers["Retry-After"]
        assert "slow is stopping" in refused.json()["error"]["message"]
        drained = pool.submit(slow.server.drain, 30.0)
        answer.give(5)
        assert first.result(timeout=30).json() == {"n": 5}
        assert drained.result(timeout=30)


def test_metrics_are_in_the_form_that_prometheus_reads(slow: Slow) -> None:
    text = httpx.get(slow.server.url + "/metrics", trust_env=False).text
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert {sample.labels["phase"]: sample.value for sample in found["tidegate_read"].samples} == {"held": 2, "done": 3}
    assert (found["tidegate_gates"].type, found["tidegate_read"].type) == ("counter", "gauge")
    assert found["tidegate_draining"].samples[0].value == 0
    slow.server.drain(0.0)
    assert "tidegate_draining 1.0" in httpx.get(slow.server.url + "/metrics", trust_env=False).text


def test_who_joined_is_asked_until_it_is_silent_or_leaves_and_the_given_ones_for_good() -> None:
    now = [0.0]
    servers = Servers("Decode", ["a"], clock=lambda: now[0])
    assert servers.join("b", 10)
    assert not servers.join("b", 10)
    assert {servers.pick(), servers.pick()} == {"a", "b"}
    now[0] = 9.0
    servers.join("b", 10)
    now[0] = 18.0
    assert servers.urls == ("a", "b")
    now[0] = 19.5
    assert servers.urls == ("a",)
    assert not servers.join("a", 1)
    now[0] = 1e9
    assert servers.urls == ("a",)
    assert servers.leave("a")
    assert not servers.leave("a")
    assert servers.pick() is None


@pytest.mark.parametrize(("body", "status"), [
    (b'{"role": "decode", "url": "http://127.0.0.1:9", "seconds": 5}', 200),
    (b'{"role": "proxy", "url": "http://127.0.0.1:9"}', 400),
    (b'{"role": "decode", "url": "http://10.0.0.1:9"}', 400),
    (b'{"role": "decode", "url": "file:///etc"}', 400),
    (b'{"role": "decode", "url": "http://127.0.0.1:9", "seconds": 1e9}', 400),
    (b'[]', 400),
])  # fmt: skip
def test_the_proxy_takes_only_servers_of_this_host(body: bytes, status: int) -> None:
    proxy = Proxy(ProxyConfig())
    proxy.start()
    try:
        url = f"{proxy.server.url}/v1/instances"
        answer = httpx.post(url, content=body, headers=JSON, trust_env=False)
        assert answer.status_code == status, answer.text
        assert len(proxy.decoders.urls) == (status == 200)
        left = httpx.request("DELETE", url, content=body, headers=JSON, trust_env=False)
        assert left.status_code == status, left.text
        assert proxy.decoders.urls == ()
        again = httpx.request("DELETE", url, content=body, headers=JSON, trust_env=False)
        assert again.status_code == (404 if status == 200 else status)
    finally:
        proxy.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_joins_a_proxy_that_comes_later_and_leaves_it() -> None:
    port = free_port()
    joined = Joined(f"http://127.0.0.1:{port}", Instance("prefill", "http://127.0.0.1:7"), every=0.05)
    proxy = Proxy(ProxyConfig(port=port))
    came, join = threading.Event(), proxy.prefillers.join

    def told(url: str, seconds: float) -> bool:
        came.set()
        return join(url, seconds)

    proxy.prefillers.join = told  # type: ignore[method-assign]
    proxy.start()
    try:
        assert came.wait(30)
        joined.leave()
        assert proxy.prefillers.urls == ()
    finally:
        proxy.stop()


def test_nobody_to_ask_is_said_so() -> None:
    async def asked() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            await ask(client, Servers("Decode", []), WORK, {}, retries=Retries(1, 0.01), request_id="r")

    with pytest.raises(Refusal, match="no Decode served the request in 0 tries; the last: there is none"):
        asyncio.run(asked())


def test_what_a_server_says_when_it_joins_can_be_read() -> None:
    assert msgspec.json.decode(msgspec.json.encode(Instance("prefill", "http://127.0.0.1:7")), type=Instance).seconds == 30.0
