"""Each kind of message lost, and each kind doubled; strangers at the port: only the request concerned notices, if any does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import zmq
from gate_tools import failing, small
from pair_tools import TEXT, run, slow

from tidegate.engine import control
from tidegate.engine.config import FaultSpec, Request
from tidegate.engine.worker_io import Line
from tidegate.protocol.messages import VERSION, Committed, Start, TransferId, encode
from tidegate.spec.trace import check


def lost(tag: str, nth: int = 1) -> FaultSpec:
    return failing("send", "lose", what=tag, nth=nth)


def doubled(*tags: str) -> tuple[FaultSpec, ...]:
    return tuple(failing("send", "double", what=tag) for tag in tags)


def four(length: int = 150) -> tuple[Request, ...]:
    return tuple(Request(name, tuple(TEXT[n : n + length])) for n, name in enumerate(("one", "two", "three", "four")))


def test_every_message_lost_once(tmp_path: Path) -> None:
    """one: its START is lost, and then its ABORT.  two: a read fails, its READ_FAILED and the REVOKED are lost.  three: a save fails,
    so the run does, and RUN_FAILED is lost, and said again.  four meets lost READY, READ_DONE and COMMITTED, and comes out right."""
    c = small(
        requests=four(), concurrency=4, trace=str(tmp_path), abort_after={"one": 1.0}, deadline_seconds=60.0,
        decode_faults=(
            lost("START"), lost("ABORT"), lost("READ_FAILED"), lost("READ_DONE", 22),
            failing("read", "quiet", layer=2, chunk=2, nth=1),
        ),
        prefill_faults=(
            lost("BLOCKS", 3), lost("REVOKED"), lost("RUN_FAILED"), lost("READY", 25), lost("COMMITTED", 22),
            failing("save", "quiet", layer=1, chunk=1, nth=2),
        ),
    )  # fmt: skip
    result, compared = run(c)
    one, two, three, four_ = (result.results[n] for n in range(4))
    assert (one.ok, two.ok, three.ok, four_.ok) == (False, False, False, True)
    assert "the client gave up" in one.text
    assert "layer 2" in two.text
    assert "is not in the pool" in three.text
    assert compared[3].equal
    assert result.stats["decode"]["injected"] == 5
    assert result.stats["prefill"]["injected"] == 6
    assert result.stats["decode"]["places_free"] == 4
    assert result.stats["prefill"]["slots_free"] == result.stats["prefill"]["slots"]
    assert check(tmp_path).attempts == 4


def test_a_start_that_is_lost_is_ended_by_the_deadline_of_decode(tmp_path: Path) -> None:
    """Nobody says START again, and Prefill never hears of the request: its end is Decode's own clock, and the next one comes right."""
    c = small(requests=four()[:2], concurrency=1, trace=str(tmp_path), deadline_seconds=10.0, decode_faults=(lost("START"),))
    result, compared = run(c)
    assert [result.results[n].ok for n in range(2)] == [False, True]
    assert "not complete after 10 s" in result.results[0].text
    assert compared[1].equal
    assert result.stats["decode"]["places_free"] == c.concurrency
    assert check(tmp_path).attempts == 2


def test_every_message_doubled(tmp_path: Path) -> None:
    """one fails by a read, two by a save, three is aborted, four comes out right, over two runs of each."""
    c = small(
        requests=four(), concurrency=4, trace=str(tmp_path), abort_after={"three": 1.0}, deadline_seconds=60.0,
        decode_faults=(
            *doubled("START", "READ_DONE", "READ_FAILED", "ABORT"), failing("read", "quiet", layer=2, chunk=2, nth=1),
            slow("read", 2.0, layer=7, chunk=3),
        ),
        proxy_faults=doubled("START"),
        prefill_faults=(
            *doubled("BLOCKS", "READY", "COMMITTED", "REVOKED", "RUN_FAILED"), failing("save", "quiet", layer=1, chunk=1, nth=3),
        ),
    )  # fmt: skip
    result, compared = run(c)
    assert not result.results[0].ok
    assert "layer 2" in result.results[0].text
    assert not result.results[2].ok
    assert "the client gave up" in result.results[2].text
    assert compared[3].equal
    assert result.stats["decode"]["places_free"] == 4
    assert check(tmp_path).attempts == 4


def test_strangers_and_garbage_are_counted_and_change_nothing() -> None:
    sent = 0

    def visit(role: str, line: Line) -> None:
        nonlocal sent
        if role != "decode" or line.kind != "ready":
            return
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = control.connect(context, line.port)
        hello = control.Hello(99, 5, "digest", "nowhere")
        foreign = encode(Start("same", 1, 1, 4))
        for frames in (
            [b""], [b"\x00" * 70], [control.HELLO, b"{}"], [control.HELLO, control.frame(hello)], [b"what", b"is", b"this"],
            [control.MESSAGE, foreign], [control.MESSAGE, bytes((9,)) + foreign[1:]],
            [control.MESSAGE, encode(Committed(TransferId(1, 1, 1)))],
        ):  # fmt: skip
            socket.send_multipart(frames)
            sent += 1
        socket.send_multipart([control.HELLO, control.frame(msgspec.structs.replace(hello, version=VERSION))])
        assert control.parse_welcome(socket.recv_multipart()[1]).refused
        socket.close()
        context.term()

    c = small()
    result, compared = run(c, on_line=visit)
    assert all(one.equal for one in compared), compared
    assert result.stats["decode"]["refused"] == sent


def test_every_message_in_any_order(tmp_path: Path) -> None:
    """What each side says together comes mixed, and some of it later than what it says next, chunk after chunk: all come out right."""
    mixed = failing("wire", "reorder")
    c = small(
        requests=four(), concurrency=4, trace=str(tmp_path), deadline_seconds=60.0, resend_seconds=0.2, prefill_faults=(mixed,),
        decode_faults=(mixed,),
    )  # fmt: skip
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    assert result.stats["prefill"]["injected"] > 10
    assert result.stats["decode"]["injected"] > 10
    assert result.stats["decode"]["places_free"] == 4
    assert result.stats["prefill"]["slots_free"] == result.stats["prefill"]["slots"]
    assert check(tmp_path).attempts == 4


def test_failures_that_are_told_in_any_order(tmp_path: Path) -> None:
    """A read fails, a save does, and three is aborted: their ends overtake what was said before them, and nobody else is harmed.  Whom the
    first two meet is for the order to say."""
    mixed = failing("wire", "reorder")
    c = small(
        requests=four(), concurrency=4, trace=str(tmp_path), abort_after={"three": 1.0}, deadline_seconds=60.0, resend_seconds=0.2,
        decode_faults=(mixed, failing("read", "quiet", layer=2, chunk=2, nth=1), slow("read", 2.0, layer=7, chunk=3)),
        prefill_faults=(mixed, failing("save", "quiet", layer=1, chunk=1, nth=3)),
    )  # fmt: skip
    result, compared = run(c)
    ends = [[why for why in ("layer 2", "not in the pool", "the client gave up") if why in one.text] for one in result.results.values()]
    failed = [whys for whys, one in zip(ends, result.results.values(), strict=True) if not one.ok]
    assert 2 <= len(failed) <= 3
    assert all(len(whys) == 1 for whys in failed), result.results
    assert all(one.equal for one, told in zip(compared, result.results.values(), strict=True) if told.ok)
    assert result.stats["decode"]["places_free"] == 4
    assert check(tmp_path).attempts == 4
