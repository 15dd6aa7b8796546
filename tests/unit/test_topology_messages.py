"""Topology arithmetic for any P TP that is a multiple of D TP; messages that are exactly what they say."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import Send
from tidegate.protocol.errors import LocalProtocolError, RemoteProtocolError
from tidegate.protocol.messages import (
    VERSION,
    Abort,
    Committed,
    Message,
    ReadDone,
    Ready,
    Retire,
    RunFailed,
    Start,
    TransferId,
    decode,
    encode,
)
from tidegate.protocol.prefill import PrefillSession
from tidegate.protocol.topology import SlotPlan, Topology, share


@given(d_tp=st.integers(1, 8), ratio=st.integers(1, 8), blocks=st.integers(0, 100), first=st.integers(0, 50))
def test_members_cover_the_indexer_once_and_main_comes_from_one(d_tp: int, ratio: int, blocks: int, first: int) -> None:
    t = Topology(p_tp=d_tp * ratio, d_tp=d_tp)
    for d_rank in range(d_tp):
        group = t.group(d_rank)
        assert [t.d_rank(p) for p in group] == [d_rank] * ratio
        assert [t.member(p) for p in group] == list(range(ratio))
        assert sorted(b for p in group for b in t.indexer_blocks(p, blocks)) == list(range(blocks))
        assert sorted(b for p in group for b in t.indexer_blocks(p, blocks, first=first)) == list(range(blocks))
        assert sum(t.sends_main(p) for p in group) == 1
    assert sorted(b for p in range(t.p_tp) for b in t.main_blocks(p, blocks, first=first)) == list(range(blocks))
    assert not any(t.main_blocks(p, blocks, first=first) for p in range(t.p_tp) if not t.sends_main(p))
    assert sorted(p for d in range(d_tp) for p in t.group(d)) == list(range(t.p_tp))


def test_what_is_left_over_goes_round() -> None:
    assert [[*share(1, index, 3, first=first)] for first in range(4) for index in range(3)] == [
        [0], [], [], [], [0], [], [], [], [0], [0], [], [],
    ]  # fmt: skip
    assert [[*share(5, index, 2, first=1)] for index in range(2)] == [[3, 4], [0, 1, 2]]


@given(d_tp=st.integers(1, 8), dp=st.integers(1, 8))
def test_ports_are_disjoint(d_tp: int, dp: int) -> None:
    t = Topology(p_tp=d_tp, d_tp=d_tp)
    ports = [t.port(9000, dp_rank=i, d_rank=k) for i in range(dp) for k in range(d_tp)]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize(("p", "d"), [(1, 2), (3, 2), (0, 1), (4, 0)])
def test_a_topology_that_cannot_be_is_refused_by_both_sizes(p: int, d: int) -> None:
    with pytest.raises(ValueError, match=f"p_tp={p}, d_tp={d}"):
        Topology(p_tp=p, d_tp=d)


@pytest.mark.parametrize(("kv_port", "dp_rank"), [(0, 0), (65535, 1), (-5, 2)])
def test_a_port_that_no_socket_has_is_refused(kv_port: int, dp_rank: int) -> None:
    with pytest.raises(ValueError, match=f"kv_port={kv_port} gives port {kv_port + dp_rank}"):
        Topology().port(kv_port, dp_rank=dp_rank, d_rank=0)


def test_a_rank_outside_its_group_is_refused() -> None:
    for ask in (lambda: Topology(p_tp=2).member(2), lambda: Topology(p_tp=2).d_rank(-1), lambda: Topology().group(1)):
        with pytest.raises(ValueError, match=r"outside 0\.\."):
            ask()


def test_a_plan_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shared layers \[4\] are outside 1\.\.3"):
        SlotPlan(layers=3, shared=frozenset({4}))
    with pytest.raises(ValueError, match="2 shared layers need at least one slot"):
        SlotPlan(layers=3, shared=frozenset({1, 2}), shared_slots=0)


@given(layers=st.integers(1, 12), buffers=st.integers(1, 5), data=st.data())
def test_slots_are_i_plus_min_b_r_without_a_gap(layers: int, buffers: int, data: st.DataObject) -> None:
    own = frozenset(data.draw(st.sets(st.integers(1, layers))))
    plan = SlotPlan.make(layers=layers, independent=own, buffers=buffers)
    assert plan.slots == tuple(range(len(own) + min(buffers, layers - len(own))))
    for layer in own:
        assert sum(plan.slot_of(other) == plan.slot_of(layer) for other in range(1, layers + 1)) == 1


READY = Ready("q", 5, TransferId(7, 1, 2), 0, 3, 11, 0, 4, True)


def test_messages_survive_the_wire() -> None:
    for message in (READY, Start("q", 1, 2, 3, (1, 2, 3)), Committed(TransferId(1, 2, 3))):
        assert decode(encode(message)) == message


@pytest.mark.parametrize("data", [b"", b"\x09", encode(READY)[:-3], encode(READY) + b"x", bytes((VERSION + 1,)) + encode(READY)[1:]])
def test_what_is_not_exactly_a_message_is_a_remote_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)


@given(st.binary(max_size=60))
def test_noise_is_a_message_or_a_remote_error(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode(bytes((VERSION,)) + data)


def sessions() -> tuple[PrefillSession, DecodeSession]:
    plan = SlotPlan.make(layers=2, independent=frozenset(), buffers=1)
    return PrefillSession(plan=plan, chunk_tokens=4, new_run=lambda s: len(s.runs) + 1), DecodeSession(layers=2)


def test_a_report_about_other_contents_is_refused_and_changes_nothing() -> None:
    """The peer names a transfer in an epoch or slot that it never had; or one side speaks of another life's work."""
    p, _ = sessions()
    p.receive(Start("q", 1, 1, 4))
    p.claim(1)
    p.write(1)
    before = p.snapshot()
    ready = next(iter(p.readies.values()))
    for slot, epoch, life in ((1, ready.epoch, 1), (0, ready.epoch + 1, 1)):
        with pytest.raises(RemoteProtocolError, match="never published so"):
            p.receive(ReadDone(ready.transfer, slot, epoch, life, 1))
    with pytest.raises(RemoteProtocolError):
        p.receive(ReadDone(TransferId(9, 1, 1), 0, 1, 1, 1))
    assert p.receive(ReadDone(ready.transfer, 0, ready.epoch, 9, 1)) == [], "of another life of Prefill"
    assert p.receive(ReadDone(ready.transfer, 0, ready.epoch, 1, 9)) == [], "by another life of Decode"
    assert p.snapshot() == before


