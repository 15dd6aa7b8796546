"""The judge of a World objects to each thing that must not happen, by itself, and to nothing that looks much like it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from stateful.tools import go_on

from tidegate.protocol.messages import TransferId
from tidegate.spec.bounds import Bounds
from tidegate.spec.oracle import EMPTY, JUNK, Oracle
from tidegate.spec.rest import at_rest, leaks
from tidegate.spec.world import World

T, LATER, AT_1, OTHER = (1, 1, 1, 0), (1, 2, 1, 0), (1, 1, 1, 1), (2, 1, 1, 0)
P, Q = (0, (0, 1)), (0, (1, 1))
Deed = Callable[[Oracle], Any]


def both_take(o: Oracle) -> None:
    o.takes(T)
    o.takes(AT_1)


def fails(o: Oracle, member: int = 0) -> None:
    o.attempt_of[1] = 5
    o.blamed.add(("attempt", 5))
    o.run_ended(member, 1, "failed", [])


OBJECTIONS: list[tuple[str, Deed, Deed]] = [
    ("takes a slot although run 1 writes", lambda o: (o.takes(T), o.takes(LATER)),
     lambda o: (o.takes(T), o.computed(T, True), o.takes(LATER))),
    ("waits inside for member 1, which has not taken", lambda o: (o.takes(T), o.enters(T, 2, {})),
     lambda o: (both_take(o), o.enters(T, 2, {}))),
    ("waits inside for member 1, which still loads", lambda o: (both_take(o), o.enters(T, 2, {("load", AT_1): P})),
     lambda o: (both_take(o), o.enters(T, 2, {("load", OTHER): P}))),
    ("waits inside for member 1, which has given the run up", lambda o: (both_take(o), fails(o, 1), o.enters(T, 2, {})),
     lambda o: (both_take(o), o.enters(T, 2, {}), fails(o, 1), o.enters(AT_1, 2, {}))),
    ("saved into object .*given away", lambda o: (o.evicted.add((1, 1)), o.saves(T)), lambda o: (o.evicted.add((1, 2)), o.saves(T))),
    ("overwrites slot 0 while the attend", lambda o: o.overwritten(P, "a claim", {("attend", T, True): P}, lease=False),
     lambda o: o.overwritten(P, "a claim", {("attend", T, True): Q, ("attend", LATER, False): P}, lease=False)),
    ("overwrites slot 0 while the save", lambda o: o.overwritten(P, "a claim", {("save", T, True): P}, lease=False),
     lambda o: o.overwritten(P, "a claim", {("save", T, True): Q}, lease=False)),
    ("while the copy of a dead Decode reads", lambda o: o.overwritten(P, "a claim", {("orphan", T, 1, True): P}, lease=False),
     lambda o: (o.overwritten(P, "a claim", {("orphan", T, 1, True): P}, lease=True),
                o.overwritten(P, "a claim", {("orphan", T, 1, True): Q, ("orphan", LATER, 1, False): P}, lease=False))),
    ("published there, has no verdict", lambda o: (o.published.update({T: P}), o.overwritten(P, "a claim", {}, lease=False)),
     lambda o: (o.published.update({T: Q}), o.overwritten(P, "a claim", {}, lease=False))),
    ("run 1 chunk 2 layer 1 are nowhere else", lambda o: o.loses(1, 0, (1, 1, 2), {T, AT_1}),
     lambda o: (o.loses(1, 0, (1, 1, 2), {T, LATER}), o.loses(1, 0, (2, 1, 1), set()), o.loses(1, 0, JUNK, set()))),
    ("does not hold its earlier chunks", lambda o: o.computed(T, False), lambda o: o.computed(T, True)),
    ("says epoch 2, which is 1$", lambda o: o.announced(T, (0, 2, 0, 4, True), (0, 1, 0, 4, True)),
     lambda o: o.announced(T, (0, 1, 0, 4, True), (0, 1, 0, 4, True))),
    ("torn save", lambda o: o.ended_copy("save", T, True, (2, 1, 1)), lambda o: o.ended_copy("save", T, True, (1, 1, 2))),
    ("torn attention", lambda o: o.ended_copy("attention", T, False, (1, 1, 1)), lambda o: o.ended_copy("attention", T, True, (1, 1, 1))),
    ("answered REVOKED and now COMMITTED", lambda o: (o.landed.add(T), o.answered(T, "REVOKED"), o.answered(T, "COMMITTED")),
     lambda o: (o.landed.add(T), o.answered(T, "COMMITTED"), o.answered(T, "COMMITTED"))),
    ("answered COMMITTED and now REVOKED", lambda o: (o.landed.add(T), o.answered(T, "COMMITTED"), o.answered(T, "REVOKED")),
     lambda o: (o.answered(T, "REVOKED"), o.answered(T, "REVOKED"))),
    ("committed although its own bytes", lambda o: (o.landed.add(LATER), o.answered(T, "COMMITTED")), lambda o: o.answered(T, "REVOKED")),
    ("ended done and now failed", lambda o: (o.run_ended(0, 1, "done", []), fails(o)), lambda o: (o.run_ended(0, 2, "done", []), fails(o))),
    ("ended done and now done", lambda o: (o.run_ended(0, 1, "done", []), o.run_ended(0, 1, "done", [])),
     lambda o: (o.run_ended(0, 1, "done", []), o.run_ended(1, 1, "done", []))),
    ("is done although run 1", lambda o: o.run_ended(0, 1, "done", [T]), lambda o: (o.landed.add(T), o.run_ended(0, 1, "done", [T]))),
    ("run 1 failed although nothing", lambda o: (o.attempt_of.update({1: 5}), o.run_ended(0, 1, "failed", [])), fails),
    ("forgotten before it has a verdict", lambda o: (fails(o, 1), o.forgets(0, 1, [])), lambda o: (fails(o), o.forgets(0, 1, []))),
    ("forgotten while the save", lambda o: (fails(o), o.forgets(0, 1, [("save", T, True)])),
     lambda o: (fails(o), o.forgets(0, 1, [("save", OTHER, True), ("save", AT_1, True), ("read", T, 5, True)]))),
    ("begins a second time", lambda o: (o.begins_read(T, 5, True, True), o.begins_read(T, 5, True, True)),
     lambda o: (o.begins_read(T, 5, True, True), o.begins_read(LATER, 5, True, True))),
    ("does not own", lambda o: o.begins_read(T, 5, False, True), lambda o: o.begins_read(T, 5, True, True)),
    ("are not registered", lambda o: o.begins_read(T, 5, True, False), lambda o: o.begins_read(T, 5, True, True)),
    ("listens to run 1", lambda o: (o.begins_read(T, 5, True, True), o.begins_read(OTHER, 5, True, True)),
     lambda o: (o.begins_read(T, 5, True, True), o.begins_read(OTHER, 6, True, True))),
    ("begins although attempt 5 is over", lambda o: (o.failed.add(5), o.begins_read(T, 5, True, True)),
     lambda o: (o.failed.add(6), o.begins_read(T, 5, True, True))),
    ("begins although attempt 5 is over", lambda o: (o.finished.add(5), o.begins_read(T, 5, True, True)),
     lambda o: (o.scheduled.add(5), o.begins_read(T, 5, True, True))),
    ("asks for a run although", lambda o: (o.finished.add(5), o.asks(5)), lambda o: (o.finished.add(6), o.asks(5))),
    ("asks for a run although", lambda o: (o.failed.add(5), o.asks(5)), lambda o: (o.failed.add(6), o.asks(5))),
    ("failed twice", lambda o: (o.blamed.add(("attempt", 5)), o.attempt_failed(5), o.attempt_failed(5)),
     lambda o: (o.blamed.add(("attempt", 5)), o.attempt_failed(5))),
    ("failed after it was scheduled", lambda o: (o.blamed.add(("attempt", 5)), o.scheduled.add(5), o.attempt_failed(5)),
     lambda o: (o.blamed.add(("attempt", 5)), o.scheduled.add(6), o.attempt_failed(5))),
    ("attempt 5 failed although nothing", lambda o: (o.heard.update({5: 1}), o.blamed.add(("run", 2)), o.attempt_failed(5)),
     lambda o: (o.heard.update({5: 1}), o.blamed.add(("run", 1)), o.attempt_failed(5))),
    ("attempt 5 completed and now completes", lambda o: (o.completed(5), o.completed(5)), lambda o: (o.completed(5), o.completed(6))),
    ("attempt 5 failed and now completes", lambda o: (o.failed.add(5), o.completed(5)), lambda o: (o.failed.add(6), o.completed(5))),
    ("comes twice", lambda o: o.lands(T, OTHER, T), lambda o: (o.lands(T, EMPTY, T), o.lands(T, T, T), o.lands(T, OTHER, JUNK))),
    ("runs although it failed", lambda o: (o.failed.add(5), o.uses(5, [], {})), lambda o: (o.failed.add(6), o.uses(5, [], {}))),
    ("runs although its run 1 failed", lambda o: (o.heard.update({5: 1}), fails(o, 1), o.uses(5, [], {})),
     lambda o: (o.heard.update({5: 2}), fails(o, 1), o.uses(5, [], {}))),
    ("runs with .* where run 1 chunk 1", lambda o: (o.heard.update({5: 1}), o.uses(5, [((1, 1, 0), 0)], {(1, 1, 0): OTHER})),
     lambda o: (o.heard.update({5: 1}), o.uses(5, [((1, 1, 0), 0)], {(1, 1, 0): T}))),
    ("given back by attempt 5, which", lambda o: (o.owner.update({3: 6}), o.reclaimed(5, 3, [])),
     lambda o: (o.owner.update({3: 5}), o.reclaimed(5, 3, []))),
    ("while attempt 5 still runs", lambda o: (o.owner.update({3: 5}), o.scheduled.add(5), o.reclaimed(5, 3, [])),
     lambda o: (o.owner.update({3: 5}), o.scheduled.add(6), o.reclaimed(5, 3, []))),
    ("may still land", lambda o: (o.owner.update({3: 5}), o.reclaimed(5, 3, [("read", T, 5, True)])),
     lambda o: (o.owner.update({3: 5}), o.reclaimed(5, 3, [("read", T, 6, True)]))),
    ("may still land", lambda o: (o.owner.update({3: 5}), o.reclaimed(5, 3, [("stray", T, 5)])),
     lambda o: (o.owner.update({3: 5}), o.reclaimed(5, 3, [("stray", T, 6)]))),
]  # fmt: skip


@pytest.mark.parametrize(("words", "wrong", "right"), OBJECTIONS, ids=[f"{n} {words}" for n, (words, *_) in enumerate(OBJECTIONS)])
def test_it_objects_to_this_and_not_to_what_looks_like_it(words: str, wrong: Deed, right: Deed) -> None:
    bad, good = Oracle(), Oracle()
    wrong(bad)
    assert len(bad.wrong) == 1, bad.wrong
    assert re.search(words, bad.wrong[0])
    right(good)
    assert good.wrong == []


def rested(*, retiring: bool = False) -> World:
    w = World(Bounds(layers=2, shared=frozenset((1, 2)), shared_slots=2, retiring=retiring))
    go_on(w, again=True)
    assert at_rest(w)
    assert leaks(w) == []
    return w


def changed(table: dict[Any, Any], **fields: Any) -> Any:
    key = next(iter(table))
    table[key] = msgspec.structs.replace(table[key], **fields)
    return key


LEAKS: dict[str, Deed | Callable[[World], Any]] = {
    "at rest slot . is draining": lambda w: changed(w.prefill.slots, phase="draining"),
    "blocks 7 still belong to attempt 1": lambda w: w.oracle.owner.update({7: 1}),
    "is readable with pins": lambda w: changed(w.prefill.pool, pins=frozenset((TransferId(1, 1, 1),))),
    "is writing with pins": lambda w: (changed(w.prefill.pool, phase="writing"), w.oracle.whole.clear()),
    "can be neither read nor evicted": lambda w: w.oracle.whole.add(changed(w.prefill.pool, phase="failed")),
}


@pytest.mark.parametrize("words", LEAKS)
def test_what_is_held_at_rest_is_a_leak(words: str) -> None:
    w = rested()
    LEAKS[words](w)  # type: ignore[arg-type]
    assert any(re.search(words, leak) for leak in leaks(w)), leaks(w)


@pytest.mark.parametrize(("side", "table"), [("Prefill", "starts"), ("Prefill", "failures"), ("Decode", "bindings")])
def test_what_is_remembered_of_who_is_over_is_a_leak(side: str, table: str) -> None:
    w = rested(retiring=True)
    getattr(w.prefill if side == "Prefill" else w.decode, table)[9] = "something"
    assert leaks(w) == [f"leak: at rest {side} remembers {table} of 9"]
