"""Fixed schedules of the real sessions: an abort, a revocation, a failure at every point; each message lost, doubled or late; answers
in every order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec
import pytest
from stateful.tools import go_on, plain, rest, told

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import BeginRead, Effect, Send
from tidegate.protocol.machines import read as RD
from tidegate.protocol.messages import Committed, Ready, Revoked
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec.bounds import Bounds
from tidegate.spec.rest import at_rest
from tidegate.spec.schedule import drain
from tidegate.spec.world import Label, World


def two_requests(**shape: Any) -> Bounds:
    """Two requests of one id, the second of one chunk, with a set of blocks each; every fault may strike once."""
    return Bounds(chunks=2, prompts=(2, 1), runs=4, attempts=2, blocks=2, abort=1, loss=1, dup=1, fail=1, unknown=1, save=1, load=1,
                  **shape)  # fmt: skip


SHAPES = {
    "one slot": two_requests(layers=2, shared=frozenset((1, 2))),
    "two slots": two_requests(layers=3, shared=frozenset((1, 2, 3)), shared_slots=2),
    "independent": two_requests(layers=3, shared=frozenset((1, 3))),
    "lease": two_requests(layers=2, shared=frozenset((1, 2)), read_lease=True, revoke=1),
}


@cache
def schedule(shape: str) -> list[Label]:
    """The labels of a run without a fault: always the first thing that is not a repetition."""
    w, out = World(SHAPES[shape]), list[Label]()
    while moves := [m for m in w.moves() if plain(m)]:
        out.append(moves[0])
        w.apply(moves[0])
    assert {("Finish", 1), ("Finish", 2)} <= set(out)
    return out


def points(shape: str, **sessions: Any) -> Iterator[tuple[Label | None, World]]:
    """Each label of the schedule and the World before it; at last nothing, and the World after all."""
    w = World(SHAPES[shape], **sessions)
    for label in schedule(shape):
        yield label, w
        w.apply(label)
        assert not w.violations(), told(w, w.violations())
    yield None, w


def well_ended(w: World, *, failed: set[int] | None = None) -> list[str]:
    """What is wrong once `w` rests; an attempt outside `failed`, if that is given, must have finished, and one in it failed."""
    wrong = drain(w)
    if not wrong and failed is not None and w.oracle.failed != failed:
        wrong = [f"attempts {w.oracle.failed or 'none'} failed where {failed or 'none'} should"]
    return wrong


COPIES = ("ReadEnd", "SaveEnd", "LoadEnd")

# ---- a fault at every point ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_an_abort_at_every_point_of_a_schedule_leaves_nothing(shape: str) -> None:
    """Prefill hears of it, or not: then the refusal of its next READY tells it."""
    found = 0
    for _, w in points(shape):
        for abort in [m for m in w.moves() if m[0] == "Abort"]:
            for heard in (True, False):
                twin = w.clone()
                twin.apply(abort)
                if not heard:
                    del twin.net["ABORT", abort[1], 0]
                    twin.net.pop(("START", abort[1]), None)
                wrong = well_ended(twin, failed={abort[1]})
                assert not wrong, f"{abort}, {'heard' if heard else 'lost'}: {told(twin, wrong)}"
                found += 1
    assert found > 80


@pytest.mark.parametrize("shape", SHAPES)
def test_a_failure_of_every_copy_fails_whom_it_concerns_and_leaves_nothing(shape: str) -> None:
    """A read fails its attempt; a save only the run that loads it later; a load its run."""
    found = 0
    for label, w in points(shape):
        for failure in [m for m in w.moves() if label and m[:2] == label[:2] and m[0] in COPIES and not plain(m)]:
            run, chunk, *_ = failure[1]
            attempt = w.oracle.attempt_of[run]
            needed = chunk < w.bounds.chunks_of(attempt) and w.bounds.shared
            twin = w.clone()
            twin.apply(failure)
            wrong = well_ended(twin, failed={attempt} if failure[0] != "SaveEnd" or needed else set())
            assert not wrong, f"{failure}: {told(twin, wrong)}"
            found += 1
    assert found > 18


def revoked(**sessions: Any) -> Iterator[tuple[str, World]]:
    """Each transfer revoked at each point at which it is held; then its read, if it is under way, ends at once or as the last thing,
    and what Prefill says of the revocation is heard, or not.
    """
    for _, w in points("lease", **sessions):
        for revoke in [m for m in w.moves() if m[0] == "Revoke"]:
            reading = [("ReadEnd", x[1], x[2], "ok") for x in w.io if x[0] == "read" and x[1] == revoke[1]]
            for last in [[], reading] if reading else [[]]:
                for heard in (True, False):
                    twin = w.clone()
                    twin.apply(revoke)
                    if not heard:
                        twin.net = {m: message for m, message in twin.net.items() if m[0] != "RUN_FAILED"}
                    go_on(twin, again=True, without=last)
                    yield f"{revoke}, {'its read late, ' if last else ''}RUN_FAILED {'heard' if heard else 'lost'}", twin


def test_a_revocation_at_every_point_is_never_believed() -> None:
    found = 0
    for name, w in revoked():
        wrong = rest(w) or ([] if w.oracle.finished | w.oracle.failed == {1, 2} else ["an attempt has no end"])
        assert not wrong, f"{name}: {told(w, wrong)}"
        assert w.oracle.failed, f"{name}: nobody failed"
        found += 1
    assert found > 12


# ---- a fate for every message -------------------------------------------------------------------------------------------------

FATES = {"lost": 20, "doubled": 200, "late": 20}
"""And how many Worlds there are of each, at least."""
STRIDE = 1 if os.environ.get("TIDEGATE_LONG") else 3


def suffer(shape: str, fate: str, **sessions: Any) -> Iterator[tuple[Label, World]]:
    """For each message of the schedule: it, and a World in which it has met its fate.

    lost: for good; late: a repetition does its work, and it comes when all else is over; doubled: a copy comes, at every STRIDE-th
    later point and at the end.  START is not repeated: its attempt waits.
    """
    labels = schedule(shape)
    for number, (label, w) in enumerate(points(shape, **sessions)):
        if not label or label[0] != "Deliver":
            continue
        name, message, twin = label[1], w.net[label[1]], w.clone()
        if fate == "doubled":
            twin.apply(("Deliver", name, True))
            for distance, later in enumerate([*labels[number + 1 :], None]):
                if distance % STRIDE == 0 or not later:
                    point = twin.clone()
                    point.apply(("Deliver", name, False))
                    yield name, point
                if later:
                    twin.apply(later)
        else:
            del twin.net[name]
            if fate == "late":
                go_on(twin, again=True)
                assert at_rest(twin) or name[0] == "START"
                twin.net[name] = message
            yield name, twin


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_message_of_a_schedule_lost_doubled_or_late(shape: str, fate: str) -> None:
    worlds = 0
    for name, w in suffer(shape, fate):
        wrong = rest(w) if (name[0], fate) == ("START", "lost") else well_ended(w, failed=set())
        assert not wrong, f"{name} {fate}: {told(w, wrong)}"
        worlds += 1
    assert worlds >= FATES[fate]


class AnswersOnce(PrefillSession):
    """The second report of a transfer gets no answer."""

    def receive(self, message: Any) -> list[Effect]:
        held = not hasattr(message, "transfer") or self.is_held(message.transfer)
        return [e for e in super().receive(message) if held or not isinstance(e, Send)]


class ReadsTwice(DecodeSession):
    """A second READY begins a second read."""

    def _on_ready(self, ready: Ready, effects: list[Effect]) -> None:
        if self.reads.get(ready.transfer) == RD.Begin(RD.Initial()):
            effects.append(BeginRead(ready))
        super()._on_ready(ready, effects)


class Forgets(DecodeSession):
    """What it has answered it does not remember, nor that the attempt is over."""

    def _on_ready(self, ready: Ready, effects: list[Effect]) -> None:
        if self.reads.get(ready.transfer, RD.Initial()).phase == "committed":
            del self.reads[ready.transfer]
        super()._on_ready(ready, effects)

    def _refusal(self, ready: Ready) -> str:
        return ""


class AcksBySlot(PrefillSession):
    """A report releases whatever stands in the slot that it names."""

    def _on_report(self, report: Any, effects: list[Effect]) -> None:
        waiting = sorted(self.slots[report.slot, 1].transfers)
        if waiting:
            known = self.readies[waiting[0]]
            report = msgspec.structs.replace(report, transfer=known.transfer, epoch=known.epoch)
        super()._on_report(report, effects)


def said(worlds: Iterator[tuple[Any, World]]) -> list[str]:
    """Everything that the Worlds object to, on their way or at their end."""
    out: list[str] = []
    try:
        for _, w in worlds:
            out += rest(w)
    except AssertionError as error:
        out.append(str(error))
    return out


class CommitsTheRevoked(PrefillSession):
    """A report that comes after the revocation is answered as if it had come before."""

    def _on_report(self, report: Any, effects: list[Effect]) -> None:
        super()._on_report(report, effects)
        answer = Send(Committed(report.transfer))
        effects[:] = [answer if isinstance(e, Send) and isinstance(e.message, Revoked) else e for e in effects]


class KeepsRevoked(PrefillSession):
    """A revocation is told to Decode and the run, and forgotten at the gate."""

    def revoke(self, transfer: Any) -> list[Effect]:
        slots = dict(self.slots)
        effects = super().revoke(transfer)
        self.slots = slots
        return effects


PLANTED: list[tuple[Callable[..., Iterator[tuple[Any, World]]], type, str]] = [
    (lambda **s: suffer("one slot", "lost", **s), AnswersOnce, "hang: READ_DONE"),
    (lambda **s: suffer("one slot", "late", **s), Forgets, "does not own"),
    (lambda **s: suffer("one slot", "doubled", **s), ReadsTwice, "begins a second time"),
    (lambda **s: suffer("one slot", "doubled", **s), Forgets, "does not own"),
    (lambda **s: suffer("one slot", "doubled", **s), AcksBySlot, "its own bytes never landed right"),
    (revoked, CommitsTheRevoked, "never landed right"),
    (revoked, KeepsRevoked, "leak"),
]  # fmt: skip


@pytest.mark.parametrize(("worlds", "bug", "words"), PLANTED)
def test_a_planted_bug_does_not_survive_its_fate(worlds: Any, bug: type, words: str) -> None:
    role = "prefill" if issubclass(bug, PrefillSession) else "decode"
    found = said(worlds(**{role: bug}))
    assert any(words in one for one in found), found


def test_answers_in_every_order() -> None:
    """Two layers over two slots: their reports and answers cross in every order; each is told of its own only."""
    bounds = Bounds(layers=2, shared=frozenset((1, 2)), shared_slots=2)
    first = World(bounds)
    while moves := [m for m in first.moves() if plain(m) and m[0] != "Deliver"] or [
        m for m in first.moves() if plain(m) and m[1][0] in ("START", "READY")
    ]:  # fmt: skip
        first.apply(moves[0])
    todo, seen, orders = [(first, ())], set[Any](), set[Any]()
    while todo:
        w, order = todo.pop()
        moves = [m for m in w.moves() if plain(m)]
        if not moves:
            assert drain(w) == []
            assert w.oracle.finished == {1}
            orders.add(order)
        for m in moves:
            twin = w.clone()
            twin.apply(m)
            after = (*order, m[1]) if m[0] == "Deliver" else order
            assert not twin.violations()
            if (twin.key(), after) not in seen:
                seen.add((twin.key(), after))
                todo.append((twin, after))
    assert len(orders) == 6  # four messages, an answer after its report
