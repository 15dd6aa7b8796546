"""Prefix reuse (tla/pool/PrefixReuse.tla): each mistake of tla/pool/planted.toml is refused on its own property."""

from __future__ import annotations

import os
from functools import cache

import pytest

from tidegate.spec.museum import planted
from tidegate.spec.paths import root
from tidegate.spec.variant import configurations

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
