"""Asking one of several servers, with bounded retries.

Rules: what a server answers is its answer, except 503 with Retry-After, after which, as after a broken connection, another one is
asked (the same, if there is no other); after `max_retries` further tries the last reason is told; the pause doubles each time.  A
request whose connection broke may have been served all the same: who retries must bear to be served twice.  Servers come and go; one
that joined by itself has to say every now and then that it is still there.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

import httpx
import msgspec

from tidegate.engine.http.errors import Refusal, error_of

__all__ = ["Retries", "Servers", "ask"]

LONGEST_PAUSE = 5.0


class Retries(msgspec.Struct, frozen=True):
    """max_retries: further tries after the first; retry_delay: seconds before the first of them."""

    max_retries: int = 3
    retry_delay: float = 0.1

    def pause(self, number: int) -> float:
        """Seconds before try `number`; 0 is the first."""
        return min(self.retry_delay * 2 ** min(number - 1, 30), LONGEST_PAUSE) if number else 0.0


class Servers:
    """The servers of one kind, by base URL; asked in turn, the idle ones first."""

    def __init__(self, what: str, urls: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.what = what
        self._until: dict[str, float] = dict.fromkeys(urls, math.inf)
        self.busy: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._turn = itertools.count()
        self._last: dict[str, int] = {}
        self._clock = clock

    @property
    def urls(self) -> tuple[str, ...]:
        """Those that are asked now."""
        now = self._clock()
        self._until = {url: until for url, until in self._until.items() if until > now}
        return tuple(self._until)

    def join(self, url: str, seconds: float) -> bool:
        """Ask `url` too, for `seconds` from now; one that was given at the start stays for good.  Is it new?"""
        new = url not in self.urls
        self._until[url] = max(self._until.get(url, 0.0), self._clock() + seconds)
        return new

    def leave(self, url: str) -> bool:
        """Ask `url` no more; was it asked?"""
        return self._until.pop(url, None) is not None

    def pick(self, avoid: Sequence[str] = ()) -> str | None:
        """One that is not to be avoided, if there is one; then the least busy; then the one that rested longest.  None of none."""
        url = min(self.urls, key=lambda url: (list(avoid).count(url), self.busy[url], self._last.get(url, -1)), default=None)
        if url is not None:
            self._last[url] = next(self._turn)
        return url


async def ask(
    client: httpx.AsyncClient, servers: Servers, path: str, body: object, *, retries: Retries, request_id: str
) -> tuple[str, httpx.Response]:
    """(who answered, the answer); Refusal (503) if nobody did."""
    content = msgspec.json.encode(body)
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    tried: list[str] = []
    problem = "there is none"
    for number in range(retries.max_retries + 1):
        await asyncio.sleep(retries.pause(number))
        if (url := servers.pick(tried)) is None:
            continue
        tried.append(url)
        servers.busy[url] += 1
        try:
            response = await client.post(url + path, content=content, headers=headers)
        except httpx.TransportError as error:
            problem = f"{url}: {type(error).__name__} {error}".rstrip()
        else:
            if response.status_code != 503 or "retry-after" not in response.headers:
                return url, response
            problem = f"{url}: {error_of(503, response.content).message}"
        finally:
            servers.busy[url] -= 1
        servers.failures[url] += 1
    raise Refusal(503, f"no {servers.what} served the request in {len(tried)} tries; the last: {problem}", request_id)
