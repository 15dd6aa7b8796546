"""Decode's HTTP server: completions come in, the word that a destination is registered goes out to the metaserver.

Rules: this module touches neither session nor memory: it posts to the owner's thread (`submit`, `cancel`) and hears from it through
each `Ask`'s answer; an ask whose client has left, or whose siblings failed, is cancelled; a request is answered with 200 only if all
its prompts have all their tokens; the announcement is made when the owner says so (`announce`), and its failure told to the owner.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidegate.engine.http.asking import Retries, Servers, ask
from tidegate.engine.http.bodies import (
    Choice,
    Completion,
    DecodeRequest,
    PrefillParams,
    Usage,
    checked_url,
    child,
    parse,
    prompts_of,
)
from tidegate.engine.http.errors import Refusal, error_of
from tidegate.engine.http.metrics import Measure, metrics
from tidegate.engine.http.prompts import Limits
from tidegate.engine.http.server import WORK, Answer, HttpServer, Probe, Refused, json_response, probed, while_connected
from tidegate.engine.http.status import Inquire, status

__all__ = ["Answered", "Ask", "DecodeServer"]
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


class Answered(msgspec.Struct, frozen=True):
    tokens: list[int]


@dataclass(eq=False)
class Ask:
    """One prompt that wants an answer; `answer.give` it Answered or Refused, once."""

    request: str
    prompt: tuple[int, ...]
    new_tokens: int
    metaserver: str
    answer: Answer[Answered | Refused]


class DecodeServer:
    """submit, cancel: called in the event loop with an Ask, must only post."""

    def __init__(
        self,
        *,
        port: int,
        limits: Limits,
        retries: Retries,
        submit: Callable[[Ask], None],
        cancel: Callable[[Ask], None],
        probe: Probe,
        measure: Measure,
        inquire: Inquire,
        max_body: int = 16 << 20,
    ) -> None:
        self.limits, self.retries, self.submit, self.cancel, self.probe = limits, retries, submit, cancel, probe
        self.measure, self.inquire = measure, inquire
        routes = [("POST", WORK, self.completions), ("GET", "/health", self.health), ("GET", "/metrics", self.metrics),
                  ("GET", "/status", self.status)]
        self.server = HttpServer("decode", routes, port=port, max_body=max_body, inner=(WORK,))

    async def completions(self, request: Request) -> Response:
        """The proxy's request; answered when every prompt has its tokens, or one has failed."""
        name = request.headers.get("x-request-id", "")
        if not NAME.fullmatch(name):
            raise Refusal(400, f"X-Request-Id is {name[:200]!r}: requests come through the proxy, which names them")
        body, prompts = await self.server.body(request, self._read)
        url, count = body.kv_transfer_params.metaserver, self.limits.asked(body.max_tokens)
        asks = [Ask(child(name, index), tokens, count, url, Answer()) for index, tokens in prompts.items()]
        answers = await while_connected(request, self._all(asks))
        return json_response(self._completion(name, body.model, asks, dict(zip(prompts, answers, strict=True))), 200, name)

    def _read(self, data: bytes) -> tuple[DecodeRequest, dict[int, tuple[int, ...]]]:
        """A body, and the token ids of each prompt, by its index."""
        body = parse(data, DecodeRequest)
        checked_url(body.kv_transfer_params.metaserver)
        prompts = prompts_of(body)
        indices = body.kv_transfer_params.indices(len(prompts))
        return body, {index: self.limits.tokens_of(prompt) for index, prompt in zip(indices, prompts, strict=True)}

    async def _all(self, asks: list[Ask]) -> list[list[int]]:
        """Every ask's tokens; when one fails, or the client leaves, the rest is cancelled."""
        try:
            for one in asks:
                self.submit(one)
            return await asyncio.gather(*map(self._one, asks))
        except BaseException:
            for one in asks:
                self.cancel(one)
            raise

    async def _one(self, one: Ask) -> list[int]:
        answer = await one.answer.wait()
        if isinstance(answer, Refused):
            raise answer.refusal(one.request)
        return answer.tokens

    def _completion(self, name: str, model: str, asks: list[Ask], answers: dict[int, list[int]]) -> Completion:
        choices = [Choice(index, self.limits.text.decode(tokens), tokens) for index, tokens in answers.items()]
        asked, made = sum(len(one.prompt) for one in asks), sum(map(len, answers.values()))
        return Completion(f"cmpl-{name}", int(time.time()), model, choices, Usage(asked, made, asked + made))

    def announce(self, url: str, params: PrefillParams, on_failed: Callable[[Refused], None], copies: int = 1) -> None:
        """From any thread: tell the metaserver at `url`; `on_failed` is called in the event loop if no Prefill takes it."""
        for _ in range(copies):
            self.server.post(self._announce(url, params, on_failed))

    async def _announce(self, url: str, params: PrefillParams, on_failed: Callable[[Refused], None]) -> None:
        servers = Servers("metaserver", [url])
        try:
            _, response = await ask(self.server.client, servers, "", params, retries=self.retries, request_id=params.request_id)
            if response.status_code == 200:
                return
            refusal = error_of(response.status_code, response.content)
        except Refusal as error:
            refusal = error
        on_failed(Refused(503 if refusal.status == 503 else 502, refusal.message))

    async def health(self, request: Request) -> Response:
        return await probed(self.probe, self.server)

    async def metrics(self, request: Request) -> Response:
        return await metrics(self.measure, self.server)

    async def status(self, request: Request) -> Response:
        return await status(self.inquire)
