"""What a peer may say at most: each field of each message, each multipart, each turn of the owner; and what a life must prove.

The limits are read from the messages themselves, so a field without one is found.
"""

from __future__ import annotations

import threading
import time
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq
from decode_tools import KINDS, PROMPT, Prefill, both, layout_of
from msgspec import Meta

from tidegate.engine import control, decode_meeting, owner
from tidegate.engine.decode_told import Wanted
from tidegate.engine.owner import Owner
from tidegate.protocol import messages
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import (
    MAX_BLOCKS,
    MAX_NAME,
    MAX_REASON,
    MAX_TOKENS,
    VERSION,
    Abort,
    Committed,
    Message,
    ReadDone,
    ReadFailed,
    RunFailed,
    Start,
    TransferId,
    decode,
    encode,
    nameable,
)

KIND = typing.get_args(Message)
SAMPLES: dict[type, object] = {int: 1, str: "a", bool: True, TransferId: TransferId(1, 1, 1), bytes: b"", tuple: ()}


def fields(kind: type[msgspec.Struct]) -> Iterator[tuple[str, type, Meta | None]]:
    """(name, type, limit) of each."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if name.startswith("__"):
            continue
        annotated = typing.get_origin(hint) is typing.Annotated
        bare = hint.__origin__ if annotated else hint
        limits = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Meta)]
        yield name, typing.get_origin(bare) or bare, limits[0] if limits else None


def without_limit(kind: type[msgspec.Struct]) -> list[str]:
    """Fields that a peer could make as large as it likes."""
    def good(bare: type, limit: Meta | None) -> bool:
        if bare in (bool, TransferId):
            return True
        if limit is None:
            return False
        return limit.max_length is not None if bare in (str, bytes, tuple) else None not in (limit.ge, limit.le or limit.lt)

    return [name for name, bare, limit in fields(kind) if not good(bare, limit)]


def test_every_field_of_every_message_has_a_limit() -> None:
    assert {kind.__name__: found for kind in (*KIND, TransferId) if (found := without_limit(kind))} == {}


class Planted(msgspec.Struct):
    request: str
    ids: bytes
    tokens: int
    prompt: typing.Annotated[tuple[int, ...], Meta(min_length=1)]
    run: messages.Nonce


def test_planted_fields_without_one_are_found() -> None:
    assert without_limit(Planted) == ["request", "ids", "tokens", "prompt"]


def beyond() -> Iterator[tuple[str, Message]]:
    """Each message with one field just beyond its limit."""
    for kind in KIND:
        good = kind(**{name: SAMPLES[bare] for name, bare, _ in fields(kind)})
        for name, bare, limit in fields(kind):
            if limit is None or name == "reason":  # which is cut where it is said
                continue
            if bare is int:
                largest = limit.le if limit.le is not None else typing.cast(int, limit.lt) - 1
                values: list[Any] = [largest + 1, typing.cast(int, limit.ge) - 1]
            else:
                many = typing.cast(int, limit.max_length) + 1
                values = [{str: "a" * many, bytes: bytes(many), tuple: (1,) * many}[bare]]
            for value in values:
                yield f"{kind.__name__}.{name}", msgspec.structs.replace(good, **{name: value})
    for name, change in (("chunk", 1 << 31), ("layer", -1), ("member", 1 << 31), ("run", 1 << 63)):
        yield f"TransferId.{name}", Committed(msgspec.structs.replace(TransferId(1, 1, 1), **{name: change}))


def test_a_field_beyond_its_limit_is_the_peers_fault_and_said_with_its_place() -> None:
    names = []
    for name, message in beyond():
        with pytest.raises(RemoteProtocolError, match=r"not a message of version \d+: Expected .* - at `\$\[") as found:
            decode(encode(message))
        assert len(str(found.value)) < 500
        names.append(name)
    assert len(set(names)) > 30


def test_what_is_just_within_is_heard() -> None:
    for message in (
        Start("n" * MAX_NAME, (1 << 63) - 1, 1, MAX_TOKENS, (1,) * 1000),
        messages.Blocks(1, 1, 1, 1, 1, bytes(4 * MAX_BLOCKS)), RunFailed("q", 1, 2, "r" * MAX_REASON),
    ):  # fmt: skip
        assert decode(encode(message)) == message
    assert len(encode(messages.Blocks(1, 1, 1, 1, 1, bytes(4 * MAX_BLOCKS)))) < control.MAX_BYTES


@pytest.mark.parametrize("made", [lambda reason: Abort("q", 1, reason), lambda reason: RunFailed("q", 1, 2, reason),
                                  lambda reason: ReadFailed(TransferId(1, 1, 1), 0, 1, 1, 1, reason)])  # fmt: skip
def test_a_reason_can_always_be_said(made: Callable[[str], Any]) -> None:
    """It is the text of whatever went wrong, and a peer that refuses it would wait for ever for what it tells."""
    for reason in ("short", "l" * 100_000, "no text: \udcff", "é" * 9000):
        message = made(reason)
        assert decode(encode(message)) == message
        assert message.reason.startswith(reason[:8])
        assert len(message.reason) <= MAX_REASON


@pytest.mark.parametrize(("wanted", "why"), [
    (Wanted("n" * (MAX_NAME + 1), (1,), 1), "names of at most 200 characters"), (Wanted("\ud800", (1,), 1), "characters of text"),
    (Wanted("q", (1,) * (MAX_TOKENS + 1), 1), "carries at most"), (Wanted("q", (), 1), "at least 1"),
])  # fmt: skip
def test_what_no_message_can_say_is_not_admitted(wanted: Wanted, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        wanted.check()
    Wanted("n" * MAX_NAME, (1,), 1).check()
    assert nameable("é" * MAX_NAME)


# ---- multiparts, and turns ----------------------------------------------------------------------------------------------


def test_a_multipart_without_measure_is_one_fault_and_ours_are_cut_in_time() -> None:
    one, context = encode(Committed(TransferId(1, 1, 1))), zmq.Context[zmq.Socket[bytes]]()
    taken: list[Message] = []
    with pytest.raises(RemoteProtocolError, match=f"{control.MAX_FRAMES + 1} messages at once"):
        control.each([one] * (control.MAX_FRAMES + 1), taken.append, lambda error: None)
    assert not taken
    router, port = control.bind(context, 0)
    dealer = control.connect(context, port)
    out = control.Outbox(dealer)
    for _ in range(2 * control.MAX_FRAMES + 3):
        out.add(Committed(TransferId(1, 1, 1)))
    out.flush()
    heard = [router.recv_multipart()[2:] for _ in range(3)]
    for bodies in heard:
        control.each(bodies, taken.append, pytest.fail)
    assert [len(bodies) for bodies in heard] == [control.MAX_FRAMES, control.MAX_FRAMES, 3]
    assert len(taken) == 2 * control.MAX_FRAMES + 3
    for socket in (dealer, router):
        socket.close(linger=0)
    context.term()


def answered_in_a_flood() -> bool:
    """Is a call answered by an owner whose socket is never empty?"""
    context = zmq.Context[zmq.Socket[bytes]]()
    socket, port = control.bind(context, 0)
    dealer, over = control.connect(context, port), threading.Event()

    def again(frames: list[bytes]) -> None:
        # it is there before the next one is looked for
        if not over.is_set():
            dealer.send(b"more")
            socket.poll(1000)

    one = Owner("flooded", socket, on_frames=again, on_tick=lambda: None, after=lambda: None, on_crash=lambda error: None, tick=60.0)
    for _ in range(10):
        dealer.send(b"more")
    one.start()
    time.sleep(0.1)
    answer = threading.Thread(target=lambda: one.ask(lambda: None), daemon=True)
    answer.start()
    answer.join(5.0)
    answered = not answer.is_alive()
    over.set()
    one.stop()
    dealer.close(linger=0)
    context.term()
    return answered


def test_who_never_stops_talking_keeps_nobody_else_waiting() -> None:
    assert answered_in_a_flood()


def test_planted_one_who_never_stops_is_heard_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "MOST", 1 << 60)
    assert not answered_in_a_flood()


def test_faults_of_peers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    one = Owner("logs", None, on_frames=None, on_tick=lambda: None, after=lambda: None, on_crash=lambda error: None, tick=60.0)
    try:
        for number in range(5000):
            one.drop(RemoteProtocolError("bad", machine="test", state="s" * 10_000, event=number))
    finally:
        one._epoll.close()
    assert one.refused == 5000
    assert owner.LOGGED <= len(caplog.records) < 5000 / 10
    assert all(len(record.getMessage()) < 2000 for record in caplog.records)


# ---- who is met ------------------------------------------------------------------------------------------------------------


def taken_by_strangers() -> int:
    """How many places strangers hold, that know where a Prefill serves its memory, and nothing else."""
    layout = layout_of({0: KINDS, 1: KINDS})
    with both(layout) as (engine, prefill, crashed):
        context = zmq.Context[zmq.Socket[bytes]]()
        for life in range(5):
            stranger = control.connect(context, engine.port)
            hello = control.Hello(VERSION, 1000 + life, layout.digest, prefill._server.address)
            stranger.send_multipart([control.HELLO, control.frame(hello)])
            assert stranger.poll(10_000)
            welcome = control.parse_welcome(stranger.recv_multipart()[1])
            assert not welcome.refused or "is not of that life" in welcome.refused
            stranger.close(linger=0)
        context.term()
        engine.admit("real", range(PROMPT), new_tokens=2)
        start = prefill.hear()
        if isinstance(start, Start):
            assert isinstance(prefill.serve(start, 1), ReadDone), "the real one is served all the same"
        assert not crashed.is_set()
        return len(engine.core.peers.lives) - 1


def test_an_invented_life_that_names_the_memory_of_another_holds_nothing() -> None:
    assert taken_by_strangers() == 0


def test_planted_a_life_is_believed_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    class Believed(int):
        def __ne__(self, other: object) -> bool:
            return False

    real = decode_meeting.fetch_memory

    def careless(address: str) -> Any:
        memory = real(address)
        memory.life = Believed(memory.life)
        return memory

    monkeypatch.setattr(decode_meeting, "fetch_memory", careless)
    assert taken_by_strangers() == 5


def test_one_address_is_looked_into_once_at_a_time_whatever_lives_are_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names one that answers slowly keeps one thread, and the others are for others."""
    layout, release, asked = layout_of({0: KINDS, 1: KINDS}), threading.Event(), []
    with both(layout) as (engine, _, crashed):
        real = decode_meeting.fetch_memory

        def slow(address: str) -> Any:
            asked.append(address)
            if address == "slow":
                release.wait(20)
            return real(address)

        monkeypatch.setattr(decode_meeting, "fetch_memory", slow)
        context = zmq.Context[zmq.Socket[bytes]]()
        stranger = control.connect(context, engine.port)
        for life in range(decode_meeting.AT_ONCE + 4):
            stranger.send_multipart([control.HELLO, control.frame(control.Hello(VERSION, 1000 + life, layout.digest, "slow"))])
        second = Prefill(engine.port, layout)
        assert second.welcome.refused == ""
        assert asked.count("slow") == 1
        release.set()
        second.close()
        stranger.close(linger=0)
        context.term()
        assert not crashed.is_set()
