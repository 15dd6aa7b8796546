"""An HTTP server on loopback in a thread of its own, and what every endpoint does with a request.

Rules: the socket is bound before anything else, and a busy port is one error that names it; the event loop never waits for anything
but the event loop: bodies are parsed beside it, work is posted to its owner, whose answer comes back through `Answer`; a body is
read up to the limit and no further; whatever is wrong with a request is answered with the one form of error body, and counted; a
client that leaves ends the work for it; a server that drains takes no new work, tells so to whoever asks after its health, and ends what
it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any, Generic, TypeVar

import httpx
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.engine.http.errors import Refusal
from tidegate.engine.token import bearer, configured_token, is_bearer

__all__ = ["LOOPBACK", "Answer", "ClientGone", "HttpServer", "Probe", "Refused", "json_response", "listen", "probed",
           "while_connected"]  # fmt: skip

log = logging.getLogger(__name__)
T = TypeVar("T")
LOOPBACK = "127.0.0.1"
GRACE_SECONDS = 5.0
HEALTH_SECONDS = 2.0
KEEP_SECONDS = 5
WORK = "/v1/completions"
"""The path of requests that are work, and stay open until it is done."""
Probe = Callable[[Callable[[dict[str, float | str]], None]], None]
"""Given a function, have the owner's thread call it with figures about itself; "reason": why it is not well, "" if it is."""
Handler = Callable[[Request], Awaitable[Response]]


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def listen(port: int, what: str) -> socket.socket:
    """A listening socket on loopback; OSError that names a port which cannot be had.  what: whose port, for the message."""
    out = socket.socket()
    out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        out.bind((LOOPBACK, port))
        out.listen(256)
    except OSError as error:
        out.close()
        why = f"{what} port {port} cannot be bound: {error.strerror}; choose another, or 0 for a free one"
        raise OSError(error.errno, why) from error
    return out


def json_response(value: Any, status: int = 200, request_id: str = "") -> Response:
    headers = {"X-Request-Id": request_id} if request_id else None
    return Response(msgspec.json.encode(value), status, headers, "application/json")


class Refused(msgspec.Struct, frozen=True):
    """How a request ended badly, on its way between threads.  status: HTTP; reason: one sentence; again: as of Refusal."""

    status: int
    reason: str
    again: bool = False

    def refusal(self, request_id: str) -> Refusal:
        return Refusal(self.status, self.reason, request_id, again=self.again)


class Answer(Generic[T]):
    """One value on its way from another thread to the coroutine that awaits it; the first one counts."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = self._loop.create_future()

    def give(self, value: T) -> None:
        """From any thread; nothing happens if nobody waits any more."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: its server has ended
            self._loop.call_soon_threadsafe(self._set, value)

    def _set(self, value: T) -> None:
        if not self._future.done():
            self._future.set_result(value)

    async def wait(self) -> T:
        return await self._future


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises; it is cancelled and ClientGone raised if the client leaves first.  Read the body before."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientGone
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Uvicorn(uvicorn.Server):
    """Tells when it serves, and when it never will."""

    def __init__(self, config: uvicorn.Config, up: threading.Event) -> None:
        super().__init__(config)
        self._up = up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()


