"""What the sessions refuse: at every point of a schedule, whatever the model does not offer there; and a nonce that was used.  A
refused event changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stateful.test_schedules import SHAPES, points

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import Effect
from tidegate.protocol.errors import LocalProtocolError, RemoteProtocolError
from tidegate.protocol.messages import Start, TransferId
from tidegate.protocol.prefill import PrefillSession
from tidegate.protocol.topology import SlotPlan
from tidegate.spec.schedule import say_label
from tidegate.spec.world import Label, World

PREFILL: dict[str, Callable[..., Any]] = {
    "Claim": lambda p, _, run: p.claim(run), "Write": lambda p, _, run: p.write(run), "Miss": lambda p, _, run: p.miss(run),
    "Evict": PrefillSession.evict,
    "LayerDone": PrefillSession.layer_done, "SaveEnd": PrefillSession.save_end, "LoadEnd": PrefillSession.load_end,
    "Revoke": PrefillSession.revoke, "ResendReady": PrefillSession.resend_ready,
}  # fmt: skip
DECODE: dict[str, Callable[..., Any]] = {
    "Admit": lambda d, attempt, _: d.admit(attempt, request="request", tokens=4), "Registered": DecodeSession.registered,
    "Schedule": DecodeSession.schedule, "Finish": DecodeSession.finish, "Abort": DecodeSession.abort,
    "ReadEnd": lambda d, t, _, how: d.read_end(t, how), "Landed": lambda d, t, _: d.landed(t),
    "ResendReport": DecodeSession.resend_report,
}  # fmt: skip


def every(shape: str) -> list[Label]:
    """Whatever happens in the schedule or might have: its steps, failures, repetitions, faults."""
    found: dict[Label, None] = {}
    for label, w in points(shape):
        found |= dict.fromkeys(m for m in [*w.moves(), label] if m and m[0] not in ("Deliver", "Lose"))
        found |= {("Landed", m[1], m[2]): None for m in w.moves() if m[0] == "ReadEnd"}
        found |= {("Evict", key): None for key in w.objects} | {("Revoke", t): None for t in w.readies}
        found |= {("Miss", *running): None for running in w.running}
    return list(found)


def call(w: World, label: Label) -> tuple[PrefillSession | DecodeSession, Callable[[], list[Effect]]]:
    """The session of a step, and the step taken without asking whether it is offered."""
    op, *arguments = label
    arguments = [TransferId(*x) if isinstance(x, tuple) and len(x) == 4 else x for x in arguments]
    session, table = (w.prefill, PREFILL) if op in PREFILL else (w.decode, DECODE)
    return session, lambda: table[op](session, *arguments)


def known(w: World, label: Label) -> bool:
    """Has its run, attempt or transfer been heard of?  Of strangers a session need not know anything, nor of its caller's mode."""
    if label[0] in ("Claim", "Write", "Miss"):
        return label[1:] in w.running
    if label[0] in ("Admit", "Registered", "Schedule", "Finish", "Abort"):
        return label[1] in w.block
    if label[0] in ("ReadEnd", "Landed", "ResendReport"):
        return TransferId(*label[1]) in w.decode.reads
    return label[0] != "Revoke" or (w.bounds.read_lease and label[1] in w.readies)


def possible(w: World) -> set[Label]:
    """Steps that the World offers, budgets aside."""
    twin = w.clone()
    twin.limits = dict.fromkeys(twin.limits, 99)
    offered = set(twin.moves())
    for op, table in (("ResendReady", w.readies), ("ResendReport", w.reports)):  # offered only while no copy is in the network
        asks: Any = w.prefill.is_held if op == "ResendReady" else w.decode.is_unanswered
        offered |= {(op, t) for t in table if asks(TransferId(*t))}
    return offered


def refuses(take: Callable[[], list[Effect]]) -> bool:
    try:
        take()
    except LocalProtocolError:
        return True
    return False


@pytest.mark.parametrize("shape", SHAPES)
def test_what_the_model_does_not_offer_is_refused_and_changes_nothing(shape: str) -> None:
    labels, refused = every(shape), dict.fromkeys([*PREFILL, *DECODE], 0)
    for label, w in points(shape):
        offered = possible(w)
        for other in labels:
            if other in offered or not known(w, other):
                continue
            twin = w.clone()
            session, take = call(twin, other)
            before = session.snapshot()
            assert refuses(take), f"before {label and say_label(label)} the session accepts {say_label(other)}"
            assert session.snapshot() == before, f"{say_label(other)} is refused and changes something"
            refused[other[0]] += 1
    never = {op for op, times in refused.items() if not times} - ({"Revoke"} if shape != "lease" else set())
    assert not never, f"never refused: {never}"


def test_a_nonce_that_was_used_is_refused() -> None:
    nonces = iter([7, 7, 6, None])
    p = PrefillSession(plan=SlotPlan(layers=1, shared=frozenset((1,))), chunk_tokens=4, new_run=lambda _: next(nonces))
    p.receive(Start("a", 1, 1, 4))
    before = p.snapshot()
    for value in (7, 6, None):
        with pytest.raises(LocalProtocolError, match=f"run nonces grow and never repeat\n  state: {value}"):
            p.receive(Start("a", 2, 1, 4))
    with pytest.raises(RemoteProtocolError, match="positive attempt nonce"):
        p.receive(Start("a", 0, 1, 4))
    assert p.snapshot() == before
