"""Each machine alone, driven at random at sizes beyond its graph, against a judge that knows only the events that went by."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from stateful import judges
from stateful.judges import SIZES, Judge, Objection

from tidegate.spec.emit import snake
from tidegate.spec.graph import Machine
from tidegate.spec.paths import root
from tidegate.spec.values import canon, parse, to_python


def driver(judge: type[Judge]) -> type[RuleBasedStateMachine]:
    """A hypothesis machine whose one rule takes any event that is enabled."""
    module = importlib.import_module(f"tidegate.protocol.machines.{snake(judge.__name__)}")
    machine = Machine(module, {name: parse(text) for name, text in SIZES[judge].items()})
    states = machine.bound("States")()

    class Driver(RuleBasedStateMachine):
        steps = 0  # of the latest example

        @initialize(data=st.data())
        def begin(self, data: Any) -> None:
            first = machine.initial()
            if first is None:
                first = [module.Initial(frozenset(range(data.draw(st.integers(0, 6)))))]
            self.state = first[0]
            self.judge = judge(module, self.state)
            Driver.steps = 0

        @rule(data=st.data())
        def step(self, data: Any) -> None:
            enabled = [e for e in machine.events if machine.enabled(self.state, e)]
            if not enabled:
                return
            event = data.draw(st.sampled_from(enabled))
            Driver.steps += 1
            self.judge.before(event)
            after = machine.step(self.state, event)
            assert after in states, f"{event} leads out of the type: {after}"
            assert to_python(canon(after), module) == after
            self.state = after
            self.judge.after(event, after)

    return Driver


CI = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


def test_every_machine_has_a_judge() -> None:
    assert {j.__name__ for j in SIZES} == {p.stem for p in (root() / "tla" / "machines").glob("*.tla")}


@pytest.mark.parametrize("judge", SIZES, ids=lambda j: j.__name__)
def test_a_machine_keeps_its_promises(judge: type[Judge]) -> None:
    run_state_machine_as_test(driver(judge), settings=CI)


GUARDS = [
    (judge, name)
    for judge in SIZES
    for name in sorted(vars(importlib.import_module(f"tidegate.protocol.machines.{snake(judge.__name__)}")))
    if name.startswith("Can")
]
FOUND = settings(CI, max_examples=300, stateful_step_count=25, derandomize=True, database=None, phases=[Phase.generate])


def open_always(judge: type[Judge], guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    always: Callable[..., bool] = lambda *_: True  # noqa: E731
    monkeypatch.setattr(importlib.import_module(f"tidegate.protocol.machines.{snake(judge.__name__)}"), guard, always)


@pytest.mark.parametrize(("judge", "guard"), GUARDS, ids=[f"{judge.__name__}.{name}" for judge, name in GUARDS])
def test_a_guard_that_is_always_open_is_found(judge: type[Judge], guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_always(judge, guard, monkeypatch)
    with pytest.raises(Objection):
        run_state_machine_as_test(driver(judge), settings=FOUND)


SHRUNK = settings(FOUND, stateful_step_count=15, report_multiple_bugs=False, phases=[Phase.generate, Phase.shrink])
BROKEN = [
    (judges.PhysicalBuffer, "CanRelease", 3, "the gate opens although .* still read it"),
    (judges.PoolObject, "CanEvict", 1, "evicted although it is not readable"),
    (judges.FailureInvalidation, "CanDrained", 1, "is drained, and may still begin a read"),
]  # fmt: skip


@pytest.mark.parametrize(("judge", "guard", "shortest", "words"), BROKEN, ids=[f"{j.__name__}.{g}" for j, g, *_ in BROKEN])
def test_what_is_found_is_shrunk(
    judge: type[Judge], guard: str, shortest: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_always(judge, guard, monkeypatch)
    machine: Any = driver(judge)
    with pytest.raises(Objection, match=words):
        run_state_machine_as_test(machine, settings=SHRUNK)
    assert machine.steps <= shortest + 1  # shrinking ends at a case that no smaller one follows from
