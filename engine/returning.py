"""The dead lives of Decodes: what is held for them ends when none of their copies can run any more.

Rules: the owner's thread calls everything here; the shared-memory backend's fence is the death of all processes of the life: the copies
of a Decode are made by threads of its ranks, so they have stopped when none of those can run; a process that nobody can look at counts
as alive, and then what is held for it waits (in seed mode), for ever if need be.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.engine.control import Welcome, public_name
from tidegate.engine.pool_client import Client, is_alive, pid_namespace
from tidegate.engine.prefill_group import PrefillGroup
from tidegate.protocol.effects import Effect
from tidegate.protocol.prefill import PrefillSession

__all__ = ["DeadDecodes", "is_dead"]


def _readers(life: Welcome) -> list[Client]:
    """The processes that read for it; empty where nobody here can tell."""
    return [Client(*reader) for reader in life.readers] if life.namespace == pid_namespace() else []


def is_dead(life: Welcome) -> bool:
    """Is it certain that no process which read for that life of a Decode can run any more?"""
    readers = _readers(life)
    return bool(readers) and not any(map(is_alive, readers))


class DeadDecodes:
    """lease: does this Prefill run with read_lease?  execute: carries out effects; lost: told when something has ended for one."""

    def __init__(
        self, session: PrefillSession | PrefillGroup, *, lease: bool, execute: Callable[[list[Effect]], None], lost: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._session, self._lease, self._execute, self._lost, self._say = session, lease, execute, lost, say
        self._waiting: dict[int, Welcome] = {}

    def gone(self, life: Welcome) -> None:
        """Another life answers in its place, or it is seen to be dead."""
        incarnation = life.incarnation
        if self._session.can_go(incarnation):
            self._say(f"Decode {public_name(incarnation)} is gone: what it still had to read is given up "
                      + ("at once" if self._lease else "when its processes are dead"))  # fmt: skip
            self._execute(self._session.peer_gone(incarnation))
            self._waiting[incarnation] = life
            self.look()

    def look(self) -> None:
        """Every now and then: who is fenced by now, and lost?"""
        for incarnation, life in list(self._waiting.items()):
            if self._session.can_fence(incarnation) and is_dead(life):
                self._execute(self._session.peer_fenced(incarnation))
            if self._session.can_lose(incarnation, lease=self._lease):
                del self._waiting[incarnation]
                self._execute(self._session.peer_lost(incarnation, lease=self._lease))
                self._lost()
