"""Every guard of the machines that stand between two processes and their shared bytes: without it, a real run does harm.

A conjunct is dropped in the .tla, compiled, and installed in the worker concerned; no file of the product is touched.  What cannot
be shown so has a reason that a machine decides, here or in tla/mutants.toml.  A few run in every `make test`, all of them, and the
trace of each, in `make test-long`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from gate_tools import ASKS, SCENARIOS, AsTheEngine, harm, mutants
from pair_tools import mutated

from tidegate.engine import pair
from tidegate.engine.cli import run
from tidegate.spec import mutant_table
from tidegate.spec.decisive import decisive_in_sessions
from tidegate.spec.lockstep import lockstep
from tidegate.spec.mutants import DEFENCE
from tidegate.spec.trace import check
from tidegate.spec.trace_lines import TraceRefused
from tidegate.spec.variant import configurations
from tidegate.spec.world import World

LONG = bool(os.environ.get("TIDEGATE_LONG"))

ANY = "died: .*(no load is under way|is not pinned)|failed: |wrong bytes: "
"""The slot's owner is confused: what shows first depends on who is faster."""

HARMFUL = {
    "PhysicalBuffer.CanClaim#1": ("a slow read", ANY),
    "PhysicalBuffer.CanExtend#1": (ASKS, "refused: .*Claim.*PhysicalBuffer.CanExtend"),
    "PhysicalBuffer.CanWrite#1": ("a slow load", ANY),
    "PhysicalBuffer.CanLeave#1": ("a run that fails while the next one owns a slot", "failed: .*'second': 'not complete"),
    "PhysicalBuffer.CanRelease#1": ("a run that fails while it loads", ANY),
    "PhysicalBuffer.CanRelease#2": ("nothing special", "failed: .*'first': 'not complete"),
    "PhysicalBuffer.CanRelease#3": ("a slow attention over one slot", "wrong bytes: first"),
    "PhysicalBuffer.CanRelease#4": ("a slow save", "wrong bytes: first"),
    "PhysicalBuffer.CanRelease#5": ("a slow read", "wrong bytes: first"),
    "Transfer.CanDone#1": ("a revoked read whose answer comes late", "wrong bytes: first"),
    "ContributorGroup.CanQuiet#1": ("a read that lands after it failed", "wrong bytes: second|died: decode: "),
}
QUICK = (
    "PhysicalBuffer.CanExtend#1", "PhysicalBuffer.CanRelease#3", "PhysicalBuffer.CanRelease#4", "PhysicalBuffer.CanRelease#5",
    "ContributorGroup.CanQuiet#1",
)  # fmt: skip

NEVER_ASKED = {"PhysicalBuffer.CanWrite#2": "retry", "Transfer.CanRevoke#1": "lease-one"}
"""Load-bearing in the configuration named, where runs compute in any order and a lease runs out at any time; but the engine
computes in one thread, run after run, and keeps leases of held transfers only, so it asks neither where it would say no."""
RECORD_ONLY = ("Transfer.CanFail#1",)
"""Without it a verdict changes its name after its end; every message, effect and byte stays the same, so no run can show it."""
TO_THE_DEAD = {"Transfer.CanLose#1": "explore-crash-decode"}
"""Without it a report of a dead Decode that comes late is answered with a second verdict; but whoever would hear it is dead."""
IDLE = {e.name for e in mutant_table.read() if e.kind in DEFENCE} & mutants().keys() - HARMFUL.keys() | {"ContributorGroup.CanSucceed#1"}
"""Defence in depth: at one rank a side nothing can tell whether they are there; tla/mutants.toml has the reason of each."""


def test_every_conjunct_has_its_place_here() -> None:
    assert sorted(mutants()) == sorted([*HARMFUL, *NEVER_ASKED, *RECORD_ONLY, *TO_THE_DEAD, *IDLE])


@pytest.mark.parametrize("name", NEVER_ASKED)
@pytest.mark.parametrize(("world", "decides"), [(AsTheEngine, False), (World, True)])
def test_the_engine_never_asks_where_it_would_decide(name: str, world: type[World], decides: bool) -> None:
    (model,) = configurations([NEVER_ASKED[name]])
    one = mutants()[name]
    assert bool(decisive_in_sessions(world(model.bounds), [(one.conjunct, one.module, one.python())])) == decides


@pytest.mark.parametrize("name", RECORD_ONLY)
@pytest.mark.parametrize("configuration", ["lease-one", "failures"] if LONG else ["lease-one"])
def test_nobody_outside_can_tell_whether_it_is_there(name: str, configuration: str) -> None:
    (model,) = configurations([configuration])
    outcome = lockstep(model.bounds, mutants()[name].module, mutants()[name].conjunct.guard, mutants()[name].python())
    assert outcome.difference == ""
    assert outcome.pairs >= model.states


@pytest.mark.parametrize("name", TO_THE_DEAD)
def test_only_the_dead_would_hear_what_it_prevents(name: str) -> None:
    (model,) = configurations([TO_THE_DEAD[name]])
    outcome = lockstep(model.bounds, mutants()[name].module, mutants()[name].conjunct.guard, mutants()[name].python())
    first = r"\('READ_(DONE|FAILED)', \([\d, ]+\), 1\)"  # of the first life of Decode, which is the one that dies
    assert re.search(f"after \\('Deliver', {first}, .*two verdicts", outcome.difference)


@pytest.mark.parametrize("mutant", HARMFUL if LONG else QUICK)
def test_without_it_a_real_run_does_harm(mutant: str, tmp_path: Path) -> None:
    scenario, effect = HARMFUL[mutant]
    did = harm(scenario, mutant, str(tmp_path) if LONG or effect.startswith("refused") else "")
    assert re.match(effect, did), f"{scenario}, without {mutants()[mutant].text}: {did or 'no harm'}"
    if LONG and did.startswith("wrong bytes"):
        with pytest.raises(TraceRefused):
            check(tmp_path)


def test_a_run_over_a_skipped_gate_says_that_it_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What a user sees: `tidegate run` compares, says so, and ends with 1."""
    m = mutants()["PhysicalBuffer.CanRelease#4"]
    skipped = mutated("prefill", m.module.__name__.rsplit(".", 1)[1], m.python())
    argv = pair.worker_argv
    monkeypatch.setattr(pair, "worker_argv", lambda role: skipped if role == "prefill" else argv(role))
    assert run._run(SCENARIOS["a slow save"](), oracle=False) == 1
    assert "NOT EQUAL" in capsys.readouterr().out


@pytest.mark.parametrize("scenario", SCENARIOS if LONG else ["a slow attention over one slot", "a read that lands after it failed"])
def test_with_every_guard_the_same_moment_is_harmless(scenario: str, tmp_path: Path) -> None:
    watched = {name: mutants()[name] for name in (*NEVER_ASKED, *IDLE)} if LONG else {}
    assert harm(scenario, trace=str(tmp_path), watched=watched) == ""
    assert check(tmp_path).attempts == 2
