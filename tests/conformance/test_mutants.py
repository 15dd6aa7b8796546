"""The table of mutants is that of the machines as they are; one mutant of each machine is judged anew, and a wrong row is noticed.

All rows are judged anew by `tidegate check --mutants` in `make test-long`.
"""

import os
from dataclasses import replace
from functools import cache

import msgspec
import pytest

from tidegate.spec import mutant_jobs, mutant_table
from tidegate.spec.decisive import decisive, decisive_in_sessions
from tidegate.spec.errors import SpecError
from tidegate.spec.lockstep import lockstep
from tidegate.spec.mutants import DEFENCE, Verdict, again, all_mutants
from tidegate.spec.paths import root
from tidegate.spec.variant import configurations
from tidegate.spec.world import World

ENTRIES = mutant_table.read()
MUTANTS = {m.name: m for m in all_mutants()}
SMALL = "retry"


def quickest():
    """The killed mutant of each machine whose counterexample is found soonest."""
    states = {c.name: c.states for c in configurations()}
    killed = sorted((e for e in ENTRIES if e.kind == "killed"), key=lambda e: (states[e.configuration], e.steps, e.name))
    return sorted({e.machine: e for e in reversed(killed)}.values(), key=lambda e: e.name)


def judged_again(entry):
    (model,) = configurations([entry.configuration])
    return again(MUTANTS[entry.name], model, entry.violates)


@cache
def decides_in_the_model():
    """Names of all conjuncts that decide something in SMALL, according to TLC."""
    (model,) = configurations([SMALL])
    machines = {m.source: [n.conjunct for n in MUTANTS.values() if n.source == m.source] for m in MUTANTS.values()}
    found = decisive(model, list(machines.items()))
    return {m.name for m in MUTANTS.values() if m.conjunct in found}


def listed_wrongly(entries):
    """Entries said to decide nowhere that decide in the model."""
    return [e.name for e in entries if e.kind == "idle" and e.name in decides_in_the_model()]


def test_the_table_is_of_these_machines():
    assert mutant_table.stale(ENTRIES, MUTANTS.values()) == []
    assert {m.machine for m in MUTANTS.values()} == {e.machine for e in quickest()}
    assert all(e.effect and e.kind in ("killed", *DEFENCE) for e in ENTRIES)
    assert all(e.violates and e.steps and e.configuration for e in ENTRIES if e.kind == "killed")


def test_a_stale_table_says_what_to_do():
    first, second, *rest = ENTRIES
    other = msgspec.structs.replace(second, conjunct='s.phase = "nowhere"')
    lines = mutant_table.stale([other, msgspec.structs.replace(first, number=9), *rest], MUTANTS.values())
    assert [line.split()[0] for line in lines] == [first.name, f"{first.name[:-1]}9", second.name]
    assert all("tidegate check --mutants --write" in line for line in lines)
    (line,) = mutant_table.stale([msgspec.structs.replace(first, kind="open"), second, *rest], MUTANTS.values())
    assert "is open" in line


@pytest.mark.parametrize("entry", quickest(), ids=lambda e: e.name)
def test_a_mutant_is_still_killed(entry):
    verdict = judged_again(entry)
    assert mutant_table.differences([entry], [verdict]) == []
    assert (verdict.steps, verdict.effect, verdict.real) == (entry.steps, entry.effect, entry.real)


def test_a_row_with_the_wrong_property_is_noticed():
    """Its configuration has the property, but it does not break; another one does."""
    entry = next(e for e in quickest() if e.machine == "Binding")
    wrong = msgspec.structs.replace(entry, violates="PublishAfterComplete")
    (line,) = mutant_table.differences([wrong], [judged_again(wrong)])
    assert line.startswith(f"{entry.name}: committed killed PublishAfterComplete, now open")


def test_a_row_whose_counterexample_does_no_harm_is_noticed():
    """The gate forgets its transfers: GateBeforePublish breaks long before a byte is wrong, and is no reason to keep them."""
    (entry,) = [e for e in ENTRIES if e.name == "PhysicalBuffer.CanRelease#5"]
    wrong = msgspec.structs.replace(entry, violates="GateBeforePublish", configuration=SMALL)
    (line,) = mutant_table.differences([wrong], [judged_again(wrong)])
    assert "now open GateBeforePublish" in line


