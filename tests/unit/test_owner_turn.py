"""The owner's turn: a thread that asks `here` does what the owner would, which sleeps; nothing is done twice, at once, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from tidegate.engine import control, multipart
from tidegate.engine.owner import ROUNDS, Owner


class Bench:
    """An Owner over a ROUTER that ticks once a minute, and a DEALER that talks to it."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket, port = control.bind(self.context, 0)
        self.heard: list[bytes] = []
        self.news, self.crashed = threading.Event(), threading.Event()
        self.done: list[Any] = []
        self.after: Callable[[], None] = lambda: None
        self.owner = Owner("bench", self.socket, on_frames=self._hear, on_tick=lambda: None, after=lambda: self.after(),
                           on_crash=lambda error: self.crashed.set(), tick=60.0)  # fmt: skip
        self.dealer = control.connect(self.context, port)
        self.owner.start()

    def _hear(self, frames: list[bytes]) -> None:
        self.heard.append(frames[1])
        self.news.set()

    def asleep(self) -> None:
        """Return once the owner's thread sleeps: somebody else can have the turn."""
        assert self.owner._turn.acquire(timeout=60)
        self.owner._turn.release()

    def close(self) -> None:
        if not self.crashed.is_set():
            self.owner.stop()
        self.dealer.close(linger=0)
        self.context.term()


@pytest.fixture
def bench() -> Iterator[Bench]:
    one = Bench()
    one.asleep()
    yield one
    one.close()


def test_who_asks_here_makes_the_call_and_what_follows(bench: Bench) -> None:
    bench.after = lambda: bench.done.append(("after", threading.current_thread()))
    bench.asleep()
    me = threading.current_thread()
    assert bench.owner.ask(threading.current_thread, here=True) is me
    assert bench.done == [("after", me)]
    bench.owner.post(lambda: bench.done.append("posted"), here=True)
    assert bench.done[1:] == ["posted", ("after", me)]
    with pytest.raises(KeyError):
        bench.owner.ask(lambda: {}["nothing"], here=True)
    assert bench.owner.ask(threading.current_thread) is not me, "who does not ask here has the owner do it"


def test_what_was_posted_before_is_made_before(bench: Bench) -> None:
    for n in range(50):
        bench.owner._calls.append(lambda n=n: bench.done.append(n))  # nobody is roused
    bench.owner.ask(lambda: bench.done.append("asked"), here=True)
    assert bench.done == [*range(50), "asked"]


def test_where_the_owner_is_at_it_nobody_else_is(bench: Bench) -> None:
    begun, go = threading.Event(), threading.Event()

    def long() -> None:
        begun.set()
        go.wait(60)
        bench.done.append("long")

    bench.owner.post(long)
    assert begun.wait(60)
    bench.owner.post(lambda: bench.done.append("posted"), here=True)
    assert bench.done == [], "it returned at once, and the owner makes the call"
    threading.Timer(0.05, go.set).start()
    assert bench.owner.ask(threading.current_thread, here=True).name == "bench"
    assert bench.done == ["long", "posted"]


def test_a_message_whose_news_another_thread_took_is_heard(bench: Bench) -> None:
    """A socket's descriptor tells once; whoever has asked its EVENTS has used that up."""

    def look() -> None:
        bench.owner._epoll.unregister(bench.socket.get(zmq.FD))  # it never sees the news, which is a race otherwise
        bench.dealer.send(b"hello")
        while not multipart.has_frames(bench.socket):
            pass

    bench.owner.ask(look, here=True)
    assert bench.news.wait(20)
    assert bench.heard == [b"hello"]


def test_what_grows_too_long_is_left_to_the_owner(bench: Bench) -> None:
    ended = threading.Event()

    def again() -> None:
        bench.done.append(threading.current_thread().name)
        if len(bench.done) == ROUNDS + 20:
            ended.set()
        else:
            bench.owner.post(again)

    bench.owner.post(again, here=True)
    assert ended.wait(60)
    assert bench.done == ["MainThread"] * ROUNDS + ["bench"] * 20


@pytest.mark.parametrize("what", ["posted", "after"])
def test_an_error_that_is_nobodys_ends_the_owner_whoever_has_the_turn(bench: Bench, what: str) -> None:
    if what == "posted":
        bench.owner._calls.append(lambda: [][0])
        with pytest.raises(RuntimeError, match="bench failed"):
            bench.owner.ask(lambda: 7, here=True)
    else:
        bench.after = lambda: [][0]
        assert bench.owner.ask(lambda: 7, here=True) == 7, "it was made"
    assert bench.crashed.wait(60)
    with pytest.raises(RuntimeError, match="bench failed"):
        bench.owner.ask(lambda: 7, here=True)


def test_once_it_went_wrong_in_a_turn_nobody_has_another(bench: Bench) -> None:
    bench.owner._interrupted = IndexError("what it was")  # as a thread leaves it that has just had the turn, before the owner's has woken
    with pytest.raises(RuntimeError, match="bench failed: what it was"):
        bench.owner.ask(lambda: bench.done.append("made"), here=True)
    assert bench.crashed.wait(60)
    assert bench.done == []


def test_an_interruption_leaves_nothing_half_done_to_anybody(bench: Bench) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.owner.ask(interrupted, here=True)
    assert bench.crashed.wait(60)


def test_frames_go_and_come_as_pyzmq_has_them() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    one, two = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    one.bind("inproc://frames")
    two.connect("inproc://frames")
    with pytest.raises(zmq.Again):
        multipart.receive(one)
    for frames in ([b"one"], [b"", b"x" * 70_000, b""], [b"a", b"b"]):
        multipart.send(two, frames)
        assert multipart.has_frames(one)
        assert one.recv_multipart() == frames
        one.send_multipart(frames)
        assert multipart.receive(two, wait=True) == frames
    assert not multipart.has_frames(one)
    context.destroy(linger=0)
