"""Prefill's side of the handshake: a START waits for the very life of Decode that sent it; what a run says goes where it came from."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import zmq

from tidegate.engine import control, decode_links
from tidegate.engine.decode_links import DecodeLinks
from tidegate.engine.http.prefill_server import Call, Done
from tidegate.engine.http.server import Refused
from tidegate.engine.listeners import why_foreign
from tidegate.engine.owner import Owner
from tidegate.protocol.effects import Effect, RunStarted
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import VERSION, Abort, Committed, Message, ReadDone, Retire, RunFailed, Start, TransferId, decode, encode

DIGEST = "0123456789abcdef"


class Given:
    """In the place of an `Answer`: what was given, and when."""

    def __init__(self) -> None:
        self.values: list[Done | Refused] = []
        self.there = threading.Event()

    def give(self, value: Done | Refused) -> None:
        self.values.append(value)
        self.there.set()

    def get(self) -> Done | Refused:
        assert self.there.wait(10)
        assert len(self.values) == 1
        return self.values[0]


class Bench:
    """DecodeLinks with an owner of their own; the test plays Decodes with ROUTERs of its own."""

    def __init__(self, limit: float) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.heard: list[Message] = []
        self.began: list[str] = []
        self.gone: list[tuple[int, tuple[int, int]]] = []
        self.owner = Owner("links", None, on_frames=None, on_tick=lambda: self.links.tick(), after=lambda: self.links.flush(),
                           on_crash=lambda error: self.heard.append(Abort(str(error), 0)), tick=0.05)  # fmt: skip
        hello = control.Hello(VERSION, 11, DIGEST, "memory")
        self.links = DecodeLinks(self.owner, self.context, hello, self, on_begin=self.began.append, limit=limit)
        self.routers: list[zmq.Socket[bytes]] = []
        self.owner.start()

    def receive(self, message: Message) -> list[Effect]:
        self.heard.append(message)
        if isinstance(message, Start) and message.tokens > 100:
            raise RemoteProtocolError("too long", machine="test", state="-", event=message)
        return [RunStarted(len(self.heard), message)] if isinstance(message, Start) else []

    def execute(self, effects: list[Effect]) -> None:
        pass

    def peer_gone(self, life: control.Welcome) -> None:
        self.gone.append(life)

    def decode(self, port: int = 0) -> tuple[zmq.Socket[bytes], int]:
        router, port = control.bind(self.context, port)
        router.setsockopt(zmq.RCVTIMEO, 10_000)
        self.routers.append(router)
        return router, port

    def call(self, port: int, *, attempt: int = 1, incarnation: int = 5, tokens: int = 2) -> Given:
        given = Given()
        start = Start(f"r{attempt}", attempt, incarnation, tokens, (1,) * tokens)
        self.owner.ask(lambda: self.links.call(Call(start, "127.0.0.1", port, given)))  # type: ignore[arg-type]
        return given

    def until(self, *began: str) -> None:
        """Wait until exactly these requests have begun, in this order."""
        end = time.monotonic() + 10
        while len(self.began) < len(began) and time.monotonic() < end:
            threading.Event().wait(0.005)
        assert self.began == [*began]

    def close(self) -> None:
        self.owner.stop()
        for router in self.routers:
            router.close(linger=0)
        self.context.term()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(limit=5.0)
    yield made
    made.close()


def welcome(router: zmq.Socket[bytes], incarnation: int = 5, digest: str = DIGEST, refused: str = "") -> bytes:
    """Answer the next HELLO; the address of who said it."""
    address, kind, data = router.recv_multipart()
    assert kind == control.HELLO
    assert control.parse_hello(data).digest == DIGEST
    router.send_multipart([address, control.WELCOME, control.frame(control.Welcome(VERSION, incarnation, digest, refused))])
    return address


def test_a_start_is_heard_after_the_welcome_of_its_decode_and_answered_at_the_end_of_its_run(bench: Bench) -> None:
    router, port = bench.decode()
    first = bench.call(port)
    assert (bench.heard, bench.links.waiting) == ([], 1)
    welcome(router)
    bench.until("r1")
    second = bench.call(port, attempt=2)
    assert bench.began == ["r1", "r2"], "one handshake serves both"
    bench.owner.ask(lambda: bench.links.send(RunFailed("r1", 1, 1, "why")))
    while (frames := router.recv_multipart())[1] == control.HELLO:
        pass
    assert decode(frames[2]) == RunFailed("r1", 1, 1, "why")
    bench.owner.ask(lambda: bench.links.ended(2, "done", ""))
    bench.owner.ask(lambda: bench.links.ended(1, "failed", "why"))
    assert (first.get(), second.get()) == (Refused(409, "run 1 failed: why"), Done(2))
    assert bench.links.waiting == 0


def test_a_start_of_another_life_of_decode_begins_no_run(bench: Bench) -> None:
    router, port = bench.decode()
    stale = bench.call(port, incarnation=4)
    welcome(router, 5)
    answer = stale.get()
    assert isinstance(answer, Refused)
    assert (answer.status, answer.again, "that one has ended" in answer.reason) == (503, True, True)
    live = bench.call(port, attempt=2, incarnation=6)
    welcome(router, 6)
    bench.until("r2")
    assert live.values == []


@pytest.mark.parametrize(("digest", "refused", "why"), [
    (DIGEST, "your layers are others", "refused this Prefill: your layers are others"), ("f" * 16, "", "has mapped another layout"),
])  # fmt: skip
def test_a_decode_that_refuses_is_told_to_the_caller_and_met_again_next_time(digest: str, refused: str, why: str, bench: Bench) -> None:
    router, port = bench.decode()
    call = bench.call(port)
    welcome(router, 5, digest, refused)
    answer = call.get()
    assert isinstance(answer, Refused)
    assert (answer.status, why in answer.reason, bench.heard) == (503, True, [])
    bench.call(port, attempt=2)
    while not bench.began:  # a HELLO that was said again before the refusal came may lie there still
        if router.poll(50):
            welcome(router)
    bench.until("r2")


def test_a_decode_that_does_not_answer_is_given_up() -> None:
    bench = Bench(limit=0.2)
    _, port = bench.decode()
    answer = bench.call(port).get()
    assert isinstance(answer, Refused)
    assert f"Decode at 127.0.0.1:{port} has not answered the handshake for 0.2 s" in answer.reason
    bench.close()


def test_a_call_that_nobody_waits_for_begins_no_run_and_one_that_is_refused_says_why(bench: Bench) -> None:
    router, port = bench.decode()
    call = Call(Start("gone", 1, 5, 2, (1, 1)), "127.0.0.1", port, Given())  # type: ignore[arg-type]
    bench.owner.ask(lambda: bench.links.call(call))
    long = bench.call(port, attempt=2, tokens=101)
    bench.owner.ask(lambda: bench.links.cancel(call))
    welcome(router)
    answer = long.get()
    assert isinstance(answer, Refused)
    assert (answer.status, "too long" in answer.reason, bench.began) == (400, True, [])


def test_a_decode_speaks_about_its_own_runs_only(bench: Bench) -> None:
    one, port = bench.decode()
    other, second = bench.decode()
    bench.call(port)
    address = welcome(one)
    bench.until("r1")
    bench.call(second, attempt=2, incarnation=6)
    foreign = welcome(other, 6)
    bench.until("r1", "r2")
    bench.heard.clear()
    mine, report = ReadDone(TransferId(1, 1, 1), 0, 1, 11, 5), ReadDone(TransferId(2, 1, 1), 0, 1, 11, 5)
    for message in (report, Abort("r2", 2), Retire("r2", 2)):
        one.send_multipart([address, control.MESSAGE, encode(message)])
    one.send_multipart([address, control.MESSAGE, encode(mine)])
    other.send_multipart([foreign, control.MESSAGE, encode(Abort("r2", 2))])
    one.send_multipart([address, b"what"])
    end = time.monotonic() + 10
    while (len(bench.heard), bench.owner.refused) != (2, 4) and time.monotonic() < end:
        threading.Event().wait(0.005)
    assert bench.owner.refused == 4
    assert bench.heard in ([mine, Abort("r2", 2)], [Abort("r2", 2), mine])


def test_where_a_decode_refuses_later_runs_go_on_and_nothing_of_its_old_life_begins(bench: Bench) -> None:
    router, port = bench.decode()
    going = bench.call(port)
    welcome(router)
    bench.until("r1")
    refused = bench.call(port, attempt=2, incarnation=6)  # it was started anew, with other layers
    welcome(router, 6, "f" * 16)
    assert "has mapped another layout" in str(refused.get())
    bench.owner.ask(lambda: bench.links.send(Committed(TransferId(1, 1, 1))))
    while (frames := router.recv_multipart())[1] == control.HELLO:
        pass
    assert decode(frames[2]) == Committed(TransferId(1, 1, 1))
    stale = bench.call(port, attempt=3)  # by the life that had our layout
    assert bench.began == ["r1"]
    welcome(router, 6)
    assert "that one has ended" in str(stale.get())
    bench.owner.ask(bench.links.close)
    assert going.get() == Refused(503, "this Prefill is stopping", again=True)


def test_what_is_known_of_a_run_goes_with_it(bench: Bench) -> None:
    router, port = bench.decode()
    bench.call(port)
    welcome(router)
    bench.until("r1")
    bench.call(port)  # by a retry: a second run of the attempt
    bench.until("r1", "r1")
    for run in (1, 2):
        bench.owner.ask(lambda run=run: bench.links.ended(run, "failed", "why"))  # type: ignore[misc]
        bench.owner.ask(lambda run=run: bench.links.forgotten(run))  # type: ignore[misc]
        assert list(bench.links._link_of) == list(bench.links._attempt_of) == [2][run - 1 :]
        assert bench.links._runs_of == ({1: {2}} if run == 1 else {})
    assert bench.links._calls == {}


def test_so_many_decodes_and_no_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.engine.decode_links.MAX_LINKS", 1)
    _, port = bench.decode()
    waiting = bench.call(port)
    answer = bench.call(port + 1).get()
    assert isinstance(answer, Refused)
    assert (answer.again, "serves 1 Decodes already" in answer.reason) == (True, True)
    bench.links._max_waiting = 1
    crowded = bench.call(port).get()
    assert isinstance(crowded, Refused)
    assert (crowded.status, "1 prompts wait already" in crowded.reason) == (503, True)
    bench.owner.ask(bench.links.close)
    assert waiting.get() == Refused(503, "this Prefill is stopping", again=True)


def test_what_is_said_goes_to_the_decode_that_asked(bench: Bench) -> None:
    routers = [bench.decode() for _ in range(2)]
    for number, (router, port) in enumerate(routers, 1):
        bench.call(port, attempt=number)
        welcome(router)
        bench.until(*(f"r{n}" for n in range(1, number + 1)))
    for run in (2, 1):
        bench.owner.ask(lambda run=run: bench.links.send(Committed(TransferId(run, 1, 1))))  # type: ignore[misc]
    for run, (router, _) in enumerate(routers, 1):
        while (frames := router.recv_multipart())[1] == control.HELLO:
            pass
        assert decode(frames[2]) == Committed(TransferId(run, 1, 1))


def served_after_many(bench: Bench) -> Done | Refused:
    """What a new Decode is told when so many, real ones and strangers, have come and left that all places were taken once."""
    for attempt in range(2, decode_links.MAX_LINKS + 2):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            start = Start(f"r{attempt}", attempt, 5, 2, (1, 1))
            call = Call(start, "127.0.0.1", silent.getsockname()[1], Given())  # type: ignore[arg-type]
            bench.owner.ask(partial(bench.links.call, call))
            bench.owner.ask(partial(bench.links.cancel, call))
    router, port = bench.decode()
    answer = bench.call(port)
    if not answer.values:
        welcome(router)
        bench.until("r1")
        bench.owner.ask(lambda: bench.links.ended(1, "done", ""))
    return answer.get()


def test_decodes_that_have_left_take_no_place(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_links, "MAX_LINKS", 3)
    assert served_after_many(bench) == Done(1)


def test_planted_their_places_are_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_links, "MAX_LINKS", 3)
    monkeypatch.setattr(DecodeLinks, "_part", lambda self: False)
    assert served_after_many(bench) == Refused(503, "this Prefill serves 3 Decodes already", again=True)


# ---- ports of strangers -----------------------------------------------------------------------------------------------

NOBODY = 65534
STRANGER = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.readline()
    server.setblocking(False)
    try:
        print(server.accept()[0].recv(1000))
    except BlockingIOError:
        print("nobody came")
"""