def test_an_illegal_call_names_machine_state_and_story_and_changes_nothing() -> None:
    p, d = sessions()
    p.receive(Start("q", 1, 1, 4))
    before = p.snapshot()
    with pytest.raises(LocalProtocolError, match=r"PhysicalBuffer: Write .* is refused") as refused:
        p.write(1)
    assert "before this: Deliver(" in str(refused.value)
    assert p.snapshot() == before
    d.admit(1, request="q", tokens=4)
    with pytest.raises(LocalProtocolError, match="not everything has arrived"):
        d.schedule(1)


def test_a_ready_that_contradicts_an_earlier_one_is_refused() -> None:
    _, d = sessions()
    d.admit(5, request="q", tokens=4)
    d.registered(5)
    d.receive(READY)
    before = d.snapshot()
    with pytest.raises(RemoteProtocolError, match="other contents"):
        d.receive(Ready("q", 5, READY.transfer, 1, 4, 11, 0, 4, True))
    with pytest.raises(RemoteProtocolError, match="within 2 layers"):
        d.receive(Ready("q", 5, TransferId(7, 1, 3), 0, 3, 11, 0, 4, True))
    assert d.snapshot() == before


CHANGED = {"request": "p", "slot": 1, "epoch": 4, "incarnation": 12, "start": 1, "stop": 3, "final": False, "table": 1}


