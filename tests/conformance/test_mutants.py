"""The table of mutants is that of the machines as they are, and one mutant of each machine is judged anew."""

from dataclasses import replace

import msgspec
import pytest

from tidegate.spec import mutant_table
from tidegate.spec.decisive import decisive
from tidegate.spec.lockstep import lockstep
from tidegate.spec.mutants import DEFENCE, all_mutants, judge
from tidegate.spec.paths import root
from tidegate.spec.variant import configurations

ENTRIES = mutant_table.read()
MUTANTS = {m.name: m for m in all_mutants()}


def quickest():
    """The killed mutant of each machine whose counterexample is the shortest in a small configuration."""
    states = {c.name: c.states for c in configurations()}
    killed = [e for e in ENTRIES if e.kind == "killed"]
    order = sorted(killed, key=lambda e: (states[e.configuration] > 20_000, e.steps, e.name))
    return list({e.machine: e for e in reversed(order)}.values())


def test_the_table_is_of_these_machines():
    assert mutant_table.stale(ENTRIES) == []
    assert {e.machine for e in ENTRIES} == {e.machine for e in quickest()}
    assert all(e.kind in ("killed", *DEFENCE) for e in ENTRIES)
    assert all(e.effect for e in ENTRIES)


@pytest.mark.parametrize("entry", quickest(), ids=lambda e: e.name)
def test_a_mutant_is_still_killed(entry):
    (model,) = configurations([entry.configuration])
    verdict = judge(MUTANTS[entry.name], [model], 1)
    assert (verdict.kind, verdict.violated, verdict.steps) == ("killed", entry.violates, entry.steps), verdict.effect
    assert verdict.effect == entry.effect


def test_the_page_shows_the_table():
    page = (root() / "docs" / "model.md").read_text()
    assert mutant_table.document(page, ENTRIES) == page, "run `tidegate check --mutants --write`"


def test_a_stale_table_says_what_to_do():
    first, second, *rest = ENTRIES
    other = msgspec.structs.replace(second, conjunct="s.phase = \"nowhere\"")
    lines = mutant_table.stale([other, msgspec.structs.replace(first, number=9), *rest])
    assert [line.split()[0] for line in lines] == [first.name, f"{first.name[:-1]}9", second.name]
    assert all("tidegate check --mutants --write" in line for line in lines)
    (line,) = mutant_table.stale([msgspec.structs.replace(first, kind="open"), second, *rest])
    assert "is open" in line


def test_a_judgement_that_differs_is_reported():
    entry = next(e for e in ENTRIES if e.kind == "killed")
    (model,) = configurations([entry.configuration])
    verdict = judge(MUTANTS[entry.name], [model], 1)
    assert mutant_table.differences(ENTRIES, [verdict]) == []
    (line,) = mutant_table.differences(ENTRIES, [replace(verdict, violated="NoLeak")])
    assert entry.violates in line
    assert "NoLeak" in line


def test_what_decides_is_found():
    mutants = [m for name, m in MUTANTS.items() if name.startswith("PhysicalBuffer.")]
    (model,) = configurations(["independent-plain"])
    found = {c.guard + str(c.number) for c in decisive(model, [(mutants[0].source, [m.conjunct for m in mutants])])}
    assert {"CanExtend1", "CanRelease2"} <= found
    assert not {"CanExtend2", "CanLoadEnded1"} & found


@pytest.mark.parametrize(("name", "different"), [("PhysicalBuffer.CanExtend#1", True), ("PhysicalBuffer.CanExtend#2", False)])
def test_sessions_in_lockstep_see_a_difference_if_there_is_one(name, different):
    mutant = MUTANTS[name]
    (model,) = configurations(["independent-plain"])
    outcome = lockstep(model.bounds, mutant.module, mutant.conjunct.guard, mutant.python())
    assert bool(outcome.difference) == different
    if not different:
        assert outcome.same
        assert outcome.pairs >= model.states
