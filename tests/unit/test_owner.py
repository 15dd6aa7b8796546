"""The thread that owns a session, the handshake, and the injector: each rule, on loopback and without a worker."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
import zmq

from tidegate.engine import control
from tidegate.engine.config import ConfigError, FaultSpec, Request, RunConfig
from tidegate.engine.copying import Work
from tidegate.engine.decode_meeting import Fetched, Meetings, fetch
from tidegate.engine.decode_memory import DecodeMemory
from tidegate.engine.decode_peers import Peers
from tidegate.engine.faults import Injector
from tidegate.engine.owner import Owner
from tidegate.engine.paged_rows import RowKind
from tidegate.engine.pool_client import pid_namespace, this_process
from tidegate.engine.pull_shm import ShmPull
from tidegate.engine.slot_layout import plan_layout
from tidegate.engine.slots import MemoryServer, SharedMemory
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import VERSION, decode
from tidegate.protocol.topology import Topology


class Bench:
    """An Owner over a ROUTER, and a DEALER that talks to it."""

    def __init__(self, on_frames: Callable[[list[bytes]], None], tick: float) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket, self.port = control.bind(self.context, 0)
        self.ticks: list[float] = []
        self.looks = 0
        self.crashes: list[BaseException] = []
        self.crashed = threading.Event()
        self.owner = Owner("bench", socket, on_frames=on_frames, on_tick=lambda: self.ticks.append(time.monotonic()),
                           after=self._look, on_crash=self._crash, tick=tick)  # fmt: skip
        self.dealer = control.connect(self.context, self.port)
        self.owner.start()

    def _look(self) -> None:
        self.looks += 1

    def _crash(self, error: BaseException) -> None:
        self.crashes.append(error)
        self.crashed.set()

    def close(self) -> None:
        if not self.crashes:
            self.owner.stop()
        self.dealer.close(linger=0)
        self.context.term()


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(on_frames: Callable[[list[bytes]], None] = lambda frames: None, tick: float = 60.0) -> Bench:
        made.append(Bench(on_frames, tick))
        return made[-1]

    yield make
    for one in made:
        one.close()


class LatePost(deque[Any]):
    """Calls `late`, once, when the owner has found that no call is left."""

    late: Callable[[], None] | None = None

    def __len__(self) -> int:
        if not (left := super().__len__()) and self.late is not None:
            late, self.late = self.late, None
            late()
        return left


def test_a_call_that_is_posted_when_the_last_one_has_just_been_made_is_not_overlooked(bench: Callable[..., Bench]) -> None:
    b, heard = bench(), threading.Event()  # which ticks once a minute
    b.owner._calls = calls = LatePost()
    calls.late = lambda: b.owner.post(heard.set)
    b.owner.post(int)
    assert heard.wait(20)


def test_calls_run_in_one_thread_in_order_and_errors_go_to_the_asker(bench: Callable[..., Bench]) -> None:
    b = bench()
    seen: list[int] = []
    for n in range(100):
        b.owner.post(lambda n=n: seen.append(n))
    thread = b.owner.ask(threading.current_thread)
    assert seen == list(range(100))
    assert thread.name == "bench"
    with pytest.raises(KeyError):
        b.owner.ask(lambda: {}["nothing"])
    assert b.owner.ask(lambda: 7) == 7


def test_a_message_that_breaks_the_protocol_is_dropped_and_the_next_one_heard(bench: Callable[..., Bench]) -> None:
    heard = threading.Event()

    def on_frames(frames: list[bytes]) -> None:
        if frames[1] == b"bad":
            raise RemoteProtocolError("bad", machine="test", state="-", event=frames)
        heard.set()

    b = bench(on_frames)
    b.dealer.send_multipart([b"bad"])
    b.dealer.send_multipart([b"good"])
    assert heard.wait(10)
    assert b.owner.refused == 1


def test_it_sleeps_until_something_happens(bench: Callable[..., Bench]) -> None:
    b = bench(tick=0.1)
    b.owner.ask(lambda: None)
    before = b.looks
    threading.Event().wait(0.55)
    assert 2 <= len(b.ticks) <= 7
    assert b.looks - before <= len(b.ticks) + 2, "it woke up for nothing"


def test_an_error_in_a_posted_call_ends_the_worker(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.owner.post(lambda: [][0])
    assert b.crashed.wait(10)
    assert isinstance(b.crashes[0], IndexError)


def test_whoever_asks_while_it_fails_and_later_hears_why(bench: Callable[..., Bench]) -> None:
    b, held, told = bench(), threading.Event(), queue.Queue[str]()

    def ask() -> None:
        with pytest.raises(RuntimeError) as error:
            b.owner.ask(int)
        told.put(str(error.value))

    b.owner.post(held.wait)
    b.owner.post(lambda: [][0])
    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    while not b.owner._calls or not b.owner._asked:
        threading.Event().wait(0.005)
    held.set()
    assert told.get(timeout=20) == "bench failed: list index out of range"
    ask()
    assert told.get(timeout=20) == "bench failed: list index out of range"
    asker.join()


@pytest.mark.parametrize("parse", [control.parse_hello, control.parse_welcome])
@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"version":7,"incarnation":1,"digest":"","memory":""}', b'{"x":' + b"[" * 9999])
def test_a_handshake_that_is_none_is_refused(parse: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(data)


@pytest.mark.parametrize("change", [{"incarnation": 1 << 63}, {"incarnation": 0}, {"memory": "m" * 201}, {"others": ("m",) * 1024}])
def test_a_hello_beyond_all_measure_is_refused(change: dict[str, Any]) -> None:
    good = control.Hello(VERSION, 1, "digest", "memory")
    assert control.parse_hello(control.frame(good)) == good
    with pytest.raises(RemoteProtocolError):
        control.parse_hello(control.frame(msgspec.structs.replace(good, **change)))


def test_a_message_that_nests_is_refused_like_any_other() -> None:
    """Each level is a call of the parser, even where the value is none that anybody wants."""
    for_nobody = bytes((VERSION, 0x94)) + b"\xa9COMMITTED" + b"\x94\x01\x01\x01\x00" + b"\x91" * 9999
    with pytest.raises(RemoteProtocolError, match="recursion"):
        decode(for_nobody)


def test_a_message_without_measure_is_not_taken_in(bench: Callable[..., Bench]) -> None:
    heard: Any = queue.Queue()
    b = bench(lambda frames: heard.put(len(frames[1])))
    stranger = control.connect(b.context, b.port)
    stranger.setsockopt(zmq.LINGER, 0)
    for size in (control.MAX_BYTES, control.MAX_BYTES + 1):
        stranger.send(bytes(size))
    assert heard.get(timeout=60) == control.MAX_BYTES
    b.dealer.send(b"good")
    assert heard.get(timeout=60) == 4
    stranger.close()


LAYOUT = plan_layout([0, 1, 0], {"main": 4, "index": 2}, "float32", blocks=6, block_size=4)


def own_memory(layers: int = 3, block_size: int = 4) -> DecodeMemory:
    kinds = [RowKind("main", "float32", 4), RowKind("index", "float32", 2)]
    return DecodeMemory(kinds, layers=layers, blocks=7, block_size=block_size, rows=2, hot=4)


def peers_of(backend: ShmPull, own: DecodeMemory, context: zmq.Context[zmq.Socket[bytes]]) -> Peers:
    return Peers(backend, own, incarnation=3, socket=context.socket(zmq.ROUTER))


def meet(peers: Peers, hello: control.Hello) -> control.Welcome:
    return peers.meet(b"a", hello, partial(fetch, hello, peers.topology))


@pytest.fixture
def met() -> Iterator[tuple[Peers, control.Hello]]:
    memory, backend, context = SharedMemory.allocate(LAYOUT), ShmPull(), zmq.Context[zmq.Socket[bytes]]()
    server = MemoryServer(memory, f"tidegate-test-{threading.get_ident()}-{time.monotonic_ns()}", 11)
    peers = peers_of(backend, own_memory(), context)
    yield peers, control.Hello(VERSION, 11, LAYOUT.digest, server.address)
    server.close()
    backend.close()
    peers.close()
    memory.close()
    context.destroy(linger=0)


def test_a_peer_is_met_once_and_told_what_is_mapped(met: tuple[Peers, control.Hello]) -> None:
    peers, hello = met
    for wrong in ({"digest": "0" * 16}, {"memory": "tidegate-nobody"}, {"others": (hello.memory,)}):
        assert meet(peers, msgspec.structs.replace(hello, **wrong)).refused
        assert not peers.lives
    with pytest.raises(RemoteProtocolError, match="has not introduced himself"):
        peers.speaker(b"a")
    for _ in range(2):
        assert meet(peers, hello) == control.Welcome(VERSION, 3, LAYOUT.digest, "", (tuple(this_process()),), pid_namespace())
    assert list(peers.lives) == [11]
    peers.speaker(b"a")
    with pytest.raises(RemoteProtocolError):
        peers.speaker(b"b")


def let_go(before: int) -> bool:
    """Has this process so many descriptors again, soon?"""
    end = time.monotonic() + 10
    while (now := len(os.listdir("/proc/self/fd"))) > before and time.monotonic() < end:
        threading.Event().wait(0.01)
    return now <= before


def test_of_memories_that_are_not_all_there_none_stays_mapped(met: tuple[Peers, control.Hello]) -> None:
    _, hello = met
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="tidegate-nobody"):
        fetch(msgspec.structs.replace(hello, others=("tidegate-nobody",)), Topology(p_tp=2))
    assert let_go(before)


def test_one_hello_of_a_life_is_looked_into_at_a_time_and_the_next_one_again(met: tuple[Peers, control.Hello]) -> None:
    _, hello = met
    posted: Any = queue.Queue()
    told: list[Fetched] = []
    meetings = Meetings(Topology(), posted.put)
    for _ in range(2):
        meetings.begin(hello, told.append)
        meetings.begin(hello, told.append)
        posted.get(timeout=60)()
    assert (len(told), posted.qsize()) == (2, 0)
    for fetched in told:
        for memory in fetched():
            memory.close()


def test_what_is_fetched_when_nobody_wants_it_any_more_is_let_go_of(met: tuple[Peers, control.Hello]) -> None:
    _, hello = met
    posted: Any = queue.Queue()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    meetings = Meetings(Topology(), posted.put)
    meetings.close()
    meetings.begin(hello, lambda fetched: None)
    end = time.monotonic() + 10
    while threading.active_count() > threads and time.monotonic() < end:
        threading.Event().wait(0.01)
    assert let_go(before)
    assert posted.empty()


@pytest.mark.parametrize(("layers", "block_size", "why"), [
    (4, 4, "3 layers, Decode 4"), (3, 8, "blocks of 4 tokens, Decode of 8: give both one block_size"),
])  # fmt: skip
def test_a_peer_of_another_shape_is_refused(met: tuple[Peers, control.Hello], layers: int, block_size: int, why: str) -> None:
    _, hello = met
    context = zmq.Context[zmq.Socket[bytes]]()
    assert why in meet(peers_of(ShmPull(), own_memory(layers, block_size), context), hello).refused
    context.destroy(linger=0)


def test_faults_hit_the_nth_match_and_are_counted() -> None:
    specs = (FaultSpec(where="read", mode="quiet", layer=2, nth=2), FaultSpec(where="send", what="READY", mode="lose", nth=1),
             FaultSpec(where="attend", delay=0.5, chunk=3))  # fmt: skip
    injector = Injector(specs)
    copies = injector.copies()
    assert copies is not None
    asked = [copies("read", Work(0, 1, {"layer": layer, "chunk": 1})) for layer in (1, 2, 3, 2, 2)]
    assert [fault and fault.mode for fault in asked] == [None, None, None, "quiet", None]
    assert [injector.copies_of(tag) for tag in ("COMMITTED", "READY", "READY")] == [1, 0, 1]
    assert [injector.attend_delay(1, chunk) for chunk in (2, 3)] == [0, 0.5]
    assert injector.injected == 3
    assert Injector(()).copies() is None


@pytest.mark.parametrize(("changes", "why"), [
    ({"requests": ()}, "no prompt"), ({"requests": (Request("a", ()),)}, "a prompt is empty"), ({"chunk": 0}, "chunk is 0"),
    ({"block_size": 0}, "block_size is 0"), ({"num_blocks": 1, "block_size": 1}, "num_blocks is 1: the longest prompt needs 2"),
    ({"requests": (Request("a", (999,)),)}, "token 999"), ({"hot_buffer": 1}, "topk_buffer_size is 1: .* give 128"),
    ({"hot_buffer": 100, "block_size": 24}, "topk_buffer_size is 100: .* blocks of 24 tokens .* index_topk = 64 rows; give 120, or"),
    ({"hot_buffer": 48, "block_size": 24}, "topk_buffer_size is 48: .* give 72"),
    ({"block_size": 100000}, "blocks of 100000 tokens .*; give 100000, or another block_size"),
    ({"port": 9000, "decode_port": 9000}, "^port and decode port are both 9000: give each server its own port"),
    ({"requests": (Request("a", (1,) * 65536),)}, "the model ends at 65536; give a shorter prompt or fewer"), ({"port": -1}, "port is -1"),
    ({"model": {"dtype": "float8"}}, "dtype is 'float8'"), ({"model": {"layers": 3}}, "unknown model field"),
    ({"resend_seconds": 0}, "resend interval"), ({"deadline_seconds": 0}, "deadline"), ({"concurrency": 0}, "concurrency"),
    ({"read_lease": math.inf}, "read lease is inf: give a finite number"), ({"deadline_seconds": math.nan}, "deadline is nan"),
    ({"retry_delay": math.inf}, "retry delay is inf"), ({"host_memory_gib": math.inf}, "host memory gib is inf"),
    ({"preempt_after": -1}, "preempt_after_tokens is -1"),
    ({"pull_threads": 0}, "pull threads"), ({"read_lease": -0.1}, "read lease"), ({"new_tokens": 0}, "new tokens"),
    ({"independent_layers": (9,)}, "independent_layers names"), ({"shared_buffers": 0}, "shared_buffers is 0"),
])  # fmt: skip
def test_a_configuration_that_cannot_run_is_refused_in_one_line(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        RunConfig(**({"requests": (Request("a", (1, 2)),)} | changes)).checked()
    assert "\n" not in str(refused.value)
