"""Conjuncts of guards are found with their places, and dropping one changes nothing else."""

import pytest

from tidegate.spec import gen
from tidegate.spec.mutate import conjuncts, drop
from tidegate.spec.paths import root

TEXT = """---- MODULE M ----
EXTENDS Naturals
State == [a : BOOLEAN, b : BOOLEAN, n : 0..3]
Small(s) == s.n < 3 \\* a decision: a guard uses it
Count(s) == s.n + 1
Unused(s) == s.a /\\ s.b
CanOne(s) == s.a
One(s) == [s EXCEPT !.a = FALSE]
CanTwo(s, m) == s.a /\\ (s.b \\/ m = 1) /\\ Small(s)
CanThree(s) == /\\ s.a
               /\\ \\/ s.b
                  \\/ /\\ s.n = 1
                     /\\ s.a
               /\\ Count(s) = 2 /\\ ~s.b
CanFour(s) == LET x == s.a IN x /\\ s.b
Canopy(s) == s.a /\\ s.b
====
"""


@pytest.fixture
def found(tmp_path):
    path = tmp_path / "M.tla"
    path.write_text(TEXT)
    return conjuncts(path)


def test_guards_decisions_and_their_conjuncts(found):
    assert [(c.guard, c.number, " ".join(c.text.split()), c.loc.line) for c in found] == [
        ("Small", 1, "s.n < 3", 4),
        ("CanOne", 1, "s.a", 7),
        ("CanTwo", 1, "s.a", 9),
        ("CanTwo", 2, "s.b \\/ m = 1", 9),
        ("CanTwo", 3, "Small(s)", 9),
        ("CanThree", 1, "s.a", 10),
        ("CanThree", 2, "\\/ s.b \\/ /\\ s.n = 1 /\\ s.a", 11),
        ("CanThree", 3, "Count(s) = 2", 14),
        ("CanThree", 4, "~s.b", 14),
        ("CanFour", 1, "LET x == s.a IN x /\\ s.b", 15),
    ]


def test_dropping_replaces_one_conjunct_and_moves_no_line(found):
    for c in found:
        text = drop(TEXT, c)
        assert text.count("\n") == TEXT.count("\n")
        before, after = TEXT.splitlines(), text.splitlines()
        changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b]
        assert set(changed) <= set(range(c.loc.line, c.loc.end_line + 1)), c
        gen.compile_text("M", text)


def test_the_dropped_conjunct_no_longer_counts(found):
    def guard(text, name):
        module = gen.load_source("M", gen.compile_text("M", text))
        return lambda a, b, n, *args: getattr(module, name)(module.State(a=a, b=b, n=n), *args)

    by = {(c.guard, c.number): c for c in found}
    assert not guard(TEXT, "CanTwo")(True, False, 0, 2)
    assert guard(drop(TEXT, by["CanTwo", 2]), "CanTwo")(True, False, 0, 2)
    assert not guard(TEXT, "CanTwo")(True, True, 3, 1)
    assert guard(drop(TEXT, by["Small", 1]), "CanTwo")(True, True, 3, 1)
    assert guard(drop(TEXT, by["CanThree", 2]), "CanThree")(True, False, 1)
    assert not guard(drop(TEXT, by["CanThree", 2]), "CanThree")(False, False, 1)
    assert guard(drop(TEXT, by["CanOne", 1]), "CanOne")(False, False, 0)


def test_a_conjunct_of_another_text_is_refused(found):
    with pytest.raises(ValueError, match="list the conjuncts of the same source"):
        drop("\n" + TEXT, found[0])


@pytest.mark.parametrize("path", sorted((root() / "tla" / "machines").glob("*.tla")), ids=lambda p: p.stem)
def test_every_guard_of_every_machine_is_listed(path):
    text = path.read_text()
    found = conjuncts(path)
    names = {line.split("(")[0] for line in text.splitlines() if line.startswith("Can") and line[3].isupper() and "==" in line}
    assert names <= {c.guard for c in found}
    for c in found:
        assert drop(text, c) != text


def test_installed_changes_an_imported_machine_for_its_users_and_only_for_a_time():
    module = gen.load_source("M", gen.compile_text("M", TEXT))
    state = module.State(a=False, b=True, n=0)
    mutant = gen.compile_text("M", TEXT.replace("CanOne(s) == s.a", "CanOne(s) == TRUE"))
    with gen.installed(module, mutant):
        assert module.CanOne(state)
        assert module.State(a=False, b=True, n=0) == state
    assert not module.CanOne(state)
