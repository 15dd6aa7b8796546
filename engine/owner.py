"""The one thread that owns a session and its control sockets.

Rules: nobody else touches the session; other threads `post` a call, or `ask` and wait for its answer; the thread sleeps in one
poll on the sockets, a wake-up descriptor and the next timer, and never spins; an error in a posted call ends the worker, an
error in an asked one goes to the asker, and when the thread ends nobody is left waiting for an answer; a message that breaks the
protocol is counted and dropped, and the first of each second are logged: nobody fills a disk with them.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast

import zmq

from tidegate.protocol.errors import RemoteProtocolError

__all__ = ["Owner"]

T = TypeVar("T")
log = logging.getLogger(__name__)


class _Answer(Generic[T]):
    """What an asked call returned or raised; once, and by the owner's thread.  A bare lock wakes the asker: this is done twice a layer."""

    __slots__ = ("_come", "_error", "_value", "done")

    def __init__(self) -> None:
        self._come = threading.Lock()
        self._come.acquire()
        self._error: BaseException | None = None
        self._value: T
        self.done = False

    def make(self, call: Callable[[], T]) -> None:
        try:
            self._value = call()
        except BaseException as error:
            self._error = error
        self._end()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self.done = True
        self._come.release()

    def result(self) -> T:
        self._come.acquire()
        if self._error is not None:
            raise self._error
        return self._value


MOST = 200
"""Multiparts of one socket that are taken before everything else has its turn."""
LOGGED = 20
"""Dropped messages of one second that are logged; all are counted."""
EVENTS, POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)  # as enumerations they take six times as long to ask


def _has_frames(socket: zmq.Socket[bytes]) -> bool:
    return bool(cast(int, socket.get(EVENTS)) & POLLIN)


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return cast(int, socket.get(zmq.FD))


class Owner:
    """Runs `on_frames` for each incoming multipart message and `on_tick` every `tick` seconds, both in its thread.

    socket: the first one, if there is one; more come and go by `add` and `remove`, in its thread.  after: called once after each
    batch of calls and messages, to look at what has become possible.
    """

    def __init__(
        self,
        name: str,
        socket: zmq.Socket[bytes] | None,
        *,
        on_frames: Callable[[list[bytes]], None] | None,
        on_tick: Callable[[], None],
        after: Callable[[], None],
        on_crash: Callable[[BaseException], None],
        tick: float,
    ) -> None:
        self._on_tick, self._after = on_tick, after
        self._sockets: dict[zmq.Socket[bytes], Callable[[list[bytes]], None]] = {}
        self._epoll = select.epoll()
        if socket is not None and on_frames is not None:
            self.add(socket, on_frames)
        self._on_crash, self._tick = on_crash, tick
        self._calls: deque[Callable[[], Any]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._woken = False  # it has been written to, and what is posted now will be seen
        self._stopping = False
        self._asked: set[_Answer[Any]] = set()
        self._asked_lock = threading.Lock()
        self._ended = ""  # why nobody answers any more
        self.refused = 0
        self._second, self._logged = 0, 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, socket: zmq.Socket[bytes], on_frames: Callable[[list[bytes]], None]) -> None:
        """Own `socket` too, until it is removed or the thread ends.  In the owner's thread, or before it starts."""
        self._sockets[socket] = on_frames
        self._epoll.register(_descriptor(socket), select.EPOLLIN)

    def remove(self, socket: zmq.Socket[bytes]) -> None:
        """Close `socket`; what it has not sent yet is lost.  In the owner's thread."""
        del self._sockets[socket]
        self._epoll.unregister(_descriptor(socket))
        socket.close(linger=0)

    def post(self, call: Callable[[], Any]) -> None:
        """Have `call` made soon, after everything posted before."""
        self._calls.append(call)
        if not self._woken and threading.get_ident() != self._thread.ident:  # its own calls it finds before it sleeps
            self._woken = True
            os.eventfd_write(self._wake, 1)

    def ask(self, call: Callable[[], T]) -> T:
        """Make `call` in the owner's thread and return what it returns, or raise what it raises; RuntimeError if the thread has ended."""
        answer: _Answer[T] = _Answer()
        with self._asked_lock:
            if self._ended:
                raise RuntimeError(self._ended)
            self._asked.add(answer)
        self.post(partial(answer.make, call))
        try:
            return answer.result()
        finally:
            self._asked.discard(answer)

    def stop(self) -> None:
        """Carry out what is posted, then end the thread and close the sockets."""
        self.post(self._stop)
        self._thread.join()
        os.close(self._wake)
        self._epoll.close()

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        self._epoll.register(self._wake, select.EPOLLIN)
        due = time.monotonic() + self._tick
        why = f"{self._thread.name} was stopped"
        try:
            while not self._stopping:
                self._sleep(due)
                while self._calls:
                    self._calls.popleft()()
                for socket in list(self._sockets):
                    self._receive(socket)
                if time.monotonic() >= due:
                    due = time.monotonic() + self._tick
                    self._on_tick()
                self._after()
        except BaseException as error:
            log.exception("the session's owner failed")
            why = f"{self._thread.name} failed: {error}"
            self._on_crash(error)
        finally:
            self._answer_nobody(why)
            for socket in self._sockets:
                socket.close(linger=200)

    def _sleep(self, due: float) -> None:
        """Until there is something to do, or `due` has come.

        A socket's descriptor tells of news since its EVENTS were last asked, and not of what lies there: so they are asked first.
        """
        if self._calls or any(map(_has_frames, self._sockets)):
            return
        if any(wake == self._wake for wake, _ in self._epoll.poll(max(0.0, due - time.monotonic()))):
            os.eventfd_read(self._wake)
            self._woken = False  # before the calls are looked at: a later one writes again

    def _answer_nobody(self, why: str) -> None:
        with self._asked_lock:
            self._ended = why
            for answer in self._asked:
                if not answer.done:
                    answer.fail(RuntimeError(why))

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        """What is there, but no more than MOST at a time: whoever never stops talking keeps neither calls nor the clock waiting."""
        for _ in range(MOST):
            if socket not in self._sockets or not _has_frames(socket):  # it may be removed by what came through it
                return
            frames = socket.recv_multipart(zmq.NOBLOCK)
            try:
                self._sockets[socket](frames)
            except RemoteProtocolError as error:
                self.drop(error)

    def drop(self, error: RemoteProtocolError) -> None:
        """A message broke the protocol: count it, and log it if few have been.  In the owner's thread."""
        self.refused += 1
        if (second := int(time.monotonic())) != self._second:
            self._second, self._logged = second, 0
        self._logged += 1
        if self._logged <= LOGGED:
            log.warning("dropped a message (%d so far): %s", self.refused, error)