@pytest.mark.parametrize("field", CHANGED)
def test_a_ready_that_is_said_again_says_the_same(field: str) -> None:
    _, d = sessions()
    d.admit(5, request="q", tokens=4)
    d.registered(5)
    d.receive(READY)
    before = d.snapshot()
    assert d.receive(READY) == []
    with pytest.raises(RemoteProtocolError, match="other contents"):
        d.receive(msgspec.structs.replace(READY, **{field: CHANGED[field]}))
    assert d.snapshot() == before


@pytest.mark.parametrize("strange", [TransferId(0, 1, 1), TransferId(7, 0, 1), TransferId(7, 1, 0), TransferId(7, 1, 3),
                                     TransferId(7, 1, 1, 1), TransferId(7, 1, 1, -1)])  # fmt: skip
def test_a_ready_of_no_chunk_layer_or_member_is_refused(strange: TransferId) -> None:
    _, d = sessions()
    d.admit(5, request="q", tokens=4)
    d.registered(5)
    before = d.snapshot()
    with pytest.raises(RemoteProtocolError, match="within 2 layers and 1 members"):
        d.receive(msgspec.structs.replace(READY, transfer=strange))
    assert d.snapshot() == before


@pytest.mark.parametrize(("member", "message", "why"), [
    (1, Start("q", 5, 1, 4), "to the group's leader"), (1, Retire("q", 5), "to the group's leader"),
    (1, Abort("q", 5, "", 0), "this is member 1"), (0, Abort("q", 5, "", 1), "this is member 0"),
    (0, Start("q", 5, 1, 0), "at least one token"), (0, Start("q", 0, 1, 4), "a positive attempt nonce"),
])  # fmt: skip
def test_what_another_member_or_nobody_should_hear_is_refused(member: int, message: Message, why: str) -> None:
    plan = SlotPlan.make(layers=2, independent=frozenset(), buffers=1)
    p = PrefillSession(plan=plan, chunk_tokens=4, new_run=lambda s: s.last_run + 1, member=member, members=2)
    if member:
        p.join(7, Start("q", 5, 1, 4))
    else:
        p.receive(Start("q", 5, 1, 4))
    before = p.snapshot()
    with pytest.raises(RemoteProtocolError, match=why):
        p.receive(message)
    assert p.snapshot() == before


def test_what_the_leader_alone_does_no_other_member_does_and_the_reverse() -> None:
    plan, start = SlotPlan.make(layers=2, independent=frozenset(), buffers=1), Start("q", 5, 1, 4)
    leader, other = (PrefillSession(plan=plan, chunk_tokens=4, new_run=lambda s: 7, member=member, members=2) for member in (0, 1))
    with pytest.raises(LocalProtocolError, match="Join 7 is refused"):
        leader.join(7, start)
    leader.receive(start)
    other.join(7, start)
    for session in (leader, other):
        session.stop(7, "it failed elsewhere")
    assert [type(effect.message) for effect in leader.resend_failed(7) if isinstance(effect, Send)] == [RunFailed]
    with pytest.raises(LocalProtocolError, match="ResendFailed 7 is refused"):
        other.resend_failed(7)
    with pytest.raises(LocalProtocolError, match="Retire 7 is refused"):
        leader.heed(7)
    other.heed(7)
    with pytest.raises(LocalProtocolError, match="Retire 7 is refused"):
        other.heed(7)


def test_each_member_is_told_of_an_abort() -> None:
    d = DecodeSession(layers=2, members=3)
    d.admit(5, request="q", tokens=4)
    said = [effect.message for effect in d.abort(5, "enough") if isinstance(effect, Send)]
    assert said == [Abort("q", 5, "enough", member) for member in range(3)]
