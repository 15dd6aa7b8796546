"""What is made of messages for tests: nothing true is lost by it, and it does what it is there for."""

from __future__ import annotations

import random

import pytest

from tidegate.engine.fault_spec import FaultSpec, MessageFaults
from tidegate.engine.noise import Change, Disorder, Noise

TOGETHER = 9


def said(change: Change) -> tuple[list[bytes], list[bytes]]:
    """What was to leave, and what left, over many turns, every third of which has nothing to say; the last does not."""
    true, left = [], []
    for turn in range(300):
        bodies = [b"%d-%d" % (turn, n) for n in range(TOGETHER)] if turn % 3 else []
        true += bodies
        left += change(list(bodies))
    return true, left + change([])


def drawn(seed: int) -> Disorder:
    draw = random.Random(seed)
    return Disorder(lambda: draw.getrandbits(32) if draw.random() < 0.5 else None)


def test_another_order_loses_nothing_and_keeps_nothing_for_long() -> None:
    true, left = said(drawn(5))
    assert sorted(left) == sorted(true)
    assert left != true
    places = {body: n for n, body in enumerate(left)}
    assert max(abs(places[body] - n) for n, body in enumerate(true)) < 3 * TOGETHER
    assert any(places[b"1-8"] > places[body] for body in (b"2-0", b"2-1")) or said(drawn(6))[1] != left


def test_nothing_happens_where_it_is_not_due() -> None:
    true, left = said(Disorder(lambda: None))
    assert left == true


def test_the_same_seed_is_the_same_disorder() -> None:
    assert said(drawn(5)) == said(drawn(5)) != said(drawn(6))


@pytest.mark.parametrize("planted", ["loses", "tells twice"])
def test_a_disorder_that_changes_what_is_said_is_seen(planted: str) -> None:
    class Wrong(Disorder):
        def __call__(self, bodies: list[bytes]) -> list[bytes]:
            if planted == "loses":
                self._kept = []
                return super().__call__(bodies)
            return super().__call__(bodies) + self._kept[:1]

    draw = random.Random(5)
    true, left = said(Wrong(lambda: draw.getrandbits(32)))
    assert sorted(left) != sorted(true)


def test_noise_adds_and_keeps_the_order() -> None:
    seeds = iter(range(1000))
    true, left = said(Noise(lambda: next(seeds)))
    rest = iter(left)
    assert len(left) > len(true)
    assert all(any(body == one for one in rest) for body in true)


def test_changes_are_those_that_were_asked_for_each_with_its_own_count() -> None:
    faults = MessageFaults((FaultSpec("wire"), FaultSpec("send", "lose", what="READY"), FaultSpec("wire", "reorder", nth=2)))
    noise, disorder = faults.changes()
    assert (type(noise), type(disorder)) == (Noise, Disorder)
    assert disorder([b"1", b"2"]) == [b"1", b"2"]
    assert MessageFaults(()).changes() == ()
    disorder([b"3"])
    assert faults.injected == 1
    noise([b"4"])
    assert faults.injected == 2
