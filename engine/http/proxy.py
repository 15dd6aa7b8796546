"""The proxy: takes completions, has Decode answer them, and, when Decode says so, has a Prefill compute the prompt.

Rules: a request's name is the proxy's own and never repeats, whatever the client calls it; the client gets one answer, whole: what the
Decodes say that its prompts are spread over; one announcement (prompt, attempt) is one dispatch, however often it is posted and whoever
waits for it; a dispatch lives no longer than the request, and ends when a later attempt of its prompt is announced; servers may join and
leave while it runs, and one that joined is forgotten when it is silent for the time it named; the proxy never decides anything about
bytes: a START that is lost, late or doubled is borne by the sessions.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidegate.engine.fault_spec import FaultSpec, MessageFaults
from tidegate.engine.http.asking import Retries, Servers, ask
from tidegate.engine.http.bodies import (
    Completion,
    CompletionRequest,
    DecodeParams,
    DecodeRequest,
    Delivered,
    Instance,
    PrefillParams,
    PrefillRequest,
    Prompt,
    parse,
    prompts_of,
)
from tidegate.engine.http.errors import Refusal, error_of
from tidegate.engine.http.metrics import Sample, metrics
from tidegate.engine.http.server import WORK, HttpServer, json_response, while_connected
from tidegate.engine.http.spreading import all_or_none, merged, parsed, shares
from tidegate.engine.waiting import LIMIT, Status, Wait

__all__ = ["Proxy", "ProxyConfig"]

HEALTH_SECONDS = 2.0
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class ProxyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """prefillers, decoders: base URLs of those that are there for good; others join by `/v1/instances`.  port 0: any free one; max_body:
    bytes; faults: of START, for tests.
    """

    prefillers: tuple[str, ...] = ()
    decoders: tuple[str, ...] = ()
    port: int = 0
    max_retries: int = 3
    retry_delay: float = 0.1
    max_body: int = 16 << 20
    faults: tuple[FaultSpec, ...] = ()
    scratch_folder: str = ""


@dataclass(eq=False)
class Entry:
    """A request under way.  dispatches: by prompt and attempt, with the announcement that began each."""

    body: CompletionRequest
    prompts: list[Prompt]
    since: float = field(default_factory=time.monotonic)
    dispatches: dict[tuple[int, int], tuple[PrefillParams, asyncio.Task[Delivered]]] = field(default_factory=dict)


def _entry(data: bytes) -> Entry:
    body = parse(data, CompletionRequest)
    return Entry(body, prompts_of(body))


class Proxy:
    """Serves `/v1/completions`, `/v1/metaserver`, `/health` from `start` to `stop`."""

    def __init__(self, config: ProxyConfig, on_fault: Callable[[str], None] = lambda request: None) -> None:
        """on_fault: told the id of each prompt whose START meets one of the configured faults."""
        self.config, self.on_fault = config, on_fault
        self.retries = Retries(config.max_retries, config.retry_delay)
        self.prefillers, self.decoders = Servers("Prefill", config.prefillers), Servers("Decode", config.decoders)
        self.faults = MessageFaults(config.faults)
        self.entries: dict[str, Entry] = {}
        self._travelling: list[asyncio.Task[Delivered]] = []  # of faults
        self.requests = self.dispatched = self.repeated = 0
        routes = [("POST", WORK, self.completions), ("POST", "/v1/metaserver", self.metaserver),
                  ("POST", "/v1/instances", self.join), ("DELETE", "/v1/instances", self.leave),
                  ("GET", "/health", self.health), ("GET", "/metrics", self.metrics),
                  ("GET", "/status", self.status)]  # fmt: skip
        self.server = HttpServer("proxy", routes, port=config.port, max_body=config.max_body, inner=("/v1/metaserver", "/v1/instances"))

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def stats(self) -> dict[str, float]:
        return {
            "requests": self.requests, "dispatched": self.dispatched, "announced_again": self.repeated,
            "http_refused": self.server.refused, "injected": self.faults.injected, "open": len(self.entries),
            "asked_in_vain": sum(self.prefillers.failures.values()) + sum(self.decoders.failures.values()),
        }  # fmt: skip

    # ---- clients --------------------------------------------------------------------------------------------------

    async def completions(self, request: Request) -> Response:
        """The client's request; its answer when Decode has it."""
        name = self._name(request.headers.get("x-request-id", ""))
        entry = self.entries[name] = await self.server.body(request, _entry)
        self.requests += 1
        try:
            return await while_connected(request, self._answer(name, entry))
        finally:
            del self.entries[name]
            for _, task in entry.dispatches.values():
                task.cancel()

    def _name(self, given: str) -> str:
        """The client's name for it, made unique."""
        if given and not NAME.fullmatch(given):
            raise Refusal(400, "X-Request-Id is at most 64 letters, digits and _.:- or left out")
        return f"{given or 'r'}-{secrets.token_hex(8)}"

    async def _answer(self, name: str, entry: Entry) -> Response:
        parts = shares(entry.prompts, len(self.decoders.urls))
        answers = await all_or_none([self._share(name, entry, share) for share in parts])
        return json_response(merged(answers), 200, name)

    async def _share(self, name: str, entry: Entry, share: list[int]) -> Completion:
        """A Decode's answer to those prompts."""
        params, fields = DecodeParams(False, True, f"{self.server.url}/v1/metaserver"), msgspec.structs.asdict(entry.body)
        if len(share) < len(entry.prompts):
            params = msgspec.structs.replace(params, prompt_indices=share)
            fields["prompt"] = [entry.prompts[index] for index in share]
        _, response = await self._ask(self.decoders, DecodeRequest(**fields, kv_transfer_params=params), name)
        if response.status_code != 200:
            refusal = error_of(response.status_code, response.content)
            refusal.request_id = refusal.request_id or name
            raise refusal
        return parsed(response.content, share, name)

    async def _ask(self, servers: Servers, body: object, request_id: str) -> tuple[str, httpx.Response]:
        url, response = await ask(self.server.client, servers, "/v1/completions", body, retries=self.retries, request_id=request_id)
        if response.status_code == 401:  # whoever asked us has shown what there is to show
            raise Refusal(502, f"{url} does not hear this proxy: {error_of(401, response.content).message}", request_id)
        return url, response

    # ---- Decode ---------------------------------------------------------------------------------------------------

    async def metaserver(self, request: Request) -> Response:
        """Decode's word that a destination is registered; answered when the prefill that it asks for is over."""
        params = await self.server.body(request, lambda data: parse(data, PrefillParams).checked())
        entry, index = self._find(params.request_id)
        key = (index, params.attempt)
        if key not in entry.dispatches:
            if sum(one == index for one, _ in entry.dispatches) > self.config.max_retries:
                raise Refusal(409, f"it has had {self.config.max_retries + 1} attempts already", params.request_id)
            for other, earlier in entry.dispatches.values():
                if other.request_id == params.request_id:  # Decode has given that attempt up: no Prefill need be found for it
                    earlier.cancel()
            task = asyncio.create_task(self._dispatch(entry, index, params))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # Decode may have left: nobody else asks
            entry.dispatches[key] = params, task
            self.dispatched += 1
        else:
            self.repeated += 1
        first, task = entry.dispatches[key]
        if first != params:
            raise Refusal(409, f"attempt {params.attempt} was announced with other contents", params.request_id)
        await while_connected(request, asyncio.wait([task]))
        if task.cancelled():
            raise Refusal(404, "the request, or this attempt, is over", params.request_id)
        return json_response(task.result())

    def _find(self, request_id: str) -> tuple[Entry, int]:
        match = re.fullmatch(r"cmpl-(.+)-([0-9]{1,6})", request_id)
        entry = self.entries.get(match[1]) if match else None
        if match is None or entry is None or int(match[2]) >= len(entry.prompts):
            raise Refusal(404, "no such request is under way here", request_id)
        return entry, int(match[2])

    async def _dispatch(self, entry: Entry, index: int, params: PrefillParams) -> Delivered:
        """Send the prompt to a Prefill; how often it arrives there is the network's affair (and that of `faults`)."""
        copies, delay = self.faults.message("START")
        if (copies, delay) == (1, 0.0):
            return await self._prefill(entry, index, params)
        self.on_fault(params.request_id)
        travelling = [asyncio.create_task(self._prefill(entry, index, params, delay)) for _ in range(copies)]
        self._travelling += travelling
        if not travelling:
            await asyncio.Event().wait()  # lost: nobody will ever answer
        # shield: what is on its way arrives, whatever has become of the request
        answers = await asyncio.gather(*map(asyncio.shield, travelling), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(errors) == len(answers):
            raise errors[0]
        return next(answer for answer in answers if not isinstance(answer, BaseException))

    async def _prefill(self, entry: Entry, index: int, params: PrefillParams, delay: float = 0.0) -> Delivered:
        await asyncio.sleep(delay)
        prompt = entry.prompts[index]
        body = PrefillRequest(
            prompt=prompt if isinstance(prompt, str) else [*prompt], model=entry.body.model, max_tokens=1, kv_transfer_params=params
        )
        url, response = await self._ask(self.prefillers, body, params.request_id)
        if response.status_code not in (200, 409):  # 409: a run began and failed, which Decode hears from Prefill
            refusal = error_of(response.status_code, response.content)
            raise Refusal(refusal.status, f"{url} refused the prompt: {refusal.message}", params.request_id)
        return Delivered(params.request_id, params.attempt, url)

    # ---- servers that come and go ---------------------------------------------------------------------------------

    async def join(self, request: Request) -> Response:
        """A Prefill or a Decode says that it is there, for some seconds more."""
        one = await self.server.body(request, lambda data: parse(data, Instance).checked())
        new = self._servers(one.role).join(one.url, one.seconds)
        return json_response({"role": one.role, "url": one.url, "new": new})

    async def leave(self, request: Request) -> Response:
        """It takes no more work."""
        one = await self.server.body(request, lambda data: parse(data, Instance).checked())
        if not self._servers(one.role).leave(one.url):
            raise Refusal(404, f"no {one.role} is known at {one.url}")
        return json_response({"role": one.role, "url": one.url})

    def _servers(self, role: str) -> Servers:
        return self.prefillers if role == "prefill" else self.decoders

    # ---- anyone ---------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """200 if at least one Prefill and one Decode are well."""
        well = {}
        for servers in (self.prefillers, self.decoders):
            urls = servers.urls
            well[servers.what.lower()] = dict(zip(urls, await asyncio.gather(*map(self._well, urls)), strict=True))
        good = all(any(kind.values()) for kind in well.values()) and not self.server.draining
        status = "draining" if self.server.draining else "ok" if good else "unavailable"
        return json_response({"status": status, **well, **self.stats()}, 200 if good else 503)

    async def _well(self, url: str) -> bool:
        try:
            return (await self.server.client.get(f"{url}/health", timeout=HEALTH_SECONDS)).status_code == 200
        except httpx.HTTPError:
            return False

    async def metrics(self, request: Request) -> Response:
        return await metrics(lambda tell: tell(self._measured()), self.server)

    async def status(self, request: Request) -> Response:
        """What clients wait for here, and whom this proxy asks."""
        now, waits = time.monotonic(), []
        for name, entry in self.entries.items():
            announced = len({index for index, _ in entry.dispatches})
            wants = f"Decode to answer {len(entry.prompts)} prompts, of which {announced} have been sent to a Prefill"
            waits.append(Wait("answer", name, wants, now - entry.since))
        servers = {"prefill": self.prefillers.urls, "decode": self.decoders.urls}
        return json_response(Status("proxy", os.getpid(), "", LIMIT, tuple(waits), servers=servers))

    def _measured(self) -> list[Sample]:
        kinds = (("prefill", self.prefillers), ("decode", self.decoders))
        return [
            Sample("requests_total", "Requests taken from clients.", self.requests),
            Sample("requests_open", "Requests that have no answer yet.", len(self.entries)),
            Sample("dispatches_total", "Prompts sent to a Prefill.", self.dispatched),
            Sample("announced_again_total", "Announcements of Decode that were known already.", self.repeated),
            *(Sample("servers", "Servers that are asked.", len(one.urls), (("role", role),)) for role, one in kinds),
            *(Sample("asked_in_vain_total", "Tries that no server served.", sum(one.failures.values()), (("role", role),))
              for role, one in kinds),
        ]  # fmt: skip