@pytest.mark.skipif(not os.environ.get("TIDEGATE_LONG"), reason="asks where three conjuncts decide")
def test_what_is_not_killed_where_its_row_says_is_looked_for():
    """One row is right, one names a property that does not break there, one is of defence: all get the verdict that is true."""
    rows = {e.name: e for e in ENTRIES if e.name in ("Binding.CanBind#1", "Binding.CanAccept#1", "Read.CanLanded#1")}
    wrong = mutant_table.known(rows.values()) | {"Binding.CanAccept#1": (SMALL, "PublishAfterComplete")}
    looked = []
    verdicts = mutant_jobs.judge_all([MUTANTS[name] for name in rows], configurations([SMALL]), wrong, jobs=1,
                                     looked=lambda model, left: looked.append((model.name, left)))  # fmt: skip
    assert mutant_table.differences(list(rows.values()), verdicts) == []
    assert looked == [(SMALL, 0)]


def test_any_other_word_of_a_row_is_compared():
    entry = next(e for e in quickest() if e.machine == "Binding")
    verdict = judged_again(entry)
    for field, other in {"steps": 1, "effect": "nothing", "real": "nothing", "configuration": "pool"}.items():
        (line,) = mutant_table.differences([msgspec.structs.replace(entry, **{field: other})], [verdict])
        assert line.startswith(f"{entry.name}: {field} was {other!r}, is {getattr(entry, field)!r}")


def test_configurations_that_differ_in_what_they_check_are_asked_once():
    found = mutant_jobs.apart(configurations(["live-gates", "live-runs", "messages", "live-blocks"]))
    assert [[m.name for m in same] for same in found.values()] == [["live-blocks"], ["messages"], ["live-gates", "live-runs"]]


def test_what_is_idle_decides_nowhere():
    assert listed_wrongly(ENTRIES) == []


def test_a_row_that_is_idle_by_mistake_is_noticed():
    wrong = [msgspec.structs.replace(e, kind="idle") if e.name == "PhysicalBuffer.CanWrite#2" else e for e in ENTRIES]
    assert listed_wrongly(wrong) == ["PhysicalBuffer.CanWrite#2"]


def test_a_guard_that_only_the_sessions_ask_is_heard():
    """Decode asks whether an attempt may be completed at its end too; the model had asked only when a layer arrived."""
    mutant = MUTANTS["RequestCompletion.CanComplete#1"]
    (model,) = configurations([SMALL])
    found = decisive_in_sessions(World(model.bounds), [(mutant.conjunct, mutant.module, mutant.python())])
    assert found == {mutant.conjunct}


@pytest.mark.skipif(not os.environ.get("TIDEGATE_LONG"), reason="compiles every idle mutant")
def test_what_is_idle_decides_nowhere_in_the_sessions_either():
    idle = [MUTANTS[e.name] for e in ENTRIES if e.kind == "idle"]
    changed = [(m.conjunct, m.module, m.python()) for m in idle]
    for model in configurations([SMALL, "pool", "lease-one"]):
        assert decisive_in_sessions(World(model.bounds), changed) == set()


@pytest.mark.parametrize(("name", "different"), [("PhysicalBuffer.CanExtend#1", True), ("PhysicalBuffer.CanExtend#2", False)])
def test_sessions_in_lockstep_see_a_difference_if_there_is_one(name, different):
    mutant = MUTANTS[name]
    (model,) = configurations(["independent-plain"])
    outcome = lockstep(model.bounds, mutant.module, mutant.conjunct.guard, mutant.python())
    assert bool(outcome.difference) == different
    if not different:
        assert outcome.same
        assert outcome.pairs >= model.states


def test_the_page_shows_the_table():
    page = (root() / "docs" / "model.md").read_text()
    assert mutant_table.document(page, ENTRIES) == page, "run `tidegate check --mutants --write`"


def test_a_page_without_a_place_for_the_table_is_refused():
    with pytest.raises(SpecError, match="has not both"):
        mutant_table.document("no marks", ENTRIES)


def test_verdicts_are_written_and_read_back(tmp_path):
    entry = ENTRIES[0]
    path = tmp_path / "mutants.toml"
    verdict = Verdict(MUTANTS[entry.name], "killed", "a", "NoLeak", 3, 'says "so"', "refused")
    mutant_table.write([verdict], path, list(MUTANTS))
    mutant_table.write([replace(verdict, mutant=MUTANTS[ENTRIES[1].name], kind="idle")], path, list(MUTANTS))
    assert [(e.name, e.kind, e.effect) for e in mutant_table.read(path)] == [
        (ENTRIES[0].name, "killed", 'says "so"'), (ENTRIES[1].name, "idle", 'says "so"'),
    ]  # fmt: skip
