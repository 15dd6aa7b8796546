"""What the HTTP servers answer to what is no request, is too long, or meets an owner or a port that is not well."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import httpx
import pytest
from rendezvous_tools import Bench, error, post

from tidegate.engine.http import server
from tidegate.engine.http.decode_server import Ask
from tidegate.engine.http.prompts import Limits
from tidegate.engine.http.proxy import Proxy, ProxyConfig


def send(port: int, *pieces: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        for piece in pieces:
            one.sendall(piece)
        out = b""
        while more := one.recv(1 << 16):
            out += more
            if b"\r\n\r\n" in out and b"}}" in out:
                break
        return out


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_a_body_is_read_up_to_the_limit_and_no_further(bench: Callable[..., Bench]) -> None:
    proxy = bench().proxy()
    announced = send(proxy.server.port, HEAD + b"Content-Length: 99999999999\r\n\r\n")
    chunked = send(proxy.server.port, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1000\r\n" + b"x" * 4096 + b"\r\n"] * 6)
    for said in (announced, chunked):
        assert said.startswith(b"HTTP/1.1 413")
        assert b"longer than 20000 bytes" in said
    answer = post(proxy.server.url, prompt="x" * 30_000)
    assert (answer.status_code, "longer than 20000 bytes" in error(answer)) == (413, True)
    assert proxy.server.refused == proxy.server.counts[413] == 3
    assert post(proxy.server.url, prompt="abc").status_code == 200


def test_what_is_no_request_is_answered_in_one_form_and_counted(bench: Callable[..., Bench]) -> None:
    proxy = bench().proxy()
    url = proxy.server.url
    with httpx.Client(base_url=url, trust_env=False) as client:
        answers = [
            client.get("/nothing"), client.get("/v1/completions"), client.post("/health"), client.post("/v1/completions", content=b"{}"),
            client.post("/v1/completions", data={"prompt": "a"}), client.post("/v1/completions", json=[]),
            client.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "a b"}),
            client.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "a" * 65}),
        ]  # fmt: skip
    assert [answer.status_code for answer in answers] == [404, 405, 405, 415, 415, 400, 400, 400]
    assert all(error(answer) for answer in answers)
    assert proxy.server.refused == len(answers)
    assert b"400" in send(proxy.server.port, b"garbage\r\n\r\n")[:20]


def test_the_proxy_loads_neither_torch_nor_a_session() -> None:
    loaded = "import sys, tidegate.engine.proxy_worker; print({'torch', 'tidegate.protocol.session', 'tidegate.kernels'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True).stdout == "set()\n"


def test_a_long_body_is_parsed_beside_the_event_loop(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    b, names = bench(), set[str]()
    real = Limits.tokens_of
    monkeypatch.setattr(Limits, "tokens_of", lambda self, prompt: (names.add(threading.current_thread().name), real(self, prompt))[1])
    assert post(b.proxy().server.url, prompt="abc").status_code == 200
    assert names
    assert not {name for name in names if name.endswith("-http")}


def test_a_busy_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"proxy port {port} cannot be bound: Address already in use; choose another"):
            Proxy(ProxyConfig(prefillers=(), decoders=(), port=port))


def test_an_owner_that_does_not_answer_is_not_well(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEALTH_SECONDS", 0.05)
    b = bench()
    assert httpx.get(b.decode.http.server.url + "/health", trust_env=False).json() == {"status": "ok", "http_refused": 0, "active": 0}
    b.decode.http.probe = lambda tell: None
    answer = httpx.get(b.decode.http.server.url + "/health", trust_env=False)
    assert (answer.status_code, "has not answered" in error(answer)) == (503, True)


def test_an_error_of_ours_is_500_and_the_next_request_is_served(bench: Callable[..., Bench]) -> None:
    b = bench()
    proxy = b.proxy()

    def broken(ask: Ask) -> None:
        raise LookupError("a bug")

    b.decode.on_ask = broken
    answer = post(proxy.server.url, prompt="abc")
    assert (answer.status_code, "LookupError" in error(answer)) == (500, True)
    b.decode.on_ask = b.admit
    assert post(proxy.server.url, prompt="abc").status_code == 200
