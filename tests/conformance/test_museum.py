"""Every property of the system model has a planted bug that TLC shows by that very property."""

import os
import re

import pytest

from tidegate.spec.museum import plant, planted, show
from tidegate.spec.paths import root
from tidegate.spec.variant import configurations

LIVE = {c.name for c in configurations() if c.live}


def chosen():
    """Bugs against fairness take longer: they are left to the long run."""
    return [bug for bug in planted() if bug.configuration not in LIVE or os.environ.get("TIDEGATE_LONG")]


@pytest.mark.parametrize("bug", chosen(), ids=lambda bug: bug.property)
def test_the_property_shows_the_bug(bug):
    result = show(bug)
    assert result.violated == bug.property, f"{bug.mistake}: TLC names {result.violated or 'nothing'}, not {bug.property}"
    assert len(result.trace) > 1


@pytest.mark.parametrize("bug", planted(), ids=lambda bug: bug.property)
def test_every_bug_can_still_be_planted(bug):
    (source,) = plant(bug).values()
    assert bug.new in source


def test_every_property_has_a_bug():
    checked = {name for c in configurations() for name in c.properties}
    assert checked == {bug.property for bug in planted()}


def test_every_witness_is_promised():
    places = (root() / "tla" / path for path in ("system/SystemWitnesses.tla", "pool/PrefixReuse.tla"))
    witnesses = {name for place in places for name in re.findall(r"^(Never\w+) ==", place.read_text(), re.MULTILINE)}
    manifest = (root() / "tla" / "models" / "manifest.toml").read_text()
    assert witnesses == set(re.findall(r'violates = "(Never\w+)"', manifest))
