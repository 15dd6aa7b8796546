"""Decode's and Prefill's HTTP servers over real sockets, with owners that do what the test says, and proxies over them."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec

from tidegate.engine.http.asking import Retries
from tidegate.engine.http.bodies import PrefillParams, Text, prompt_digest
from tidegate.engine.http.decode_server import Answered, Ask, DecodeServer
from tidegate.engine.http.prefill_server import Call, Done, PrefillServer
from tidegate.engine.http.prompts import Limits
from tidegate.engine.http.proxy import Proxy, ProxyConfig

LIMITS = Limits(100, 256, 4, Text(lambda text: [*text.encode()], lambda tokens: bytes(tokens).decode()))
FEW = Retries(1, 0.01)


class Decode:
    """A Decode whose owner is the test: `on_ask` gets each prompt; what it admits is announced as the real one does."""

    def __init__(self) -> None:
        self.asks: queue.Queue[Ask] = queue.Queue()
        self.cancelled: queue.Queue[Ask] = queue.Queue()
        self.attempts = iter(range(100, 1000))
        self.on_ask: Callable[[Ask], None] = self.admit
        self.http = DecodeServer(port=0, limits=LIMITS, retries=FEW, submit=self._submit, cancel=self.cancelled.put,
                                 inquire=lambda tell: None, probe=lambda tell: tell({"active": 0}),
                                 measure=lambda tell: tell([]))  # fmt: skip
        self.http.server.start()

    def _submit(self, ask: Ask) -> None:
        self.asks.put(ask)
        self.on_ask(ask)

    def params(self, ask: Ask, **changes: Any) -> PrefillParams:
        fields: dict[str, Any] = {
            "request_id": ask.request, "do_remote_prefill": False, "do_remote_decode": True, "remote_engine_id": "d",
            "remote_host": "127.0.0.1", "remote_port": 9, "remote_tp_size": 1, "remote_cached_tokens": 0, "attempt": next(self.attempts),
            "incarnation": 5, "prompt_digest": prompt_digest(ask.prompt),
        }  # fmt: skip
        return PrefillParams(**(fields | changes))

    def admit(self, ask: Ask, copies: int = 1, **changes: Any) -> None:
        """Announce it; the tokens are its length, if Prefill has got it."""
        self.http.announce(ask.metaserver, self.params(ask, **changes), ask.answer.give, copies)


class Prefill:
    """A Prefill whose owner is the test."""

    def __init__(self) -> None:
        self.calls: queue.Queue[Call] = queue.Queue()
        self.cancelled: queue.Queue[Call] = queue.Queue()
        self.on_call: Callable[[Call], None] = lambda call: call.answer.give(Done(1))
        self.http = PrefillServer(port=0, limits=LIMITS, submit=self._submit, cancel=self.cancelled.put,
                                  inquire=lambda tell: None, probe=lambda tell: tell({}),
                                  measure=lambda tell: tell([]))  # fmt: skip
        self.http.server.start()

    def _submit(self, call: Call) -> None:
        self.calls.put(call)
        self.on_call(call)


class Bench:
    """One Decode, Prefills, and proxies over them; a prompt that is prefilled is answered with its first tokens."""

    def __init__(self, prefills: int = 1) -> None:
        self.decode = Decode()
        self.prefills = [Prefill() for _ in range(prefills)]
        self.proxies: list[Proxy] = []
        self.wanted: dict[str, Ask] = {}
        self.decode.on_ask = self.admit
        for prefill in self.prefills:
            prefill.on_call = self.serve

    def proxy(self, **settings: Any) -> Proxy:
        urls = tuple(prefill.http.server.url for prefill in self.prefills)
        config = {"prefillers": urls, "decoders": (self.decode.http.server.url,), "max_retries": 2, "retry_delay": 0.01, "max_body": 20_000}
        self.proxies.append(Proxy(ProxyConfig(**(config | settings))))
        self.proxies[-1].start()
        return self.proxies[-1]

    def admit(self, ask: Ask) -> None:
        self.wanted[ask.request] = ask
        self.decode.admit(ask)

    def serve(self, call: Call) -> None:
        ask = self.wanted[call.start.request]
        ask.answer.give(Answered([*call.start.prompt, 0, 0, 0, 0][: ask.new_tokens]))
        call.answer.give(Done(1))

    def close(self) -> None:
        servers = [proxy.server for proxy in self.proxies] + [one.http.server for one in (self.decode, *self.prefills)]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda one: one.stop(), servers))


def post(url: str, path: str = "/v1/completions", *, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    headers = {"Content-Type": "application/json"} | (headers or {})
    return httpx.post(url + path, content=msgspec.json.encode(body), headers=headers, timeout=20, trust_env=False)


def error(response: httpx.Response) -> str:
    found = response.json()["error"]
    assert found["code"] == response.status_code >= 400
    return str(found["message"])
