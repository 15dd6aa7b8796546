"""Several Prefills for one Decode rank: each serves its own requests out of its own memory, speaks about its own runs, and harms nobody
else when it fails or ends.  Real engine, real sockets, real shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from decode_tools import BLOCK, KINDS, PROMPT, SLOT_OF_LAYER, Prefill, both, layout_of

from tidegate.engine import decode_peers
from tidegate.engine.control import public_name
from tidegate.engine.decode_engine import DecodeEngine
from tidegate.engine.decode_peers import Peers
from tidegate.engine.slot_layout import SlotLayout
from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.messages import Abort, Committed, ReadDone, ReadFailed, Revoked, RunFailed, Start

LAYOUT = layout_of({0: KINDS, 1: KINDS})
OTHER = layout_of({0: KINDS, 1: KINDS}, blocks=8)
BLOCKS = (5, 2)


class Two(NamedTuple):
    """An engine with two Prefills of different layouts, and the START that each of them has heard."""

    engine: DecodeEngine
    prefills: tuple[Prefill, Prefill]
    starts: tuple[Start, Start]

    def until(self, good: Callable[[], bool]) -> None:
        end = time.monotonic() + 5
        while not good():
            assert time.monotonic() < end
            time.sleep(0.002)

    def refused(self, count: int) -> None:
        self.until(lambda: self.engine.owner.refused >= count)
        assert self.engine.owner.refused == count

    def serve(self, which: int, layers: tuple[int, ...] = (1, 2, 3)) -> None:
        for layer in layers:
            assert isinstance(self.prefills[which].serve(self.starts[which], layer), ReadDone)

    def completes(self, which: int) -> None:
        self.until(lambda: self.engine.completed() == [self.starts[which].attempt])

    def wrong(self, which: int) -> str:
        """Where the rows of the completed attempt are not those of its own Prefill."""
        blocks = self.engine.memory.owned[self.starts[which].attempt].blocks
        source = self.prefills[which].memory
        for layer, slot in enumerate(SLOT_OF_LAYER):
            for name, pages in self.engine.memory.pages.items():
                rows, there = pages.tokens(layer, blocks, PROMPT), source.view(slot, name)
                want = [there[BLOCKS[token // BLOCK], token % BLOCK] for token in range(PROMPT)]
                if not all((rows[token] == row).all() for token, row in enumerate(want)):
                    return f"layer {layer} {name}"
        return ""


@contextmanager
def two(layout: SlotLayout = OTHER) -> Iterator[Two]:
    """layout: of the second, whose bytes are others."""
    with both(LAYOUT) as (engine, first, crashed):
        second = Prefill(engine.port, layout, seed=2)
        try:
            for name in "ab":
                engine.admit(name, range(PROMPT), new_tokens=2)
            heard = [prefill.hear() for prefill in (first, second)]
            starts = [start for start in heard if isinstance(start, Start)]
            assert sorted(start.request for start in starts) == ["a", "b"], "each was asked in its turn"
            yield Two(engine, (first, second), (starts[0], starts[1]))
            assert not crashed.is_set()
        finally:
            second.close()


def test_each_serves_its_own_request_out_of_its_own_memory() -> None:
    with two() as pair:
        for layer in (1, 2, 3):
            for which in (0, 1):
                pair.serve(which, (layer,))
        found: list[int] = []

        def both_complete() -> bool:
            found.extend(pair.engine.completed() or [])
            return sorted(found) == sorted(start.attempt for start in pair.starts)

        pair.until(both_complete)
        assert [pair.wrong(which) for which in (0, 1)] == ["", ""]
        assert len(pair.engine.core.peers.lives) == 2


def test_planted_what_is_read_comes_from_whoever_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory of one layout the read goes through, and only the bytes tell."""
    monkeypatch.setattr("tidegate.engine.decode_reads.peer_name", lambda life, rank: f"prefill-{first:x}-{rank}")
    with two(LAYOUT) as pair:
        first = pair.prefills[0].incarnation
        pair.serve(1)
        pair.completes(1)
        assert pair.wrong(1) != ""


WORDS = {
    "COMMITTED": lambda ready: Committed(ready.transfer), "REVOKED": lambda ready: Revoked(ready.transfer),
    "RUN_FAILED": lambda ready: RunFailed(ready.request, ready.attempt, ready.transfer.run, "a lie"), "READY": lambda ready: ready,
}  # fmt: skip


def overheard(word: str) -> str:
    """What the other Prefill brings about by speaking about a run that is not its own; "" for nothing."""
    with two() as pair:
        liar, honest = pair.prefills
        start = pair.starts[1]
        pair.serve(1, (1, 2))
        honest.say(ready := honest.ready(start, 3))
        assert isinstance(honest.hear(), ReadDone)
        liar.told[ready.table] = honest.told[ready.table]
        liar.say(WORDS[word](ready))
        pair.serve(0, (1,))  # everything that was said before has been heard
        said = "" if pair.engine.owner.refused else "it was not refused"
        if (failed := pair.engine.failed()) or pair.engine.completed():
            return f"{said}; attempts failed: {failed}"
        honest.say(Committed(ready.transfer))
        pair.completes(1)
        return said


@pytest.mark.parametrize("word", WORDS)
def test_one_speaks_about_its_own_runs_only(word: str) -> None:
    assert overheard(word) == ""


@pytest.mark.parametrize("word", WORDS)
def test_planted_one_speaks_about_the_runs_of_others(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peers, "hear", lambda self, peer, message: setattr(self, "_heard", peer.incarnation))
    assert overheard(word) != ""


