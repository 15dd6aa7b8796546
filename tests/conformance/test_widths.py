"""Every bug is seen at small bounds, and for each dimension a configuration with one more passes (`tidegate check --full`)."""

from __future__ import annotations

import pytest

from tidegate.spec.errors import SpecError
from tidegate.spec.paths import root
from tidegate.spec.variant import configurations
from tidegate.spec.widths import DIMENSIONS, WIDE, document, missing, seen, widths

MODELS = configurations()


def test_in_every_dimension_a_configuration_is_wider_than_the_bugs_need():
    found = widths(MODELS, seen())
    assert [w.dimension for w in found] == list(DIMENSIONS)
    assert missing(found) == []
    assert all(w.wider[1] > w.enough for w in found)


def test_no_bug_is_looked_for_where_a_configuration_is_only_wider():
    assert not [name for _, name in seen() if name.startswith(WIDE)]


def test_a_dimension_without_a_wider_configuration_is_noticed():
    """Planted: the configuration with three requests is gone; then one whose bug needs three."""
    fewer = [m for m in MODELS if m.bounds.attempts < 3]
    assert [line.split(":")[0] for line in missing(widths(fewer, seen()))] == ["requests (attempts)", "runs"]
    line, *_ = missing(widths(MODELS, [*seen(), ("a bug of three chunks", "wide-chunks")]))
    assert line.startswith("chunks: bugs need 3 (a bug of three chunks in wide-chunks), and no configuration has more")


def test_the_page_shows_the_table():
    page = (root() / "docs" / "model.md").read_text()
    assert document(page) == page, "run `tidegate check --mutants --write`"
    with pytest.raises(SpecError, match="has not both"):
        document("no marks")
