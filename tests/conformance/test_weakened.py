"""Each part of each property says something: the table of tla/properties.toml is that of the properties as they are, some of its
bugs are planted anew, and a wrong row is noticed.

All bugs are planted by `tidegate check --properties` in `make test-long`.
"""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from tidegate.spec import mutant_table, weakened_table
from tidegate.spec.errors import SpecError
from tidegate.spec.paths import root
from tidegate.spec.variant import configurations
from tidegate.spec.watch import broken
from tidegate.spec.weaken import properties
from tidegate.spec.weakened import all_properties, best, bugs, judge

ROWS = weakened_table.read()
BUGS = {bug.name: bug for bug in bugs()}
SOON = ("epoch before", "save too early", "finished object spoilt", "closed too early")  # alone, late, of a step, of two parts


@cache
def judged(name):
    return judge(BUGS[name])


def test_the_table_is_of_these_properties():
    assert weakened_table.stale(ROWS) == []
    assert {r.how for r in ROWS} == {"alone", "late"}
    assert {r.bug for r in ROWS} == set(BUGS), "a bug that no row needs costs time and shows nothing"


@pytest.mark.parametrize("name", SOON)
def test_a_bug_still_passes_without_its_part(name):
    assert weakened_table.differences(ROWS, judged(name), [BUGS[name]]) == []
    assert {r.name for r in ROWS if r.bug == name} <= {r.name for r in judged(name)}


def test_a_row_of_a_part_that_sees_the_bug_all_the_same_is_noticed():
    """The save begins too early: without its case for the attention the property sees that as well as with it."""
    (row,) = [r for r in ROWS if r.name == "LoadBeforeCompute#1"]
    wrong = msgspec.structs.replace(row, bug="save too early", how="late")
    (line,) = weakened_table.differences([wrong], judged("save too early"), [BUGS["save too early"]])
    assert line.startswith("LoadBeforeCompute#1: committed 'save too early' passes")
    assert "now seen all the same" in line


def test_a_row_that_says_alone_where_others_see_it_later_is_noticed():
    (row,) = [r for r in ROWS if r.name == "LoadBeforeCompute#2"]
    assert row.how == "late"
    wrong = msgspec.structs.replace(row, how="alone", later="")
    (line,) = weakened_table.differences([wrong], judged("save too early"), [BUGS["save too early"]])
    assert "now 'save too early' passes in retry (late" in line


def test_a_part_without_a_bug_is_noticed():
    first, *rest = ROWS
    (line,) = weakened_table.stale(rest)
    assert line.startswith(f"{first.name} (")
    assert "has no bug that passes without it: it says nothing" in line
    (line,) = weakened_table.stale([msgspec.structs.replace(first, text="TRUE"), *rest])
    assert line.startswith(f"{first.name} was (TRUE), is (")


def test_the_model_as_it_is_breaks_nothing():
    (model,) = configurations(["retry"])
    asked = [p for p in all_properties() if p.name in model.properties]
    assert len(asked) > 10
    assert broken(model, {}, asked) == {}


def test_every_bug_can_still_be_planted():
    mutants = {e.name for e in mutant_table.read()}
    assert all(bug.mutant in mutants if bug.mutant else bug.changed() for bug in BUGS.values())


def test_the_row_that_says_most_is_taken():
    row = next(r for r in ROWS if r.how == "alone" and r.configuration == "retry")
    late = msgspec.structs.replace(row, how="late", bug="another")
    larger = msgspec.structs.replace(row, configuration="failures", bug="a third")
    assert best([late, larger, row]) == [row]


def test_the_page_shows_the_table():
    page = (root() / "docs" / "model.md").read_text()
    assert weakened_table.document(page, ROWS) == page, "run `tidegate check --properties --write`"
    with pytest.raises(SpecError, match="has not both"):
        weakened_table.document("no marks", ROWS)


MODULE = r"""
---- MODULE Small ----
EXTENDS Naturals
VARIABLES x, y
vars == <<x, y>>
Whole == x < 3
Parts ==
    /\ \A i \in {1} :
        /\ x = i => y # 1
        /\ x < 9
    /\ \/ x # 2
       \/ y = 0
Cases == (x \in {"a", "b"} \/ y = 1) => y < 2
Step == [][\A i \in {1} : x \in {"a", "b"} => y' = y]_vars
Ends == x \in {"a", "b"} ~> y = 1
====
"""


def test_what_can_be_left_out_of_a_property(tmp_path):
    (tmp_path / "Small.tla").write_text(MODULE)
    found = {p.name: p for p in properties(["Whole", "Parts", "Cases", "Step", "Ends"], tmp_path)}

    def said(name):
        return [(w.kind, w.line) for w in found[name].weakenings[1:]]

    assert all(p.weakenings[0].kind == "all" for p in found.values())
    assert said("Whole") == []
    assert [line for _, line in said("Parts")] == [
        "\\A i \\in {1} : /\\ x = i => y # 1 /\\ x < 9", "x = i => y # 1", "x < 9", "\\/ x # 2 \\/ y = 0",
    ]  # fmt: skip
    assert {kind for kind, _ in said("Parts")} == {"conjunct"}
    assert [line for _, line in said("Cases")] == ['x \\in {"a", "b"}', "y = 1", '"a"', '"b"']
    assert said("Step") == said("Ends") == [("premise", '"a"'), ("premise", '"b"')]
    assert (found["Step"].temporal, found["Ends"].temporal) == (False, True)
    weaker = [w for w in found["Parts"].weakenings if w.line == "x < 9"]
    assert found["Parts"].written(weaker[0]).splitlines()[2] == "        /\\ TRUE "
    assert found["Step"].written(found["Step"].weakenings[1], step=True).strip() == '\\A i \\in {1} : x \\in {"-", "b"} => y\' = y'
    with pytest.raises(SpecError, match="defines Nothing: a property is named"):
        properties(["Nothing"], tmp_path)