@contextmanager
def stranger() -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Another user's process that listens at the port."""
    argv = [sys.executable, "-I", "-c", STRANGER, str(NOBODY)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process
        process.kill()


def asked(bench: Bench, port: int) -> str:
    """What a START that names that port is answered."""
    answer = bench.call(port).get()
    assert isinstance(answer, Refused)
    assert (answer.status, answer.again, bench.links.waiting) == (503, True, 0)
    return answer.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_start_that_names_a_port_of_another_user_tells_him_nothing(bench: Bench) -> None:
    with stranger() as (port, process):
        assert asked(bench, port) == f"Decode at 127.0.0.1:{port} is not asked: user {NOBODY} listens there, this server is user 0's"
        assert process.communicate("\n")[0] == "nobody came\n"
    router, own = bench.decode()
    bench.call(own)
    welcome(router)
    bench.until("r1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_planted_a_prefill_that_does_not_look_tells_him(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_links, "why_foreign", lambda host, port: "")
    bench = Bench(limit=0.2)
    with stranger() as (port, process):
        assert "has not answered the handshake" in asked(bench, port)
        assert "nobody came" not in process.communicate("\n")[0]
    bench.close()


def test_a_port_that_is_free_is_not_waited_for(bench: Bench) -> None:
    router, port = bench.decode()
    bench.routers.remove(router)
    router.close(linger=0)
    while not why_foreign("127.0.0.1", port):  # the library closes it in a thread of its own
        pass
    assert asked(bench, port) == f"Decode at 127.0.0.1:{port} is not asked: nobody listens there"
