"""Who asks a Decode rank for attempts, and is told what becomes of them.

Rules: the owner's thread tells, each thing once; what nobody listens to is kept where the embedder finds it, from any thread.
"""

from __future__ import annotations

import queue
from typing import NamedTuple, Protocol

import msgspec

from tidegate.protocol.messages import MAX_NAME, MAX_TOKENS, Message, Start, nameable

__all__ = ["Failed", "Listener", "Told", "Wanted"]


class Wanted(msgspec.Struct, frozen=True):
    """A prompt to be prefilled, and room for `new_tokens` tokens after it."""

    request: str
    prompt: tuple[int, ...]
    new_tokens: int

    def check(self) -> None:
        """ValueError for what no message can say."""
        if not self.prompt or self.new_tokens < 0:
            raise ValueError(f"{len(self.prompt)} tokens and room for {self.new_tokens} new ones: a prompt has at least 1, room 0")
        if len(self.prompt) > MAX_TOKENS:
            raise ValueError(f"a prompt of {len(self.prompt)} tokens: a message carries at most {MAX_TOKENS}, send fewer")
        if not nameable(self.request):
            raise ValueError(f"request {self.request[:50]!r}: a message carries names of at most {MAX_NAME} characters of text")


class Failed(NamedTuple):
    """An attempt that will not complete, and why."""

    attempt: int
    reason: str


class Listener(Protocol):
    """Who asked for attempts; told in the owner's thread, once each."""

    def admitted(self, attempt: int) -> None:
        """It has its memory."""

    def announce(self, start: Start, copies: int) -> None:
        """The destination is registered: have a Prefill hear `start`.  copies: 1; 0 and 2 in tests."""

    def completed(self, attempt: int) -> None:
        """Every row of every layer is here."""

    def failed(self, attempt: int, reason: str) -> None:
        """It will not complete."""

    def tick(self, now: float) -> None:
        """Every now and then (monotonic seconds)."""


class Speaks(Protocol):
    """The way to the Prefill, as far as `Told` needs it."""

    @property
    def has_peer(self) -> bool: ...

    def tell_peer(self, message: Message, copies: int = 1) -> None: ...


class Told:
    """What the core tells, put where the embedder finds it.

    complete: attempts, 0 to have `failures` looked at, None for the end; failures, and starts until a Prefill is there: only where nobody
    listens.
    """

    def __init__(self, core: Speaks) -> None:
        self._core = core
        self.listener: Listener | None = None
        self.complete: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.failures: queue.SimpleQueue[Failed] = queue.SimpleQueue()
        self._starts: list[tuple[Start, int]] = []

    def admitted(self, attempt: int) -> None:
        if self.listener:
            self.listener.admitted(attempt)

    def announce(self, start: Start, copies: int) -> None:
        if self.listener:
            self.listener.announce(start, copies)
        else:
            self._starts.append((start, copies))

    def completed(self, attempt: int) -> None:
        if self.listener:
            self.listener.completed(attempt)
        self.complete.put(attempt)

    def resumed(self, attempt: int) -> None:
        """It was complete before: who listens has heard it."""
        self.complete.put(attempt)

    def failed(self, attempt: int, reason: str) -> None:
        if self.listener:
            self.listener.failed(attempt, reason)
        else:
            self.failures.put(Failed(attempt, reason))
            self.complete.put(0)

    def tick(self, now: float) -> None:
        if self.listener:
            self.listener.tick(now)

    def look(self) -> None:
        """Announce to the Prefill what was asked for before it came."""
        if self._core.has_peer:
            for start, copies in self._starts:
                self._core.tell_peer(start, copies)
            self._starts.clear()