class HttpServer:
    """Serves `routes` ((method, path, handler) triples) on `port` of loopback (0: any free one) from `start` to `stop`.

    what: whose server, for messages and the thread's name; max_body: bytes; inner: paths by which only servers of this deployment
    come, and must show its token if it has one.  counts: answers by status, for anyone to read; client: for asking other servers from a
    handler.  ConfigError for a token that is no good.
    """

    def __init__(
        self, what: str, routes: Sequence[tuple[str, str, Handler]], *, port: int = 0, max_body: int = 16 << 20,
        inner: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.what, self.max_body, self._inner, self._token = what, max_body, frozenset(inner), configured_token()
        self.counts: Counter[int] = Counter()
        self.draining = False
        self._open, self._idle = 0, threading.Condition()
        self.client: httpx.AsyncClient
        self.loop: asyncio.AbstractEventLoop
        self._socket = listen(port, what)
        self.port: int = self._socket.getsockname()[1]
        app = Starlette(
            routes=[Route(path, self._endpoint(handler), methods=[method]) for method, path, handler in routes],
            exception_handlers={HTTPException: self._on_http, Exception: self._on_error}, lifespan=self._lifespan,
        )  # fmt: skip
        self._up = threading.Event()
        self._server = _Uvicorn(
            uvicorn.Config(
                app, http="h11", ws="none", loop="asyncio", lifespan="on", log_config=None, log_level="warning", access_log=False,
                server_header=False, proxy_headers=False, timeout_keep_alive=KEEP_SECONDS, timeout_graceful_shutdown=int(GRACE_SECONDS),
            ), self._up,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name=f"{what}-http", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def refused(self) -> int:
        """Requests that were no good (4xx)."""
        return sum(n for status, n in self.counts.items() if 400 <= status < 500)

    def start(self) -> None:
        """Serve; returns when requests are answered."""
        self._thread.start()
        self._up.wait()
        if not self._server.started:
            raise RuntimeError(f"the {self.what} HTTP server did not start")

    def drain(self, seconds: float) -> bool:
        """From any thread: refuse new work (503, ask another), and wait for what is under way; False if `seconds` were not enough."""
        self.draining = True
        with self._idle:
            return self._idle.wait_for(lambda: not self._open, seconds)

    def stop(self) -> None:
        """Take no more requests, let those under way end, cancel them after GRACE_SECONDS."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()

    def post(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """From any thread: run `coroutine` in the event loop; an error that it lets out is logged."""

        async def logged() -> None:
            try:
                await coroutine
            except Exception:
                log.exception("%s: a task failed", self.what)

        try:
            asyncio.run_coroutine_threadsafe(logged(), self.loop)
        except RuntimeError:  # the loop is closed: nobody is served any more
            coroutine.close()

    def _run(self) -> None:
        try:
            self._server.run([self._socket])
            if self._server.started and not self._server.should_exit:
                raise RuntimeError(f"the {self.what} HTTP server ended by itself")
        except SystemExit:
            log.error("the %s HTTP server cannot start", self.what)
        finally:
            self._up.set()

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.loop = asyncio.get_running_loop()
        # a kept connection is given up before the other server gives it up: no request meets one that is just being closed
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEP_SECONDS / 2)
        timeout = httpx.Timeout(None, connect=5.0)  # how long an answer may take is decided by deadlines, not by sockets
        # trust_env: a proxy of the environment must not see traffic of this host
        own = bearer(self._token)
        async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False, headers=own) as self.client:
            yield

    # ---- requests -------------------------------------------------------------------------------------------------

    async def body(self, request: Request, read: Callable[[bytes], T]) -> T:
        """What `read`, called in another thread, makes of the whole body; Refusal if it is no JSON or longer than max_body."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which a web page of another origin cannot send unasked
            raise Refusal(415, f"Content-Type is {kind or 'missing'!r}: send application/json")
        length = request.headers.get("content-length", "")
        data = bytearray()
        if not (length.isdigit() and int(length) > self.max_body):
            async for piece in request.stream():
                data += piece
                if len(data) > self.max_body:
                    break
            else:
                return await asyncio.to_thread(read, bytes(data))
        raise Refusal(413, f"the body is longer than {self.max_body} bytes: send less")

    def _endpoint(self, handler: Handler) -> Handler:
        async def endpoint(request: Request) -> Response:
            try:
                self._admit(request)
                with self._working(request.url.path):
                    response = await handler(request)
            except Refusal as refusal:
                response = json_response(refusal.body(), refusal.status, refusal.request_id)
                if refusal.again:
                    response.headers["Retry-After"] = "1"
            except (ClientGone, ClientDisconnect):
                response = Response(status_code=499)
            self.counts[response.status_code] += 1
            return response

        return endpoint

    def _admit(self, request: Request) -> None:
        """Refusal (401) of who comes where only ours do, and does not show that it is one."""
        if request.url.path in self._inner and not is_bearer(request.headers.get("authorization", ""), self._token):
            raise Refusal(401, f"this {self.what} hears servers of its own deployment here, and this one has not shown their token: "
                               "start all with the same TIDEGATE_TOKEN_FILE")  # fmt: skip

    @contextlib.contextmanager
    def _working(self, path: str) -> Iterator[None]:
        """Count work that is under way; Refusal of new work while draining."""
        if path != WORK:
            yield
            return
        with self._idle:
            if self.draining:
                raise Refusal(503, f"this {self.what} is stopping: it ends what it has and takes nothing new", again=True)
            self._open += 1
        try:
            yield
        finally:
            with self._idle:
                self._open -= 1
                self._idle.notify_all()

    async def _on_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        self.counts[error.status_code] += 1
        message = {404: f"there is nothing at {request.url.path[:200]}", 405: f"{request.method} is not served here"}
        return json_response(Refusal(error.status_code, message.get(error.status_code, error.detail)).body(), error.status_code)

    async def _on_error(self, request: Request, error: Exception) -> Response:
        self.counts[500] += 1
        return json_response(Refusal(500, f"{self.what} failed: {type(error).__name__}: {error}").body(), 500)


async def _figures(probe: Probe) -> dict[str, float | str]:
    """What the owner's thread says of itself; Refusal (503) if it does not answer."""
    answer: Answer[dict[str, float | str]] = Answer()
    probe(answer.give)
    try:
        return await asyncio.wait_for(answer.wait(), HEALTH_SECONDS)
    except TimeoutError:
        raise Refusal(503, f"the session's thread has not answered for {HEALTH_SECONDS:g} s") from None


async def probed(probe: Probe, server: HttpServer) -> Response:
    """200 with figures if the owner's thread answers, new work is taken, and nothing waits for too long, else 503."""
    figures = await _figures(probe)
    status = "draining" if server.draining else "waiting" if figures.get("reason") else "ok"
    return json_response({"status": status, "http_refused": server.refused, **figures}, 200 if status == "ok" else 503)
