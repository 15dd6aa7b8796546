"""Prefill's HTTP server: takes a prompt with the word of a Decode that its destination is registered.

Rules: this module touches neither session nor socket: it posts a `Call` to the owner's thread and hears from it through the call's
answer; the prompt must be the one that Decode admitted, to the token; 200 means that the run is over and Decode has read all of it, 409
that a run began and failed, which Decode hears over the control plane, anything else that no run began.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidegate.engine.http.bodies import PrefillDone, PrefillParams, PrefillRequest, parse, prompt_digest, prompts_of
from tidegate.engine.http.errors import Refusal
from tidegate.engine.http.metrics import Measure, metrics
from tidegate.engine.http.prompts import Limits
from tidegate.engine.http.server import WORK, Answer, HttpServer, Probe, Refused, json_response, probed, while_connected
from tidegate.engine.http.status import Inquire, status
from tidegate.protocol.messages import Start

__all__ = ["Call", "Done", "PrefillServer"]


class Done(msgspec.Struct, frozen=True):
    """The run is over, and all is well."""

    run: int


@dataclass(eq=False)
class Call:
    """A START for the Decode at host:port; `answer.give` it Done or Refused, once."""

    start: Start
    host: str
    port: int
    answer: Answer[Done | Refused]


class PrefillServer:
    """submit, cancel: called in the event loop with a Call, must only post."""

    def __init__(
        self,
        *,
        port: int,
        limits: Limits,
        submit: Callable[[Call], None],
        cancel: Callable[[Call], None],
        probe: Probe,
        measure: Measure,
        inquire: Inquire,
        max_body: int = 16 << 20,
    ) -> None:
        self.limits, self.submit, self.cancel, self.probe, self.measure = limits, submit, cancel, probe, measure
        self.inquire = inquire
        routes = [("POST", WORK, self.completions), ("GET", "/health", self.health), ("GET", "/metrics", self.metrics),
                  ("GET", "/status", self.status)]
        self.server = HttpServer("prefill", routes, port=port, max_body=max_body, inner=(WORK,))

    async def completions(self, request: Request) -> Response:
        """The proxy's request; answered when the run is over."""
        params, tokens = await self.server.body(request, self._read)
        start = Start(params.request_id, params.attempt, params.incarnation, len(tokens), tokens)
        call = Call(start, params.remote_host, params.remote_port, Answer())
        done = await while_connected(request, self._called(call))
        return json_response(PrefillDone(params.request_id, done.run, params.attempt))

    def _read(self, data: bytes) -> tuple[PrefillParams, tuple[int, ...]]:
        """What Decode said, and the token ids of its prompt."""
        body = parse(data, PrefillRequest)
        params = body.kv_transfer_params.checked()
        prompts = prompts_of(body)
        if len(prompts) != 1:
            raise Refusal(400, f"{len(prompts)} prompts: an attempt has one", params.request_id)
        if body.max_tokens != 1:
            raise Refusal(400, f"max_tokens is {body.max_tokens}: Prefill is asked for 1", params.request_id)
        tokens = self.limits.tokens_of(prompts[0])
        if (digest := prompt_digest(tokens)) != params.prompt_digest:
            why = f"these {len(tokens)} tokens ({digest}) are not the prompt that Decode admitted ({params.prompt_digest})"
            raise Refusal(400, f"{why}: give both sides one tokenizer", params.request_id)
        return params, tokens

    async def _called(self, call: Call) -> Done:
        try:
            self.submit(call)
            answer = await call.answer.wait()
        except BaseException:
            self.cancel(call)
            raise
        if isinstance(answer, Refused):
            raise answer.refusal(call.start.request)
        return answer

    async def health(self, request: Request) -> Response:
        return await probed(self.probe, self.server)

    async def metrics(self, request: Request) -> Response:
        return await metrics(self.measure, self.server)

    async def status(self, request: Request) -> Response:
        return await status(self.inquire)
