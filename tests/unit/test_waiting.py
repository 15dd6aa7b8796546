"""What is said of waits, when, and that what is said stands in the machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidegate.engine import decode_why, prefill_why
from tidegate.engine.waiting import Status, Wait, Watch, age, guard_at
from tidegate.spec.paths import root


def test_a_guard_is_found_where_it_stands_in_its_machine() -> None:
    names = [value for module in (prefill_why, decode_why) for value in vars(module).values()
             if isinstance(value, str) and re.fullmatch(r"[A-Z]\w+\.Can\w+", value)]  # fmt: skip
    assert len(names) == 8
    for name in names:
        file, line = guard_at(name).split(":")
        machine, operator = name.split(".")
        assert Path(file).stem == machine
        assert (root() / file).read_text().splitlines()[int(line) - 1].startswith(f"{operator}(")
    with pytest.raises(KeyError):
        guard_at("PhysicalBuffer.CanGuess")


def test_a_wait_is_said_once_and_then_ever_more_rarely_and_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now, there, said = [0.0], [Wait("gate", "run 1", "slot 0", guard="PhysicalBuffer.CanClaim", at="x:1")], list[str]()
    monkeypatch.setattr("tidegate.engine.waiting.time.monotonic", lambda: now[0])
    watch = Watch(lambda _: there, limit=10.0, warn=said.append)
    ages = []
    for second in range(100):
        now[0] = float(second)
        watch.tick()
        if len(said) > len(ages):
            ages.append(second)
        assert bool(watch.reason()) == (second > 10)
    assert ages == [11, 23, 47, 95]
    assert said[0] == "run 1 has waited 11.0 s for slot 0 [PhysicalBuffer.CanClaim is false, x:1]"
    there.clear()
    watch.tick()
    assert said[4].startswith("goes on again: run 1 has waited 99.0 s")
    assert (len(said), watch.reason(), watch.waits()) == (5, "", ())
    there.append(Wait("gate", "run 1", "slot 0"))
    watch.tick()
    assert watch.waits()[0].seconds == 0, "another wait of the same is as old as itself"


def test_what_is_not_late_is_not_news() -> None:
    said: list[str] = []
    watch = Watch(lambda now: [Wait("read", "slot 0", "an answer", 3.0), Wait("read", "slot 1", "an answer", 5.0)], limit=4.0,
                  warn=said.append)  # fmt: skip
    watch.tick()
    assert [text.split(" has")[0] for text in said] == ["slot 1"]
    status = Status("prefill", 1, "2", 4.0, watch.waits())
    assert [wait.subject for wait in status.waits] == ["slot 1", "slot 0"]
    assert [wait.subject for wait in status.late] == ["slot 1"]


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0 s"), (119.9, "119.9 s"), (180, "3 min"), (7200, "2.0 h")])
def test_ages_for_people(seconds: float, text: str) -> None:
    assert age(seconds) == text
