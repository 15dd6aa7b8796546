"""Prefix reuse (tla/pool/PrefixReuse.tla): each mistake of tla/pool/planted.toml is refused on its own property, and each part of each
property is needed for one of them.

All are planted by `tidegate check --properties` in `make test-long`.
"""

from __future__ import annotations

import os
from functools import cache

import msgspec
import pytest

from tidegate.spec import weakened_table
from tidegate.spec.errors import SpecError
from tidegate.spec.museum import planted
from tidegate.spec.paths import root
from tidegate.spec.variant import configurations
from tidegate.spec.weakened import POOL, Row, bugs, judge

BUGS = planted(root() / "tla" / "pool" / "planted.toml")
MODELS = {c.name: c for c in configurations(module="PrefixReuse")}
SOON = ("what is pinned is evicted", "a process has one pin of an object, which the first of its two runs takes back",
        "what a dead process was writing is taken as stored")  # fmt: skip
"""The others, and those that rest on fairness, are left to the long run."""


@cache
def source(module: str) -> str:
    return (root() / "tla" / "pool" / f"{module}.tla").read_text()


def chosen():
    return [bug for bug in BUGS if bug.mistake in SOON or os.environ.get("TIDEGATE_LONG")]


@pytest.mark.parametrize("bug", chosen(), ids=lambda bug: bug.mistake.replace(" ", "-"))
def test_the_property_shows_the_mistake(bug):
    result = MODELS[bug.configuration].run({bug.module: source(bug.module).replace(bug.old, bug.new)})
    assert result.violated == bug.property, f"TLC names {result.violated or 'nothing'}"


def test_every_mistake_can_still_be_planted():
    assert [(bug.mistake, source(bug.module).count(bug.old)) for bug in BUGS] == [(bug.mistake, 1) for bug in BUGS]
    assert set(SOON) <= {bug.mistake for bug in BUGS}


def test_every_property_has_a_mistake():
    assert {name for model in MODELS.values() for name in model.properties} == {bug.property for bug in BUGS}


def test_the_page_lists_every_property_and_mistake():
    page = " ".join((root() / "docs" / "reuse.md").read_text().split())
    assert [bug.mistake for bug in BUGS if bug.mistake not in page] == []
    assert [bug.property for bug in BUGS if f"`{bug.property}`" not in page] == []


ROWS = weakened_table.read(subject=POOL)
WEAK = {bug.name: bug for bug in bugs(POOL)}
REMOVED = "what is removed gives its extent back at once, although somebody holds it"


@cache
def judged(name: str) -> list[Row]:
    return judge(WEAK[name], POOL)


def test_each_part_of_each_property_has_a_mistake_that_passes_without_it():
    assert weakened_table.stale(ROWS, POOL) == []
    assert {r.of for r in ROWS} == {bug.property for bug in BUGS}
    page = (root() / "docs" / "reuse.md").read_text()
    assert weakened_table.document(page, ROWS, POOL) == page, "run `tidegate check --properties --write`"


def test_a_mistake_still_passes_without_its_part():
    assert weakened_table.differences(ROWS, judged(REMOVED), [WEAK[REMOVED]]) == []
    assert {r.name for r in judged(REMOVED)} == {"PinnedStays#0", "PinnedStays#2"}


def test_planted_a_row_of_a_part_that_sees_the_mistake_all_the_same_is_noticed():
    (row,) = [r for r in ROWS if r.name == "PinnedStays#1"]
    wrong = msgspec.structs.replace(row, bug=REMOVED, configuration="reuse-removed", how="late")
    (line,) = weakened_table.differences([wrong], judged(REMOVED), [WEAK[REMOVED]])
    assert line.startswith(f"PinnedStays#1: committed '{REMOVED}' passes")
    assert "now seen all the same" in line


def test_planted_a_part_without_a_mistake_is_noticed():
    (line,) = weakened_table.stale(ROWS[1:], POOL)
    assert "tla/pool/planted.toml lacks a bug" in line


def test_planted_a_mistake_that_its_property_does_not_see_is_refused():
    other = msgspec.structs.replace(WEAK[REMOVED], property="Quiescence")
    with pytest.raises(SpecError, match=r"Quiescence does not see that what is removed .* in reuse-removed .*PinnedStays"):
        judge(other, POOL)
