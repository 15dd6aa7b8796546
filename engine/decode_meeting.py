"""The memory of those that say HELLO, fetched beside the owner's thread: whoever serves it may take long, or be nobody's friend.

Rules: an address that a stranger names costs a thread and nothing else: nobody who is served already waits for it; a life is believed when
the memory that it names is handed over by this very life, which it names there too, so an invented one holds nothing; one HELLO of a life,
and one of an address, is looked into at a time, and few at once; what is dropped is said again by whoever means it; what has been fetched
when nobody wants it any more is let go of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from tidegate.engine.control import Hello
from tidegate.engine.slots import SharedMemory, fetch_memory
from tidegate.protocol.topology import Topology

__all__ = ["AT_ONCE", "Fetched", "Meetings", "fetch"]

AT_ONCE = 8
Fetched = Callable[[], Sequence[SharedMemory]]
"""The memories of every rank, or raises what came of trying: OSError, ValueError.  Does not wait."""


def fetch(hello: Hello, topology: Topology) -> list[SharedMemory]:
    """Map the memory of every rank; OSError or ValueError, with nothing mapped.  Waits for those that serve it."""
    if len(hello.memories) != topology.p_tp:
        raise ValueError(f"Prefill has {len(hello.memories)} ranks, this Decode expects {topology.p_tp}: give both sides "
                         "one tensor_parallel_size of Prefill")  # fmt: skip
    memories: list[SharedMemory] = []
    try:
        for served in hello.memories:
            memories.append(fetch_memory(served))
            if memories[0].life != hello.incarnation:
                raise ValueError(f"memory at {hello.memory!r} is not of that life: only the Prefill that serves it speaks for it")
    except BaseException:
        for memory in memories:
            memory.close()
        raise
    return memories


class Meetings:
    """post: has the owner's thread make a call.  All but `_fetch` is called in that thread."""

    def __init__(self, topology: Topology, post: Callable[[Callable[[], Any]], None]) -> None:
        self._topology, self._post = topology, post
        self._under_way: dict[int, str] = {}  # life -> where its memory is said to be
        self._closed, self._lock = False, threading.Lock()

    def begin(self, hello: Hello, then: Callable[[Fetched], None]) -> None:
        """Have the owner's thread call `then` with what came of it; nothing happens where that life, that address, or too many, are looked
        into now.
        """
        now = self._under_way
        if hello.incarnation in now or hello.memory in now.values() or len(now) >= AT_ONCE:
            return
        now[hello.incarnation] = hello.memory
        threading.Thread(target=self._fetch, args=(hello, then), name="memory-fetch", daemon=True).start()

    def close(self) -> None:
        """Hear of nothing any more; waits for nobody.  Before the owner's thread ends."""
        with self._lock:
            self._closed = True

    def _fetch(self, hello: Hello, then: Callable[[Fetched], None]) -> None:
        done: Future[Sequence[SharedMemory]] = Future()
        try:
            done.set_result(fetch(hello, self._topology))
        except Exception as error:  # whatever was sent instead of a layout
            known = isinstance(error, OSError | ValueError)
            done.set_exception(error if known else ValueError(f"its memory cannot be had: {type(error).__name__}: {error}"))
        with self._lock:
            if not self._closed:
                self._post(partial(self._tell, hello.incarnation, done, then))
            elif done.exception() is None:
                for memory in done.result():
                    memory.close()

    def _tell(self, life: int, done: Future[Sequence[SharedMemory]], then: Callable[[Fetched], None]) -> None:
        del self._under_way[life]
        then(done.result)
