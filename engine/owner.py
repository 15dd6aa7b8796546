"""The one thread that owns a session and its control sockets.

Rules: nobody else touches the session; other threads `post` a call, or `ask` and wait for its answer; the thread sleeps in one
poll on the sockets, a wake-up descriptor and the next timer, and never spins; an error in a posted call ends the worker, an
error in an asked one goes to the asker, and when the thread ends nobody is left waiting for an answer; a message that breaks the
protocol is counted and dropped, and the first of each second are logged: nobody fills a disk with them.

Whoever touches the session has the turn, which is one lock.  The owner's thread has it but for its sleep; meanwhile a thread that
posts or asks `here` has it, and does what the owner would do with its call: nobody has to be woken, which is dearer than what most calls
do.  In this project "the owner's thread" is the one that has the turn.
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

from tidegate.engine.multipart import has_frames, receive
from tidegate.protocol.errors import RemoteProtocolError

__all__ = ["Owner"]

T = TypeVar("T")
log = logging.getLogger(__name__)


class _Made(Generic[T]):
    """What a call returned or raised; once, and by the owner's thread."""

    __slots__ = ("_error", "_value", "done")

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._value: T
        self.done = False

    def make(self, call: Callable[[], T]) -> None:
        try:
            self._value = call()
        except Exception as error:
            self._error = error
        except BaseException as error:  # an interruption: whoever makes the calls is to end, too
            self.fail(error)
            raise
        self._end()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self.done = True

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value


class _Answer(_Made[T]):
    """One that another thread waits for.  A bare lock wakes it: this may be done twice a layer."""

    __slots__ = ("_come",)

    def __init__(self) -> None:
        super().__init__()
        self._come = threading.Lock()
        self._come.acquire()

    def _end(self) -> None:
        super()._end()
        self._come.release()

    def result(self) -> T:
        self._come.acquire()
        return super().result()


MOST = 200
"""Multiparts of one socket that are taken before everything else has its turn."""
LOGGED = 20
"""Dropped messages of one second that are logged; all are counted."""
ROUNDS = 3
"""How often a thread that asks `here` looks at what follows before it leaves the rest to the owner's."""


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
        self._turn = threading.Lock()
        self._turn.acquire()  # for the thread that is to start
        self._holder = 0  # identity of the thread that has the turn
        self._interrupted: BaseException | None = None  # what went wrong in the turn of another thread
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

    def post(self, call: Callable[[], Any], *, here: bool = False) -> None:
        """Have `call` made soon, after everything posted before.  here: by this thread, before it returns, where nobody has the turn."""
        self._calls.append(call)
        if here and self._turn.acquire(blocking=False):
            self._take_turn()
        elif not self._woken and threading.get_ident() != self._holder:  # its own calls it finds before it sleeps
            self._rouse()

    def ask(self, call: Callable[[], T], *, here: bool = False) -> T:
        """Make `call` in the owner's thread and return what it returns, or raise what it raises; RuntimeError if the thread has ended.

        here: as in `post`.
        """
        if here and self._turn.acquire(blocking=False):
            return self._make_here(call)
        answer: _Answer[T] = _Answer()
        with self._asked_lock:
            if self._ended:
                raise RuntimeError(self._ended)
            self._asked.add(answer)
        self.post(partial(answer.make, call), here=here)
        try:
            return answer.result()
        finally:
            self._asked.discard(answer)

    def _make_here(self, call: Callable[[], T]) -> T:
        """`call` in the turn that this thread has just taken: nobody waits for its answer."""
        made: _Made[T] = _Made()
        self._calls.append(partial(made.make, call))
        self._take_turn()
        if not made.done:  # what was posted before it went wrong
            raise RuntimeError(f"{self._thread.name} failed: {self._interrupted}")
        return made.result()

    def _rouse(self) -> None:
        self._woken = True
        os.eventfd_write(self._wake, 1)

    def _take_turn(self) -> None:
        """Do what the owner's thread would, which sleeps, with the calls that were posted; leave it messages, and what grows too long."""
        self._holder, rest = threading.get_ident(), True
        try:
            for _ in range(ROUNDS if self._interrupted is None else 0):
                for _ in range(len(self._calls)):
                    self._calls.popleft()()
                self._after()
                if not self._calls:
                    break
            rest = self._stopping or self._interrupted is not None or self._pending()
        except BaseException as error:  # nobody may go on with what it left half done
            self._interrupted = error
        self._holder = 0
        self._turn.release()
        if rest and not self._woken:
            self._rouse()

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
        self._holder = self._thread.ident or 0
        due = time.monotonic() + self._tick
        why = f"{self._thread.name} was stopped"
        try:
            while not self._stopping:
                self._sleep(due)
                if self._interrupted is not None:
                    raise self._interrupted
                self._make_calls()
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
                socket.close()

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _pending(self) -> bool:
        """A socket's descriptor tells of news since its EVENTS were last asked, and not of what lies there: so they are asked before a
        sleep."""
        return bool(self._calls) or any(map(has_frames, self._sockets))

    def _sleep(self, due: float) -> None:
        """Until there is something to do, or `due` has come; the turn is anybody's meanwhile."""
        if self._pending():
            return
        self._holder = 0
        self._turn.release()
        try:
            if any(wake == self._wake for wake, _ in self._epoll.poll(max(0.0, due - time.monotonic()))):
                os.eventfd_read(self._wake)
                self._woken = False  # before the calls are looked at: a later one writes again
        finally:
            self._turn.acquire()
            self._holder = threading.get_ident()

    def _answer_nobody(self, why: str) -> None:
        with self._asked_lock:
            self._ended = why
            for answer in self._asked:
                if not answer.done:
                    answer.fail(RuntimeError(why))

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        """What is there, but no more than MOST at a time: whoever never stops talking keeps neither calls nor the clock waiting."""
        for _ in range(MOST):
            if socket not in self._sockets or not has_frames(socket):  # it may be removed by what came through it
                return
            frames = receive(socket)
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
