"""An attempt that is preempted on Decode and goes on: what it gives up, what it keeps, who comes first, and mistakes that would show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from decode_tools import KINDS, PROMPT, SLOT_OF_LAYER, Prefill, both, layout_of

from tidegate.engine.decode_engine import DecodeEngine
from tidegate.engine.decode_memory import PARKED, DecodeMemory, Destination
from tidegate.engine.decode_parking import Parking
from tidegate.engine.hot_buffer import Reader
from tidegate.protocol.messages import ReadDone, Start

SOURCE = (5, 2)


def serve(engine: DecodeEngine, prefill: Prefill, attempt: int) -> None:
    start = prefill.hear()
    assert isinstance(start, Start)
    assert start.attempt == attempt
    assert all(isinstance(prefill.serve(start, layer), ReadDone) for layer in (1, 2, 3))
    assert engine.completed(wait=True) == [attempt]


def prefilled(engine: DecodeEngine, prefill: Prefill) -> int:
    attempt = engine.admit("r", range(PROMPT), new_tokens=2)
    serve(engine, prefill, attempt)
    return attempt


def step(engine: DecodeEngine, attempt: int, position: int, value: float, asked: list[int]) -> list[float]:
    """Append a row of `value` in every layer; the first element of the main rows that layer 0 then reads."""
    for layer in range(3):
        engine.append(layer, [(attempt, position)], {kind.name: torch.full((1, kind.width), value) for kind in KINDS})
    (hot,), rows, slots = engine.select(0, [attempt], torch.tensor([asked]))
    return hot[rows[0], slots[0].long(), 0].tolist()


def taking_turns(engine: DecodeEngine, prefill: Prefill) -> None:
    """A row for two and a third; AssertionError where anybody reads what is not his, or is not served in his turn."""
    source = prefill.memory.view(SLOT_OF_LAYER[0], "main")[list(SOURCE)].reshape(-1, 4)[:, 0].tolist()
    one, two = prefilled(engine, prefill), prefilled(engine, prefill)
    assert step(engine, one, PROMPT, 7.0, [6, 1, 0]) == [7.0, source[1], source[0]]
    third = engine.admit("third", range(PROMPT), new_tokens=2)
    assert "waits for a row of the hot buffers" in engine.why(third)
    assert engine.lacks() == "row"
    engine.preempt(one)
    assert engine.lacks() == ""
    with pytest.raises(KeyError, match="only what `completed` named can be decoded"):
        engine.append(0, [(one, PROMPT + 1)], {})
    serve(engine, prefill, third)
    fourth = engine.admit("fourth", range(PROMPT), new_tokens=0)
    assert "waits for" in engine.why(fourth)
    engine.resume(one)
    engine.resume(one)
    assert "waits for a row of the hot buffers: all 2" in engine.why(one)
    assert step(engine, third, PROMPT, 9.0, [6, 2, 1]) == [9.0, source[2], source[1]]
    engine.preempt(third)
    assert engine.completed() == [one], "who was here before comes first"
    assert step(engine, one, PROMPT + 1, 8.0, [7, 6, 1]) == [8.0, 7.0, source[1]]
    engine.resume(third)  # before there is a row: later, `fourth` might have it
    engine.finish(two)
    assert engine.completed(wait=True) == [third]
    assert step(engine, third, PROMPT + 1, 5.0, [6, 7, 2]) == [9.0, 5.0, source[2]]
    assert engine.abort(third, "it is complete") is False
    engine.preempt(third)
    for attempt in (one, third):
        engine.finish(attempt)
    assert isinstance(start := prefill.hear(), Start)
    assert start.attempt == fourth


def turns() -> None:
    with both(layout_of({0: KINDS, 1: KINDS})) as (engine, prefill, _):
        taking_turns(engine, prefill)
    assert sorted(engine.memory._free_rows) == [0, 1]
    assert engine.memory.allocator.free == 9


def test_attempts_take_turns() -> None:
    turns()


def lose_blocks(park: Callable[[DecodeMemory, int], Destination]) -> Callable[[DecodeMemory, int], Destination]:
    def planted(self: DecodeMemory, attempt: int) -> Destination:
        found = park(self, attempt)
        self.allocator.give_back(attempt)
        self.allocator._free.rotate(2)  # to the next one
        return found

    return planted


def keep_row(park: Callable[[DecodeMemory, int], Destination]) -> Callable[[DecodeMemory, int], Destination]:
    def planted(self: DecodeMemory, attempt: int) -> Destination:
        found = park(self, attempt)
        self.owned[attempt] = found
        return found

    return planted


def behind(admitted: Callable[[Parking], list[int]]) -> Callable[[Parking], list[int]]:
    """Gives way to those that are new."""
    return lambda self: [] if self._memory.allocator.lacks else admitted(self)


@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [(DecodeMemory, "park", lose_blocks), (DecodeMemory, "park", keep_row), (Parking, "returned", behind)],
    ids=["its blocks go to others too", "its row comes back twice", "new ones come first"],
)  # fmt: skip
def test_planted_mistakes_are_seen(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, mistake: Callable[..., object]) -> None:
    monkeypatch.setattr(owner, name, mistake(getattr(owner, name)))
    with pytest.raises((AssertionError, ValueError, IndexError, RuntimeError)):
        turns()


def gone_on(monkeypatch: pytest.MonkeyPatch, *, planted: bool) -> list[float]:
    """What an attempt reads that comes back to a row whose hot buffers have been used up since, by nobody that the table knows."""
    if planted:
        monkeypatch.setattr(Reader, "move", lambda self, row: setattr(self, "row", row))
    with both(layout_of({0: KINDS, 1: KINDS})) as (engine, prefill, _):
        attempt = prefilled(engine, prefill)
        step(engine, attempt, PROMPT, 7.0, [6])
        row = engine.memory.owned[attempt].row
        engine.preempt(attempt)
        assert engine.memory.owned[attempt].row == PARKED
        engine.memory.hot.memory[0][:, row] = 99.0
        engine.memory._free_rows.reverse()
        engine.resume(attempt)
        assert engine.completed(wait=True) == [attempt]
        assert engine.memory.owned[attempt].row == row
        return step(engine, attempt, PROMPT + 1, 8.0, [6, 7])


def test_nothing_is_hot_where_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gone_on(monkeypatch, planted=False) == [7.0, 8.0]
    assert gone_on(monkeypatch, planted=True) == [99.0, 8.0]


def test_what_is_not_parked_cannot_be_resumed_and_what_is_can_be_finished() -> None:
    with both(layout_of({0: KINDS, 1: KINDS})) as (engine, prefill, _):
        one, two = prefilled(engine, prefill), prefilled(engine, prefill)
        with pytest.raises(KeyError, match=f"attempt {one} is not preempted"):
            engine.resume(one)
        with pytest.raises(KeyError, match="attempt 5 is not complete, or over"):
            engine.preempt(5)
        engine.preempt(one)
        with pytest.raises(KeyError, match="is not complete, or over"):
            engine.preempt(one)
        engine.finish(one)
        with pytest.raises(KeyError, match=f"attempt {one} is not preempted"):
            engine.resume(one)
        engine.preempt(two)  # and the engine ends
    assert sorted(engine.memory._free_rows) == [0, 1]
    assert engine.memory.allocator.free == 9