def test_one_that_fails_a_run_fails_nobody_else() -> None:
    with two() as pair:
        pair.serve(1, (1,))
        run = pair.prefills[1].ready(pair.starts[1], 1).transfer.run
        pair.prefills[1].say(RunFailed(pair.starts[1].request, pair.starts[1].attempt, run, "out of luck"))
        pair.serve(0)
        pair.completes(0)
        assert [one.attempt for one in pair.engine.failed()] == [pair.starts[1].attempt]
        assert pair.wrong(0) == ""


def test_a_second_run_of_one_attempt_is_refused_to_whoever_announces_it() -> None:
    """START came to both, by a retry: the one that announces first serves, the other hears that it need not."""
    with two() as pair:
        pair.serve(1, (1,))
        late = pair.prefills[0]
        late.say(late.ready(pair.starts[1], 1, run=77))
        heard = late.hear()
        assert isinstance(heard, ReadFailed)
        assert "is bound to run" in heard.reason
        pair.serve(1, (2, 3))
        pair.completes(1)


def test_an_attempt_that_is_given_up_is_told_to_all() -> None:
    with two() as pair:
        assert pair.engine.abort(pair.starts[0].attempt, "no more")
        for prefill in pair.prefills:
            assert prefill.hear() == Abort(pair.starts[0].request, pair.starts[0].attempt, "no more", 0)


def test_one_that_has_ended_fails_what_it_served_and_nothing_else() -> None:
    with two() as pair:
        pair.serve(1, (1,))
        pair.serve(0, (1,))
        pair.prefills[1].close()
        pair.engine.owner.ask(pair.engine.core.tick)
        gone = pair.prefills[1].incarnation
        assert pair.engine.failed() == [(pair.starts[1].attempt, f"Prefill {public_name(gone)}, which served it, is gone")]
        assert list(pair.engine.core.peers.lives) == [pair.prefills[0].incarnation]
        with pytest.raises(ValueError, match="peer is not connected"):
            pair.engine.backend._checked(f"prefill-{gone:x}-0", [])
        assert isinstance(pair.prefills[0].hear(), Abort), "it may have had the same START"
        assert not pair.engine.core.partings.deserted, "who is over is asked for no more: nothing of it stays"
        pair.serve(0, (2, 3))
        pair.completes(0)
        assert pair.wrong(0) == ""
        assert pair.engine.memory.allocator.free == 9 - 2, "the blocks of the one that failed came back"


def test_planted_one_that_has_ended_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peers, "gone", lambda self: [])
    with two() as pair:
        pair.serve(1, (1,))
        pair.prefills[1].close()
        pair.engine.owner.ask(pair.engine.core.tick)
        assert pair.engine.failed() == []


def told_of(pair: Two) -> list[int]:
    """The Prefills whose end the session has heard of, once the second is seen to have ended."""
    pair.prefills[1].close()
    pair.engine.owner.ask(pair.engine.core.tick)
    assert list(pair.engine.core.peers.lives) == [pair.prefills[0].incarnation]
    return list(pair.engine.core.session.gone)


def test_an_end_is_told_at_once_where_somebody_waits_and_who_has_read_nothing_waits_on() -> None:
    with two() as pair:
        assert told_of(pair) == [pair.prefills[1].incarnation]
        assert pair.engine.failed() == [], "any other may serve it"


def test_planted_who_has_read_nothing_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodeSession, "may_hear", DecodeSession.depends_on)
    with two() as pair:
        assert told_of(pair) == []


def test_an_end_that_concerns_nobody_is_told_when_another_comes() -> None:
    """So a run whose Prefill ends first says nothing of it, and nothing of the old one is heard beside the new one."""
    with two() as pair:
        for which in (0, 1):
            pair.serve(which)
            pair.completes(which)
            pair.engine.finish(pair.starts[which].attempt)
        assert told_of(pair) == []
        third = Prefill(pair.engine.port, LAYOUT, seed=3)
        try:
            assert list(pair.engine.core.session.gone) == [pair.prefills[1].incarnation]
        finally:
            third.close()


def test_one_that_connects_anew_is_spoken_to_there_and_there_only() -> None:
    with two() as pair:
        prefill, start = pair.prefills[1], pair.starts[1]
        pair.serve(1, (1,))
        prefill.greet()
        assert prefill.welcome.refused == ""
        assert len(pair.engine.core.peers.lives) == 2
        pair.serve(1, (2, 3))
        pair.completes(1)
        old, prefill.sockets[0:] = prefill.sockets[0], prefill.sockets[::-1]
        prefill.say(prefill.ready(start, 1))
        assert prefill.socket is old
        pair.refused(1)
        assert not any(socket.poll(0) for socket in prefill.sockets)


def test_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_peers, "MAX_PEERS", 2)
    with two() as pair:
        third = Prefill(pair.engine.port, LAYOUT)
        assert third.welcome.refused == "this Decode serves 2 Prefills already"
        pair.prefills[0].close()
        pair.engine.owner.ask(pair.engine.core.tick)
        third.greet()
        assert third.welcome.refused == ""
        third.close()


def test_one_whose_layout_does_not_fit_changes_nothing_for_the_others() -> None:
    with two() as pair:
        odd = Prefill(pair.engine.port, layout_of({0: KINDS, 1: KINDS}, block_size=8))
        assert "blocks of 8 tokens" in odd.welcome.refused
        odd.say(odd.ready(pair.starts[0], 1))
        pair.refused(1)
        for which in (0, 1):
            pair.serve(which)
        odd.close()
