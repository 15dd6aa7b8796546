"""DecodeEngine, driven by hand: the seven steps over real pulls, what is refused, what waits, what comes back."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from decode_tools import BLOCK, KINDS, PROMPT, SLOT_OF_LAYER, Prefill, both, layout_of

from tidegate.engine import hot_buffer
from tidegate.engine.copying import Fault, Faults
from tidegate.engine.decode_engine import DecodeEngine, RowKind
from tidegate.engine.decode_told import Told
from tidegate.engine.faults import Injector
from tidegate.engine.slots import SharedMemory
from tidegate.protocol.messages import Abort, ReadDone, ReadFailed, Start

K_V = (RowKind("main.k", "bfloat16", 6), RowKind("main.v", "float32", 3), RowKind("index", "int8", 4), RowKind("scale", "float32", 1))
SOURCE = (5, 2)


def wanted(memory: SharedMemory, layer: int, name: str) -> torch.Tensor:
    """The prompt's rows as they lie at Prefill."""
    view = memory.view(SLOT_OF_LAYER[layer], name)
    return torch.stack([view[SOURCE[token // BLOCK], token % BLOCK] for token in range(PROMPT)])


def prefilled(engine: DecodeEngine, prefill: Prefill, name: str = "r") -> int:
    attempt = engine.admit(name, range(PROMPT), new_tokens=2)
    start = prefill.hear()
    assert isinstance(start, Start)
    assert start.attempt == attempt
    assert all(isinstance(prefill.serve(start, layer), ReadDone) for layer in (1, 2, 3))
    assert engine.completed(wait=True) == [attempt]
    return attempt


@contextmanager
def ready(kinds: tuple[RowKind, ...] = KINDS) -> Iterator[tuple[DecodeEngine, Prefill]]:
    with both(layout_of({0: kinds, 1: kinds}), kinds) as (engine, prefill, _):
        yield engine, prefill


def new_rows(kinds: tuple[RowKind, ...], value: float, n: int = 1) -> dict[str, torch.Tensor]:
    return {kind.name: torch.full((n, kind.width), value).to(getattr(torch, kind.dtype)) for kind in kinds}


@pytest.mark.parametrize("kinds", [KINDS, K_V], ids=["one tensor of main KV", "K and V, and LIC8's scales"])
def test_the_seven_steps(kinds: tuple[RowKind, ...]) -> None:
    with ready(kinds) as (engine, prefill):
        one, two = prefilled(engine, prefill), prefilled(engine, prefill, "other")
        for layer in range(3):
            engine.append(layer, [(one, PROMPT), (two, PROMPT - 1)], new_rows(kinds, 9.0, 2))  # `two` runs its last token again
            for name in ("index", "scale")[: len(kinds) - len(engine.memory.main)]:
                mine, last = engine.index_rows(layer, one, name), engine.index_rows(layer, two, name)
                assert torch.equal(mine[:PROMPT], wanted(prefill.memory, layer, name))
                assert mine[PROMPT:].eq(9).all()
                assert (len(mine), len(last)) == (PROMPT + 1, PROMPT)
                assert torch.equal(last[:-1], mine[: PROMPT - 1])
                assert last[-1].eq(9).all()
                pages, blocks = engine.index_pages(layer, one, name)
                assert torch.equal(pages[blocks].reshape(-1, pages.shape[2])[: PROMPT + 1], mine)
            hot, rows, slots = engine.select(layer, [two, one], torch.tensor([[5, 0, -1, 6], [6, 5, 2, 5]]))
            assert slots.tolist() == [[0, 1, -1, -1], [0, 1, 2, 1]]  # position 6 of `two` is not written; 5 is asked for twice
            for part, pages_of in zip(hot, engine.memory.main, strict=True):
                source = wanted(prefill.memory, layer, pages_of.kind.name)
                assert part[rows[0], 0].eq(9).all()
                assert torch.equal(part[rows[0], 1], source[0])
                assert part[rows[1], 0].eq(9).all()
                assert torch.equal(part[rows[1], 1:3], source[[5, 2]])
        hits = engine.memory.hot.counts.hits
        engine.select(0, [one], torch.tensor([[2, 5, 6]]))
        assert engine.memory.hot.counts.hits == hits + 3
        engine.append(0, [(one, PROMPT)], new_rows(kinds, 8.0))  # a draft was refused: the row is written again
        hot, rows, slots = engine.select(0, [one], torch.tensor([[2, 6]]))
        assert hot[0][rows[0], int(slots[0, 1])].eq(8).all()
        assert (engine.memory.hot.counts.hits, engine.memory.hot.counts.misses) == (hits + 4, 3 * 5 + 1)
        for attempt in (one, two):
            engine.finish(attempt)
        engine.owner.ask(lambda: None)
        with pytest.raises(KeyError, match="only what `completed` named can be decoded"):
            engine.select(0, [one], torch.tensor([[0]]))
        assert (engine.memory.free_rows, engine.memory.allocator.free) == (2, 9)
    assert engine.core.pulled == {kind.name: 2 * 3 * PROMPT * kind.row_bytes for kind in kinds}


def test_drafts_come_in_order_and_those_refused_are_forgotten() -> None:
    with ready() as (engine, prefill):
        attempt = prefilled(engine, prefill)
        engine.append(0, [(attempt, PROMPT), (attempt, PROMPT + 1)], {"main": torch.ones(2, 4), "index": torch.ones(2, 2)})
        assert len(engine.index_rows(0, attempt)) == PROMPT + 2
        engine.select(0, [attempt], torch.tensor([[PROMPT, PROMPT + 1, 0]]))
        engine.append(0, [(attempt, PROMPT)], new_rows(KINDS, 2.0))
        assert engine.index_rows(0, attempt)[PROMPT:].tolist() == [[2.0, 2.0]]
        (hot,), rows, slots = engine.select(0, [attempt], torch.tensor([[PROMPT, PROMPT + 1, 0]]))
        assert (int(slots[0, 1]), float(hot[rows[0], int(slots[0, 0]), 0])) == (-1, 2.0)
        assert engine.memory.hot.counts.hits == 1
        with pytest.raises(ValueError, match=r"position 8: rows 0\.\.7 are there"):
            engine.append(0, [(attempt, PROMPT), (attempt, PROMPT + 2)], {"main": torch.ones(2, 4), "index": torch.ones(2, 2)})


def test_rows_that_do_not_fit_are_refused_and_nothing_is_written() -> None:
    with ready() as (engine, prefill):
        attempt = prefilled(engine, prefill)
        before = [pages.memory.clone() for pages in engine.memory.pages.values()]
        for tokens, rows, why in (
            ([(attempt, PROMPT + 1)], new_rows(KINDS, 1.0), r"position 7: rows 0\.\.6 are there"),
            ([(attempt, -1)], new_rows(KINDS, 1.0), "position -1"),
            ([(attempt, PROMPT)], {"main": torch.zeros(1, 4)}, r"rows of \['main'\] are given, a token has \['index', 'main'\]"),
            ([(attempt, PROMPT)], new_rows((KINDS[0], RowKind("index", "float32", 3)), 1.0), r"index rows are \(1, 3\)"),
            ([(attempt, PROMPT)], new_rows((KINDS[0], RowKind("index", "int8", 2)), 1.0), "index rows are .*int8: .*float32 are due"),
        ):
            with pytest.raises(ValueError, match=why):
                engine.append(0, tokens, rows)
        with pytest.raises(ValueError, match="asks for 5 distinct positions of a hot buffer of 4"):
            engine.select(0, [attempt], torch.tensor([[0, 1, 2, 3, 4]]))
        assert all(torch.equal(pages.memory, one) for pages, one in zip(engine.memory.pages.values(), before, strict=True))
        assert engine.memory.hot.counts.misses == 0


def test_who_waits_is_told_for_what_and_goes_on_when_there_is_room() -> None:
    said: list[str] = []
    with ready() as (engine, prefill):
        engine.core._say = said.append
        first = engine.admit("first", range(PROMPT), new_tokens=20)  # 7 of 9 blocks
        second, third = (engine.admit(name, range(PROMPT), new_tokens=6) for name in ("second", "third"))
        assert engine.why(first) == ""
        assert engine.why(second) == f"attempt {second} waits for blocks: it needs 3, 2 of 9 are free (attempt {first}: 7)"
        assert f"attempt {second}, which is before it," in engine.why(third)
        assert [text.split(": ")[0] for text in said] == ["decode second", "decode third"]
        assert engine.abort(second, "no more") is True
        assert engine.abort(first, "too slow") is True
        assert engine.abort(first, "again") is False
        assert engine.failed() == [(first, "too slow")]
        assert engine.why(third) == ""
        heard = [prefill.hear() for _ in range(3)]
        assert [(type(one), getattr(one, "attempt", 0)) for one in heard] == [(Start, first), (Abort, first), (Start, third)]
        with pytest.raises(ValueError, match="has 37 tokens, all 9 blocks of 4 hold 36: give Decode more blocks"):
            engine.admit("never", range(30), new_tokens=7)
        with pytest.raises(ValueError, match="a prompt has at least 1"):
            engine.admit("empty", (), new_tokens=7)
    assert (engine.memory.free_rows, engine.memory.allocator.free) == (2, 9)


def test_the_next_attempt_in_a_row_and_its_blocks_sees_nothing_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts, one after the other, in the same row; with one nonce for both, the second would read what the first left."""

    def second(planted: bool) -> float:
        with ready() as (engine, prefill):
            for value in (3.0, 4.0):
                attempt = prefilled(engine, prefill)
                if planted:
                    engine.core.readers[attempt].attempt = 1
                engine.append(0, [(attempt, PROMPT)], new_rows(KINDS, value))
                (hot,), rows, slots = engine.select(0, [attempt], torch.tensor([[PROMPT]]))
                engine.finish(attempt)
                engine.owner.ask(lambda: None)
                engine.memory._free_rows.rotate(1)  # the row that came back is the next one's
            return float(hot[rows[0], int(slots[0, 0]), 0])

    assert second(planted=False) == 4.0
    wrote = hot_buffer.Reader.wrote

    def quietly(self: hot_buffer.Reader, layer: int, position: int) -> None:
        """The row is not fetched again for having been written: the nonce alone is to keep the attempts apart."""
        wrote(self, layer, position)
        self.keep[layer] = self.capacity

    monkeypatch.setattr(hot_buffer.Reader, "wrote", quietly)
    assert second(planted=False) == 4.0
    assert second(planted=True) == 3.0


class Held(Injector):
    """The first read is reported failed, and lands when it is let go."""

    def __init__(self) -> None:
        super().__init__(())
        self.go, self._first = threading.Event(), itertools.chain([True], itertools.repeat(False))

    def copies(self) -> Faults:
        return lambda kind, work: Fault("unknown", hold=self.go) if next(self._first) else None


def overlapping() -> str:
    """What becomes of the blocks of an attempt whose failed read is still to land, while another waits for them; "" if all is well."""
    held = Held()
    with both(layout_of({0: KINDS, 1: KINDS}), faults=held) as (engine, prefill, _):
        second = [engine.admit(name, range(PROMPT), new_tokens=20) for name in ("first", "second")][1]
        start = prefill.hear()
        assert isinstance(start, Start)
        prefill.say(prefill.ready(start, 1))
        assert isinstance(prefill.hear(), ReadFailed)
        engine.owner.ask(engine.core.admit)
        if waited := engine.why(second) != "":
            held.go.set()
        assert isinstance(prefill.hear(), Start)  # of the second, which has its memory now
        engine.memory.pages["main"].memory.fill_(55)
        held.go.set()
        engine.backend.close()  # waits for every copy
        late = not engine.memory.pages["main"].memory.eq(55).all()
        return " and ".join(["given away"] * (not waited) + ["overwritten"] * late)


def test_blocks_come_back_only_when_nothing_can_land_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert overlapping() == ""
    failed = Told.failed

    def eagerly(self: Told, attempt: int, reason: str) -> None:
        failed(self, attempt, reason)
        self._core.memory.give_back(attempt)

    monkeypatch.setattr(Told, "failed", eagerly)
    assert overlapping() == "given away and overwritten"


def test_an_engine_that_has_failed_says_why() -> None:
    with both(layout_of({0: KINDS, 1: KINDS})) as (engine, _, crashed):
        engine.owner.post(lambda: [][0])
        assert crashed.wait(10)
        end = time.monotonic() + 5
        while engine.completed() is not None and time.monotonic() < end:
            time.sleep(0.01)
        with pytest.raises(RuntimeError, match="decode-session failed: list index out of range"):
            engine.admit("r", range(4), new_tokens=1)


def test_an_engine_that_cannot_be_leaves_its_port_free() -> None:
    huge = [RowKind("main", "float32", 1 << 50)]
    with ready() as (engine, _):
        taken = engine.port
        with pytest.raises(OSError, match=f"port {taken} cannot be bound"):
            DecodeEngine(huge, layers=1, blocks=1, block_size=1, rows=1, hot=1, port=taken)  # before there is memory to miss
    for _ in range(2):
        with pytest.raises(OSError, match=r"a host pool of .* cannot be had"):
            DecodeEngine(huge, layers=1, blocks=1, block_size=1, rows=1, hot=1, port=taken)
