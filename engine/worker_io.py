"""How a worker talks to the process that started it: one JSON configuration line in, JSON lines out.

Rules: a worker lives no longer than its parent: when its standard input ends, it ends too; it ignores Ctrl-C, which the
terminal sends to all, and leaves the decision to its parent; standard output carries lines of this form and nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

__all__ = ["Line", "Parent"]

T = TypeVar("T")


class Line(msgspec.Struct, omit_defaults=True):
    """One line from a worker: kind is ready, progress, result, stats or error."""

    kind: str
    port: int = 0
    text: str = ""
    request: str = ""
    index: int = -1
    attempt: int = 0
    ok: bool = False
    tokens: list[int] = []
    logits: bytes = b""
    tags: dict[str, str] = {}
    stats: dict[str, float] = {}


class Parent:
    """The other end of standard input and output."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._out = os.dup(1)
        os.dup2(2, 1)  # whatever prints by accident must not break the lines
        self._lock = threading.Lock()

    def config(self, kind: type[T]) -> T:
        """The first line of standard input."""
        return msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)

    def watch(self, on_stop: Callable[[], None]) -> None:
        """Call on_stop when the parent says stop; end the process when the parent has gone."""

        def read() -> None:
            line = sys.stdin.buffer.readline()
            if line.strip() == b"stop":
                on_stop()
                sys.stdin.buffer.readline()  # until the parent closes it
            else:
                on_stop()

        threading.Thread(target=read, name="parent", daemon=True).start()

    def say(self, kind: str, **fields: Any) -> None:
        data = msgspec.json.encode(Line(kind, **fields)) + b"\n"
        with self._lock:
            view = memoryview(data)
            while view:
                view = view[os.write(self._out, view) :]
