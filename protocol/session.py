"""What both sessions share: the story, the observer, snapshots.

Rules: a session has no clock, thread or socket; one owner thread calls it.  Every public event method is one action of
tla/system/System.tla under the same name; it first asks the machines, then moves them, so a refused event changes nothing.
Machine states are immutable values kept in dictionaries, for as long as anybody may speak of the work, and no longer; that a
nonce was used is known afterwards from the highest one, for nonces grow.  A snapshot is those dictionaries, and that number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from tidegate.protocol.effects import Effect
from tidegate.protocol.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["Observer", "Session"]

Observer = Callable[[str, Mapping[str, Any]], None]
"""Called after each accepted event with the action's name and its arguments (the label `ev` of System.tla)."""

_STORY = 16


class Session:
    """Base of PrefillSession and DecodeSession."""

    _tables: ClassVar[tuple[str, ...]] = ()
    _settings: ClassVar[tuple[str, ...]] = ()
    _counters: ClassVar[tuple[str, ...]] = ()
    _words: ClassVar[tuple[str, ...]] = ()  # dictionaries of what is only said, and decides nothing

    def __init__(self, observer: Observer | None = None) -> None:
        self.observer = observer
        self._story: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=_STORY)  # put into words only where somebody asks

    @property
    def story(self) -> tuple[str, ...]:
        """The latest accepted events, oldest first."""
        return tuple(f"{op}({', '.join(f'{name}={value}' for name, value in said.items())})" for op, said in self._story)

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the dictionaries that it keeps."""
        return (*self._tables, *self._words)

    def clone(self) -> Self:
        """An independent copy: both may go on from here (used by the explorer)."""
        twin = object.__new__(type(self))
        for name in (*self._settings, *self._counters):
            setattr(twin, name, getattr(self, name))
        for name in (*self._tables, *self._words):
            setattr(twin, name, dict(getattr(self, name)))
        twin.observer, twin._story = self.observer, self._story.copy()
        return twin

    def snapshot(self) -> tuple[Any, ...]:
        """The whole state as a hashable value; equal snapshots behave alike."""
        tables = (frozenset(getattr(self, name).items()) for name in self._tables)
        return (*tables, *(getattr(self, name) for name in self._counters))

    def _did(self, op: str, effects: list[Effect], **arguments: Any) -> list[Effect]:
        self._story.append((op, arguments))
        if self.observer is not None:
            self.observer(op, arguments)
        return effects

    def _need(self, allowed: bool, rule: str, *, machine: str, state: object, event: object) -> None:
        if not allowed:
            raise self._refused(rule, machine=machine, state=state, event=event)

    def _refused(self, rule: str, *, machine: str, state: object, event: object) -> LocalProtocolError:
        """What to raise; where a layer passes, ask first and call this only on refusal, for its words cost more than the question."""
        return LocalProtocolError(rule, machine=machine, state=state, event=event, story=self.story)

    def _remote(self, rule: str, *, machine: str, state: object, event: object) -> RemoteProtocolError:
        return RemoteProtocolError(rule, machine=machine, state=state, event=event, story=self.story)
