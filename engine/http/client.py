"""A client that has many completions answered at once and tells of each answer as it comes.

Rules: everything runs in a thread of its own; requests are sent in their order, each when the one before has been taken up or
answered, so that the same run takes the same course; each request is told about exactly once, whatever becomes of it; an answer is believed
only if it is one: 200 with one choice, of as many tokens as were asked for, or an error body.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence

import httpx
import msgspec

from tidegate.engine.http.bodies import Completion, CompletionRequest
from tidegate.engine.http.errors import error_of

__all__ = ["Asked", "Client", "Told"]


class Asked(msgspec.Struct, frozen=True):
    """One prompt; patience: seconds after which the client leaves, 0: never."""

    name: str
    prompt: tuple[int, ...]
    new_tokens: int
    patience: float = 0.0


class Told(msgspec.Struct, frozen=True):
    """What came of request `index`: its tokens, or a status (0: no answer at all) and the reason.  request: its name over there."""

    index: int
    tokens: list[int] = []
    status: int = 200
    reason: str = ""
    request: str = ""


class Client:
    """Sends `asked` to `url`; `tell` is called in the client's thread."""

    def __init__(self, url: str, asked: Sequence[Asked], tell: Callable[[Told], None]) -> None:
        self._url, self._asked, self._tell = url, asked, tell
        self._taken = [asyncio.Event() for _ in asked]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="client", daemon=True)
        self._thread.start()

    def taken(self, index: int) -> None:
        """From any thread: request `index` has been taken up."""
        with contextlib.suppress(RuntimeError):  # all are answered, the loop is closed
            self._loop.call_soon_threadsafe(self._taken[index].set)

    def close(self) -> None:
        """Leave whatever is not answered yet; `tell` is not called after this returns."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join()
        self._loop.close()

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._all())
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    async def _all(self) -> None:
        limits = httpx.Limits(max_connections=None)
        # trust_env: a proxy of the environment must not see traffic of this host
        client = httpx.AsyncClient(base_url=self._url, limits=limits, timeout=None, trust_env=False)
        async with client, asyncio.TaskGroup() as group:
            for index, one in enumerate(self._asked):
                group.create_task(self._one(client, index, one))
                await self._taken[index].wait()

    async def _one(self, client: httpx.AsyncClient, index: int, one: Asked) -> None:
        try:
            async with asyncio.timeout(one.patience or None):
                told = await self._ask(client, index, one)
        except TimeoutError:
            told = Told(index, status=0, reason=f"the client gave up after {one.patience:g} s")
        except Exception as error:  # whatever it is: each request is told about
            told = Told(index, status=0, reason=f"{type(error).__name__} {error}".rstrip())
        self._taken[index].set()
        self._tell(told)

    async def _ask(self, client: httpx.AsyncClient, index: int, one: Asked) -> Told:
        body = msgspec.json.encode(CompletionRequest(prompt=list(one.prompt), max_tokens=one.new_tokens))
        headers = {"Content-Type": "application/json", "X-Request-Id": f"{one.name}.{index}"}
        response = await client.post("/v1/completions", content=body, headers=headers)
        if response.status_code != 200:
            error = error_of(response.status_code, response.content)
            return Told(index, status=error.status, reason=error.message, request=error.request_id)
        try:
            answer = msgspec.json.decode(response.content, type=Completion)
        except msgspec.MsgspecError as error:
            return Told(index, status=502, reason=f"200 with no completion: {error}")
        lengths = [len(choice.token_ids) for choice in answer.choices]
        if lengths != [one.new_tokens]:
            return Told(index, status=502, reason=f"200 with choices of {lengths} tokens, asked was one of {one.new_tokens}")
        return Told(index, answer.choices[0].token_ids, request=f"{answer.id}-0")
