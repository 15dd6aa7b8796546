"""Every guard of the machines that stand between two processes and their shared bytes: without it, a real run does harm.

A conjunct is dropped in the .tla, compiled, and installed in the worker concerned; no file of the product is touched.  A few run in
every `make test`, all of them, and the trace of each, in `make test-long`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from gate_tools import SCENARIOS, harm, mutants

from tidegate.spec.trace import check
from tidegate.spec.trace_lines import TraceRefused

LONG = bool(os.environ.get("TIDEGATE_LONG"))

ANY = "died: .*no load is under way|failed: |wrong bytes: "
"""The slot's owner is confused: what shows first depends on who is faster."""

HARMFUL = {
    "PhysicalBuffer.CanClaim#1": ("a slow read", ANY),
    "PhysicalBuffer.CanWrite#1": ("a slow load", ANY),
    "PhysicalBuffer.CanLeave#1": ("a run that fails while the next one owns a slot", "failed: .*'second': 'not complete"),
    "PhysicalBuffer.CanRelease#1": ("a run that fails while it loads", ANY),
    "PhysicalBuffer.CanRelease#2": ("nothing special", "failed: .*'first': 'not complete"),
    "PhysicalBuffer.CanRelease#3": ("a slow attention over one slot", "wrong bytes: first"),
    "PhysicalBuffer.CanRelease#4": ("a slow save", "wrong bytes: first"),
    "PhysicalBuffer.CanRelease#5": ("a slow read", "wrong bytes: first"),
    "Transfer.CanDone#1": ("a revoked read whose answer comes late", "wrong bytes: first"),
    "ContributorGroup.CanQuiet#1": ("a read that lands after it failed", "wrong bytes: second"),
}
QUICK = ("PhysicalBuffer.CanRelease#3", "PhysicalBuffer.CanRelease#4", "PhysicalBuffer.CanRelease#5", "ContributorGroup.CanQuiet#1")

ONE_COPY = "the data path ends each copy once, and says so once"
IN_ORDER = "one thread computes, and takes a run's steps in order"
ONE_MEMBER = "one Prefill rank: the group has one member"
HARMLESS = {
    "PhysicalBuffer.CanLoadEnded#1": ONE_COPY,
    "PhysicalBuffer.CanExtend#1": IN_ORDER,
    "PhysicalBuffer.CanExtend#2": IN_ORDER,
    "PhysicalBuffer.CanWrite#2": IN_ORDER,
    "PhysicalBuffer.CanAttended#1": ONE_COPY,
    "PhysicalBuffer.CanSaveEnded#1": ONE_COPY,
    "PhysicalBuffer.CanTransferEnded#1": "the verdict of a transfer is taken once (Transfer.CanDone, CanFail, CanRevoke)",
    "Transfer.CanPublish#1": IN_ORDER,
    "Transfer.CanFail#1": "a second verdict that is no success changes no answer",
    "Transfer.CanRevoke#1": "the worker revokes only what is_held",
    "ContributorGroup.CanBegin#1": ONE_MEMBER,
    "ContributorGroup.CanLanded#1": ONE_COPY,
    "ContributorGroup.CanDone#1": ONE_MEMBER,
    "ContributorGroup.CanDone#2": ONE_MEMBER,
    "ContributorGroup.CanFail#1": ONE_MEMBER,
    "ContributorGroup.CanFail#2": ONE_MEMBER,
    "ContributorGroup.CanSucceed#1": ONE_MEMBER,
}  # fmt: skip
"""Conjuncts whose loss a run of one rank a side cannot show, with the reason; the model has its own word on each."""


def test_every_conjunct_has_its_place_here() -> None:
    assert mutants().keys() == HARMFUL.keys() | HARMLESS.keys()


@pytest.mark.parametrize("mutant", HARMFUL if LONG else QUICK)
def test_without_it_a_real_run_does_harm(mutant: str, tmp_path: Path) -> None:
    scenario, effect = HARMFUL[mutant]
    did = harm(scenario, mutant, str(tmp_path) if LONG else "")
    assert re.match(effect, did), f"{scenario}, without {mutants()[mutant].text}: {did or 'no harm'}"
    if LONG and did.startswith("wrong bytes"):
        with pytest.raises(TraceRefused):
            check(tmp_path)


@pytest.mark.parametrize("scenario", SCENARIOS if LONG else ["a slow attention over one slot", "a read that lands after it failed"])
def test_with_every_guard_the_same_moment_is_harmless(scenario: str, tmp_path: Path) -> None:
    assert harm(scenario, trace=str(tmp_path)) == ""
    assert check(tmp_path).attempts == 2
