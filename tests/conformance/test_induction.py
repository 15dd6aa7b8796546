"""The invariant of tla/inductive/AnySize.tla is inductive, every part of it is needed, and it speaks of the machines as they are."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from tidegate.spec import induction_table, mutant_table
from tidegate.spec.errors import Refused, SpecError
from tidegate.spec.induction import Book, Outcome, prove
from tidegate.spec.induction_drop import Part, calls, guards, parts, without, without_guard
from tidegate.spec.mutate import Conjunct
from tidegate.spec.paths import library, root
from tidegate.spec.sany import Resolved
from tidegate.spec.smt_problem import Problem, read
from tidegate.spec.smt_step import disjuncts

SAME_PROPERTY = {"ReuseSafe": "ReuseSafe", "AckIdentity": "AckIdentity", "OneVerdict": "OneVerdict", "DestinationLifetime": "Quiescence"}
"""Property of System -> its counterpart here."""
ASKED_THERE_ONLY = {"Write": {"StepAgreement.CanEnter"}}
"""Guards that the system asks and this does not, so that more is allowed here."""
LEFT_TO_SYSTEM = ("Deliver", "Lose", "Use")
"""What is no step of a session: here a message is delivered by being looked at, and faults are not counted."""


@cache
def book() -> Book:
    return Book.of(Problem(read()))


@cache
def everything() -> dict[str, Part | Conjunct]:
    return {induction_table.name_of(x): x for x in (*parts(book().problem), *guards(book().problem.source))}


def module(tmp_path: Path, old: str, new: str, name: str = "AnySize") -> Resolved:
    """AnySize with some text of it, or of a machine, replaced."""
    (source,) = (root() / "tla").glob(f"*/{name}.tla")
    text = source.read_text()
    assert text.count(old) == 1
    (tmp_path / f"{name}.tla").write_text(text.replace(old, new))
    main = tmp_path / "AnySize.tla"
    if not main.exists():
        main.write_text((root() / "tla" / "inductive" / "AnySize.tla").read_text())
    return Resolved(main, [tmp_path, *library()])


def not_shown(source: Resolved, action: str) -> dict[str, Outcome]:
    """Of one action, or Init: conjunct -> what was not shown."""
    return {o.conjunct: o for o in prove(Problem(source), only=(action,)) if o.verdict != "shown"}


# -- the induction
def test_every_obligation_is_shown() -> None:
    outcomes = prove(book().problem)
    assert {o.verdict for o in outcomes} == {"shown"}
    assert {o.conjunct for o in outcomes if o.action == "Init"} == set(book().problem.conjuncts)
    names = {a.name for a in disjuncts(book().problem.definition("Next").body)}
    assert {o.action for o in outcomes if o.conjunct == "possible"} == names, "an action that cannot happen makes claims empty"


def test_the_properties_are_those_that_are_claimed() -> None:
    assert book().problem.properties == ["ReuseSafe", "AckIdentity", "OneVerdict", "Quiescence", "RevokedNotBelieved"]


# -- every part is needed: the committed table is right, row by row
def broken_rows() -> list[induction_table.Row]:
    """All that break something in the long run, every third in the short one."""
    return [row for row in induction_table.read() if row.breaks][:: 1 if os.environ.get("TIDEGATE_LONG") else 3]


@pytest.mark.parametrize("row", broken_rows(), ids=lambda row: row.name)
def test_what_is_left_out_is_missed(row: induction_table.Row) -> None:
    what = everything()[row.name]
    judge = without if isinstance(what, Part) else without_guard
    outcome = judge(book(), what, row.action, row.breaks)  # type: ignore[arg-type]
    assert outcome is not None
    assert (outcome.verdict, outcome.action, outcome.conjunct) == ("refuted", row.action, row.breaks)


def test_a_counterexample_can_be_read() -> None:
    """Without the transfers in the gate: a table of what concerns the step and the broken conjunct, with names."""
    outcome = without_guard(book(), everything()["PhysicalBuffer.CanRelease#5"], explain=True)  # type: ignore[arg-type]
    assert outcome is not None
    assert outcome.cti is not None
    assert outcome.cti.broken in ("NamesShut", "HeldNamed")
    assert any(path.startswith("slots[<<member1, slot1>>]") and old != new for path, old, new in outcome.cti.rows)
    assert "!val!" not in str(outcome.cti)


def test_the_table_has_a_row_for_everything() -> None:
    rows = induction_table.read()
    assert induction_table.stale(rows, list(everything().values())) == []
    assert {row.name for row in rows if not row.breaks} <= {n for n, x in everything().items() if isinstance(x, Conjunct)}


def test_a_changed_guard_makes_the_table_stale() -> None:
    rows = [row for row in induction_table.read() if row.name != "PhysicalBuffer.CanRelease#4"]
    (line,) = induction_table.stale(rows, list(everything().values()))
    assert line.startswith("PhysicalBuffer.CanRelease#4 is not in the table")


def test_guards_that_tlc_finds_load_bearing_for_these_properties_are_so_here() -> None:
    """What breaks one of the same properties at a bound, breaks the induction."""
    rows = {row.name: row for row in induction_table.read()}
    killed = {e.name: SAME_PROPERTY[e.violates] for e in mutant_table.read() if e.kind == "killed" and e.violates in SAME_PROPERTY}
    assert len(killed) >= 15
    harmless = {name for name in killed if name in rows and not rows[name].breaks}
    assert harmless <= set(BOUNDED_ONLY), "TLC's counterexample needs what this module does not have: say which, and why"


BOUNDED_ONLY: dict[str, str] = {
    "PrefillRun.CanForget#2": "no machine forgets here",
    "FailureInvalidation.CanRead#1": "no attempt is forgotten here, so each that is known has its ranks",
    "Transfer.CanLose#1": "no Decode dies here",
}
"""Guard conjunct -> why it is needed in System and not here."""


@pytest.mark.skipif(not os.environ.get("TIDEGATE_LONG"), reason="asks z3 everything about every conjunct: minutes")
def test_what_the_table_calls_harmless_is() -> None:
    for row in induction_table.read():
        if not row.breaks:
            assert without_guard(book(), everything()[row.name]) is None, row.name  # type: ignore[arg-type]


# -- planted
def test_a_false_invariant_is_refuted(tmp_path: Path) -> None:
    """A slot that is computing is said to have no transfers: an independent layer's may."""
    source = module(tmp_path, 'slots[<<m, i>>].phase \\in {"free", "loading"} =>', 'slots[<<m, i>>].phase # "draining" =>')
    cti = not_shown(source, "Claim")["NamesShut"].cti
    assert cti is not None
    assert any(path.endswith(".phase") and (old, new) == ('"draining"', '"computing"') for path, old, new in cti.rows)
    assert "NamesShut does not hold" in str(cti)


