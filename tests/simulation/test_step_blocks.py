"""The lists of blocks in the simulated network: lost, doubled, late, forgotten; every read that begins has the list of its own step."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from tidegate.engine import step_blocks
from tidegate.engine.step_blocks import StepTable, StepTables, Teller
from tidegate.protocol.effects import Effect
from tidegate.protocol.messages import Blocks, Message, Ready, TransferId, decode, encode
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec.bounds import Bounds
from tidegate.spec.labels import Label, named
from tidegate.spec.sim import simulate
from tidegate.spec.world import World

STEPS = 20_000


def truth_of(ready: Ready) -> list[int]:
    return truth(ready.transfer)


def truth(transfer: TransferId) -> list[int]:
    """The blocks of a step: no two steps have the same."""
    return [1000 * transfer.run + 10 * transfer.chunk + n for n in range(3)]


class Addressed(World):
    """A World whose READYs name lists that go another way: each is lost, comes late, or comes twice, as long as messages may be lost."""

    teller: type[Teller] = Teller
    kept = step_blocks.KEPT

    def __init__(self, bounds: Bounds, **sessions: Any) -> None:
        super().__init__(bounds, **sessions)
        self.tables = defaultdict[tuple[int, int], StepTables](StepTables)  # life of Prefill and member: each has a link of its own
        self.said = set[TransferId]()
        self.under_way: list[tuple[int, Blocks]] = []
        self.rng = random.Random(repr(bounds))
        self.dropped = 0

    def sessions(self, prefill: type[PrefillSession], life: int) -> tuple[PrefillSession, ...]:
        self.says = [self.teller(life) for _ in range(self.bounds.members)]
        return super().sessions(prefill, life)

    def _send(self, message: Message) -> None:
        if isinstance(message, Ready):
            key, again = named(message), message.transfer in self.said
            self.said.add(message.transfer)
            ready, blocks = self.says[message.transfer.member].of(message, truth_of, again=again)
            if blocks is not None:
                heard = decode(encode(blocks))
                assert isinstance(heard, Blocks)
                self.under_way += [(message.transfer.member, heard)] * (self.rng.choice((0, 1, 1, 2)) if self.left("loss") else 1)
            super()._send(message)
            self.net[key] = decode(encode(ready))
        else:
            super()._send(message)

    def apply(self, label: Label) -> list[Effect]:
        if label[0] == "CrashDecode":
            self.tables.clear()
        if label[0] == "Deliver" and label[1][0] == "READY":
            self._hear()
            ready = self.net[label[1]]
            assert isinstance(ready, Ready)
            if not self.tables[ready.incarnation, ready.transfer.member].knows(ready):  # to the model it was lost
                self.dropped += 1
                del self.net[label[1]]
                return []
        return super().apply(label)

    def _hear(self) -> None:
        late = [told for told in self.under_way if self.left("loss") and self.rng.random() < 0.5]
        for member, blocks in [told for told in self.under_way if told not in late]:
            self.tables[blocks.incarnation, member].hear(blocks)
        self.under_way = late

    def _begin_read(self, ready: Ready) -> None:
        try:
            found = self.tables[ready.incarnation, ready.transfer.member].of(ready).ids.tolist()
        except ValueError as error:
            self.oracle.wrong.append(f"refused: {error}")
            found = truth(ready.transfer)
        if found != truth(ready.transfer):
            self.oracle.wrong.append(f"{ready.transfer} is read from blocks {found}, its rows are in {truth(ready.transfer)}")
        super()._begin_read(ready)


def test_whatever_is_lost_a_read_has_the_list_of_its_step() -> None:
    worlds: list[Addressed] = []

    def world(bounds: Bounds) -> World:
        worlds.append(Addressed(bounds))
        return worlds[-1]

    out = simulate(STEPS, seed=7, world=world)
    assert not out.wrong, out.wrong
    assert sum(one.dropped for one in worlds) > 20, "no READY came without its list"


def test_a_decode_that_forgets_lists_asks_for_patience_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_blocks, "KEPT", 1)
    out = simulate(STEPS, seed=8, world=Addressed)
    assert not out.wrong, out.wrong


class TellsOnce(Teller):
    """Does not say a list again, with the READY that is said again."""

    def of(self, ready: Ready, ids: Any, *, again: bool) -> tuple[Ready, Blocks | None]:
        return super().of(ready, ids, again=False)


class NamesAnEarlierStep(Teller):
    """Keeps one list for a run: later chunks name the first one's."""

    def of(self, ready: Ready, ids: Any, *, again: bool) -> tuple[Ready, Blocks | None]:
        of_run = self._steps.get(ready.transfer.run, {})
        for (_, member), blocks in list(of_run.items()):
            of_run[ready.transfer.chunk, member] = blocks
        return super().of(ready, ids, again=again)


class KeepsOneList(Teller):
    """Calls every list by one name."""

    def of(self, ready: Ready, ids: Any, *, again: bool) -> tuple[Ready, Blocks | None]:
        named_, blocks = super().of(ready, ids, again=again)
        return named_, blocks and Blocks(blocks.run, blocks.chunk, blocks.member, blocks.incarnation, 5, blocks.ids)


def hunted(teller: type[Teller]) -> str:
    return simulate(60_000, seed=9, world=lambda bounds: type("Bugged", (Addressed,), {"teller": teller})(bounds)).wrong


def test_planted_a_list_that_is_told_once_only() -> None:
    assert "hang" in hunted(TellsOnce)


def test_planted_a_stale_list_is_refused_and_unchecked_it_would_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "names the blocks of run" in hunted(NamesAnEarlierStep)
    monkeypatch.setattr(StepTable, "check", lambda self, ready: None)
    assert "is read from blocks" in hunted(NamesAnEarlierStep)


def test_planted_a_list_under_another_name() -> None:
    assert "does not answer to its name" in hunted(KeepsOneList)
