"""A server that stands alone: it says when it is ready, joins a proxy, and ends by signal.

Rules: one line on standard output when requests are answered, everything else goes to the log on standard error; SIGTERM or Ctrl-C
drains: the proxy is told to send no more, new work is refused, what is under way ends, then the server stops with exit code 0; a second
signal does not wait; an error ends the process, with exit code 2 before it was ready and 4 from then on, and is its last line; whatever
ends it in order or by an error, its folder goes with it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import httpx
import msgspec

from tidegate.engine.endings import Ending
from tidegate.engine.http.bodies import Instance
from tidegate.engine.http.errors import error_of
from tidegate.engine.http.server import LOOPBACK
from tidegate.engine.token import bearer, configured_token
from tidegate.engine.worker_io import Drains, Line, discard

__all__ = ["Joined", "Standing"]

log = logging.getLogger("tidegate")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
JOIN_SECONDS = 5.0


class Joined:
    """Tells the proxy at `proxy` every `every` seconds that `instance` is there, until `leave`; from a thread of its own."""

    def __init__(self, proxy: str, instance: Instance, *, every: float = JOIN_SECONDS) -> None:
        self._every = every
        self._url, self._content = f"{proxy.rstrip('/')}/v1/instances", msgspec.json.encode(instance)
        self._left = threading.Event()
        self._client = httpx.Client(timeout=5.0, trust_env=False, headers={"Content-Type": "application/json"} | bearer(configured_token()))
        self._thread = threading.Thread(target=self._run, name="join", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Have the proxy ask somebody else from now on; a proxy that is gone is no problem."""
        self._left.set()
        self._thread.join()
        self._say("DELETE")
        self._client.close()

    def _run(self) -> None:
        before: str | None = None
        while not self._left.is_set():
            if (now := self._say("POST")) != before:
                log.warning("%s does not take us: %s; trying on", self._url, now) if now else log.info("joined %s", self._url)
                before = now
            self._left.wait(self._every)

    def _say(self, method: str) -> str:
        """"" if it was heard, else why not."""
        try:
            answer = self._client.request(method, self._url, content=self._content)
        except httpx.TransportError as error:
            return f"{type(error).__name__} {error}".rstrip()
        return "" if answer.status_code == 200 else error_of(answer.status_code, answer.content).message


class Standing:
    """The host of a worker that nobody started but the user.

    role: prefill, decode or proxy; drain_seconds: how long what is under way may take when it is to stop; proxy: URL of the one to join,
    "" for none; scratch: the server's own folder.
    """

    def __init__(self, role: str, *, drain_seconds: float, proxy: str = "", scratch: str = "") -> None:
        self._role, self._drain_seconds, self._proxy, self._scratch = role, drain_seconds, proxy, scratch
        self._leaving = threading.Lock()  # taken for good by the thread that ends the process
        self.serves = False
        self._joined: Joined | None = None
        self._signals = 0
        self._on_stop: Callable[[], None] = lambda: None
        self._server: Drains

    def watch(self, on_stop: Callable[[], None], scratch: str = "", *, server: Drains) -> None:
        """From now on a signal drains `server` and then calls on_stop.  From the main thread."""
        self._on_stop, self._server = on_stop, server
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._signalled)

    def say(self, kind: str, **fields: Any) -> None:
        line = Line(kind, **fields)
        if kind == "ready":
            self._ready(line)
        elif kind == "progress":
            log.info("%s", line.text)
        elif kind == "waits":
            log.warning("%s", line.text)
        elif kind == "stats":
            log.info("%s", ", ".join(f"{name} {value:g}" for name, value in line.stats.items()))

    def fail(self, text: str) -> NoReturn:
        """Say why, and end the process now, from whatever thread; its folder is removed."""
        self._leaving.acquire()
        sys.stderr.write(f"tidegate {self._role}: {text}\n")
        sys.stderr.flush()
        discard(self._scratch)
        os._exit(Ending.FAILED if self.serves else Ending.REFUSED)

    def _ready(self, line: Line) -> None:
        self.serves = True
        url = f"http://{LOOPBACK}:{line.http_port}"
        control = f", control plane at port {line.port}" if line.port else ""
        sys.stdout.write(f"tidegate {self._role}: ready at {url}{control}\n")
        sys.stdout.flush()
        if self._proxy:
            self._joined = Joined(self._proxy, Instance("prefill" if self._role == "prefill" else "decode", url))

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals == 1:
            log.info("%s: ending what is under way (at most %g s); again to stop now", signal.Signals(number).name, self._drain_seconds)
            threading.Thread(target=self._drain, name="drain", daemon=True).start()
        else:
            self._on_stop()

    def _drain(self) -> None:
        if self._joined is not None:
            self._joined.leave()
        if not self._server.drain(self._drain_seconds):
            log.warning("not everything has ended in %g s; stopping", self._drain_seconds)
        self._on_stop()