def test_an_invariant_that_does_not_hold_at_first_is_refuted(tmp_path: Path) -> None:
    wrong = not_shown(module(tmp_path, "StartRegistered == ", "StartRegistered == io # {} /\\ "), "Init")
    assert wrong["StartRegistered"].verdict == "refuted"


def test_an_invariant_of_which_there_is_no_state_shows_nothing(tmp_path: Path) -> None:
    """Everything follows from what is never so; then no action is possible, and that is said."""
    wrong = not_shown(module(tmp_path, "ReclaimedDrained == ", "ReclaimedDrained == Rank # 0 /\\ "), "Claim")
    assert wrong["possible"].verdict == "refuted"


def test_the_machines_are_read_from_their_own_modules(tmp_path: Path) -> None:
    """A machine that is changed, not the composition: the gate forgets the saves."""
    wrong = not_shown(module(tmp_path, "                 /\\ s.saves = {}\n", "", name="PhysicalBuffer"), "LayerDone")
    assert wrong["NamesShut"].verdict == "refuted"


def test_a_step_of_a_machine_is_read_too(tmp_path: Path) -> None:
    """A READ_FAILED that counts as done."""
    source = module(tmp_path, 'Fail(s) == [s EXCEPT !.phase = "failed"]', 'Fail(s) == [s EXCEPT !.phase = "done"]', name="Transfer")
    assert not_shown(source, "OnReport")["AckIdentity"].verdict == "refuted"


def test_what_z3_cannot_read_is_refused_with_its_place(tmp_path: Path) -> None:
    source = module(tmp_path, "Known(a) == ", "Known(a) == (CHOOSE x \\in Attempts : x = a) = a /\\ ")
    with pytest.raises(Refused, match=r"AnySize.tla:\d+:\d+: BoundedChoose has no translation for z3"):
        prove(Problem(source), only=("Admit", "Registered"))


def test_an_action_that_forgets_a_variable_is_refused(tmp_path: Path) -> None:
    source = module(tmp_path, "    /\\ UNCHANGED <<decode, mem, io, registered, owner, replies, landed>>\n\nResendReady",
                    "    /\\ UNCHANGED <<decode, mem, io, registered, owner, landed>>\n\nResendReady")  # fmt: skip
    with pytest.raises(SpecError, match="Revoke does not say what becomes of replies"):
        prove(Problem(source), only=("Revoke",))


# -- no fantasy of its own: the actions are System's
@cache
def system() -> Resolved:
    return read(root() / "tla" / "system" / "System.tla")


@pytest.mark.parametrize("name", sorted({a.name for a in disjuncts(read().named("Next").body)}))  # type: ignore[union-attr]
def test_an_action_asks_and_moves_what_the_systems_does(name: str) -> None:
    """The same operators of the same machines, reached in whatever way."""
    here, there = book().problem.source.named(name), system().named(name)
    assert here is not None
    assert there is not None, f"System has no action {name}"
    assert calls(book().problem.source, here.body) == calls(system(), there.body) - ASKED_THERE_ONLY.get(name, set())


def test_no_action_of_the_system_is_missing() -> None:
    """Every action behind System's Next is here, or named in docs/any-size.md as not covered."""
    here = {a.name for a in disjuncts(book().problem.definition("Next").body)}
    page = (root() / "docs" / "any-size.md").read_text()
    missing = {name for name in actions_of_system() if name not in here and name not in LEFT_TO_SYSTEM and f"`{name}`" not in page}
    assert not missing, "write it into tla/inductive/AnySize.tla, or say in docs/any-size.md that it is not covered"


def actions_of_system() -> set[str]:
    """Definitions of action level that apply a machine, or the network, directly below System's Next."""
    source, out = system(), set()
    todo = [source.named("Next").body]  # type: ignore[union-attr]
    while todo:
        for n in todo.pop().walk():
            d = source.of(n.uid) if n.kind == "app" and n.decl == "user" and n.level == 2 else None
            if d is None or n.op in out:
                continue
            if d.params:
                out.add(n.op)
                if n.op != "Deliver":
                    continue
            todo.append(d.body)
    return out
