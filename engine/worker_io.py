"""How a worker talks to the process that started it: one JSON configuration line in, JSON lines out.

Rules: a worker lives no longer than its parent: when its standard input ends, it removes what the parent would have removed and
ends at once, whatever it waits for; it ignores Ctrl-C, which the terminal sends to all, and leaves the decision to its parent;
standard output carries lines of this form and nothing else; an error ends the worker with exit code 4 and is its last line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from tidegate.engine.endings import FAILED, ORPHANED, end_with_any_thread
from tidegate.engine.errors import ConfigError

__all__ = ["FAILED", "Drains", "Host", "Line", "Parent", "discard", "run_worker"]

T = TypeVar("T")


class Line(msgspec.Struct, omit_defaults=True):
    """One line from a worker: kind is ready, progress, waits, taken, debug, stats or error; the parent makes a result of an HTTP answer and
    a debug line.

    waits: something takes too long, in words;
    port: of the control plane; http_port: of the HTTP server; taken: what can be done for `request` now is done, so the next may come;
    debug: what became of a prompt, bit by bit.  Both are for tests and reports.
    """

    kind: str
    port: int = 0
    http_port: int = 0
    text: str = ""
    request: str = ""
    index: int = -1
    attempt: int = 0
    ok: bool = False
    status: int = 0
    tokens: list[int] = []
    logits: bytes = b""
    tags: dict[str, str] = {}
    stats: dict[str, float] = {}


class Host(Protocol):
    """Who started a worker, and is told what becomes of it: another process (`Parent`), or nobody but the terminal (`Standing`)."""

    def watch(self, on_stop: Callable[[], None], scratch: str = "", *, server: Drains) -> None:
        """Call on_stop when it is time to stop; scratch: a folder to be removed if the host is gone; server: to be drained before, if
        there is time.
        """

    def fail(self, text: str) -> NoReturn:
        """Say why, and end the process now."""

    def say(self, kind: str, **fields: Any) -> None:
        """One `Line`."""


class Drains(Protocol):
    """What takes work."""

    def drain(self, seconds: float) -> bool:
        """Take no new work, and wait for what is under way; False if that was not enough time."""


class Parent:
    """The other end of standard input and output."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._out = os.dup(1)
        os.dup2(2, 1)  # whatever prints by accident must not break the lines
        self._lock = threading.Lock()
        self._leaving = threading.Lock()  # taken for good by the thread that ends the process: nobody cuts off what it does last
        self._scratch = ""
        self._in = b""

    def config(self, kind: type[T]) -> T:
        """The first line of standard input."""
        return msgspec.json.decode(self._line(), type=kind)

    def _line(self) -> bytes:
        """The next line, or what there is at the end.  Not by sys.stdin: a thread that waits in it breaks the exit."""
        while b"\n" not in self._in and (piece := os.read(0, 1 << 16)):
            self._in += piece
        line, _, self._in = self._in.partition(b"\n")
        return line

    def watch(self, on_stop: Callable[[], None], scratch: str = "", *, server: Drains) -> None:
        """Call on_stop when the parent says stop; when the parent has gone, remove its `scratch` folder and exit."""

        self._scratch = scratch

        def read() -> None:
            if self._line() == b"stop":
                on_stop()
                self._line()  # until the parent closes it
            self._leaving.acquire()
            self._orphaned()

        threading.Thread(target=read, name="parent", daemon=True).start()

    def fail(self, text: str) -> NoReturn:
        """Say why and end the process now, from whatever thread; if nobody is there to hear it, as an orphan."""
        self._leaving.acquire()
        try:
            self.say("error", text=text)
        except OSError:
            self._orphaned()
        os._exit(FAILED)

    def _orphaned(self) -> NoReturn:
        """The parent has gone, so its folder is ours to remove."""
        discard(self._scratch)
        os._exit(ORPHANED)

    def say(self, kind: str, **fields: Any) -> None:
        data = msgspec.json.encode(Line(kind, **fields)) + b"\n"
        with self._lock:
            view = memoryview(data)
            while view:
                view = view[os.write(self._out, view) :]


def discard(folder: str) -> None:
    """Remove `folder`; renamed first, so that a copy that is still under way creates nothing new in it."""
    if folder:
        gone = f"{folder}.{os.getpid()}"
        with contextlib.suppress(OSError):  # the other worker was faster
            os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def run_worker(role: str, body: Callable[[Parent], None]) -> None:
    """A worker's main: `body` to its end, or one error line."""
    logging.basicConfig(level=logging.WARNING, format=f"{role}: %(message)s")
    if torch := sys.modules.get("torch"):  # the proxy computes nothing, and does not load it
        torch.set_num_threads(1)
    parent = Parent()
    end_with_any_thread(lambda reason: parent.fail(f"{role}: {reason}"))
    try:
        body(parent)
    except Exception as error:
        if not isinstance(error, OSError | ConfigError):  # whose text is made for users; others are ours to find
            logging.getLogger(__name__).exception("the worker failed")
        parent.fail(f"{role}: {error}")
