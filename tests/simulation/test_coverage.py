"""Every labelled edge of every machine is walked by the real sessions in the simulator, and by a pair of ranks driven as the engine
drives them, or tla/coverage.toml says why not; a simulator that never goes somewhere is noticed, and so is a list that is not true."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tidegate.engine.cli import app
from tidegate.protocol.machines import transfer as TR
from tidegate.spec import coverage
from tidegate.spec.coverage import PAIR, PROCESSES, SIMULATOR, Coverage, Unwalked, believed, unwalked
from tidegate.spec.edges import Edge, edges, machines, walking
from tidegate.spec.errors import SpecError
from tidegate.spec.pair_world import PairWorld, pair_bounds
from tidegate.spec.trace_lines import read_file
from tidegate.spec.walks import Traced, simulated, traced
from tidegate.spec.world import Label, World

KNOWN = unwalked()
MOST = 3_000_000  # steps; a twentieth of it is enough, as a rule


@cache
def covered() -> Coverage:
    return coverage.cover(KNOWN, steps=MOST, seed=2026)


def test_what_is_not_walked_is_known() -> None:
    assert covered().wrong(KNOWN) == []
    assert len(covered().walked) > 150


def test_a_label_is_a_shape_an_event_and_a_shape() -> None:
    assert {(e.before, e.event, e.after) for e in edges("Transfer")} == {
        ("idle()", "Publish", "held()"), ("held()", "Done", "done()"), ("held()", "Fail", "failed()"), ("held()", "Revoke", "revoked()"),
        ("held()", "Lose", "lost()"),
    }  # fmt: skip
    assert Edge("PhysicalBuffer", "computing(epoch owner)", "Write(some, FALSE)", "draining(epoch attending saves transfers)") in edges(
        "PhysicalBuffer"
    )


class NeverRevokes(World):
    """Offers no revocation, although the bounds allow it."""

    def moves(self) -> list[Label]:
        return [label for label in super().moves() if label[0] != "Revoke"]


def test_a_simulator_that_never_goes_somewhere_is_noticed() -> None:
    crippled = replace(covered(), simulated=simulated(20_000, 1, world=NeverRevokes))
    lines = crippled.wrong(KNOWN)
    assert any(line.startswith("Transfer: held() -> Revoke -> revoked(): not walked in the simulator") for line in lines)


def test_a_list_that_is_not_true_is_noticed() -> None:
    gone = msgspec.structs.replace(KNOWN[0], edges="Transfer: nowhere() -> *")
    too_wide = Unwalked(SIMULATOR, "RequestCompletion: *", "none")
    lines = covered().wrong([*KNOWN[1:], gone, too_wide])
    assert any("no such edge is missing: take it out" in line and "nowhere" in line for line in lines)
    assert any("narrow the pattern" in line for line in lines)
    assert any(line.startswith("ContributorGroup: ") and "does not say why" in line for line in lines)


def test_an_edge_that_the_graph_lacks_is_noticed() -> None:
    strange = Edge("Transfer", "done()", "Revoke", "revoked()")
    (line,) = replace(covered(), explored={*covered().explored, strange}).wrong(KNOWN)
    assert line == f"{strange}: walked, but not in the graph of Transfer: widen the bounds of TransferGraph.cfg"


EDGE = Edge("Transfer", "held()", "Revoke", "revoked()")
OTHERS = [u for u in KNOWN if u.where != PROCESSES]


def found(*without: Edge, more: set[Edge] | None = None) -> Coverage:
    """Processes walked what a pair does, but for some, and more."""
    pair = set(believed(KNOWN, Traced(set(), set())).pair)
    return believed(KNOWN, Traced((pair - {*without}) | (more or set()), set()))


def test_processes_owe_what_a_pair_walked() -> None:
    assert found().wrong(OTHERS) == []
    (line,) = found(EDGE).wrong(OTHERS)
    assert line == f"{EDGE}: not walked in the processes, and tla/coverage.toml does not say why"
    assert found(EDGE).wrong(OTHERS, some=True) == []
    excused = Unwalked(PROCESSES, "Transfer: * -> Revoke -> *", "no lease")
    assert found(EDGE).wrong([*OTHERS, excused]) == []
    (line,) = found().wrong([*OTHERS, excused])
    assert "no such edge is missing: take it out" in line
    (line,) = found(EDGE).wrong([*OTHERS, msgspec.structs.replace(excused, edges="Transfer: * -> *")])
    assert "narrow the pattern" in line


def test_processes_that_walk_what_no_pair_can_refute_the_list() -> None:
    for where in (SIMULATOR, PAIR):
        beyond = next(e for e in sorted(edges("PhysicalBuffer")) if any(u.of(e) for u in KNOWN if u.where == where))
        (line,) = found(more={beyond}).wrong(OTHERS)
        assert line.startswith(f"{beyond}: walked in the processes, although tla/coverage.toml says that nobody gets there")
        assert found(more={beyond}).wrong(OTHERS, some=True) == [line]


class NeverFails(PairWorld):
    """No read of it fails, although the bounds allow it."""

    def remote(self) -> Iterator[Label]:
        return (label for label in super().remote() if label[0] != "ReadEnd" or label[3] == "ok")


def test_a_pair_that_never_goes_somewhere_or_goes_too_far_is_noticed() -> None:
    crippled = replace(covered(), pair=simulated(20_000, 1, world=NeverFails, sizes=pair_bounds))
    due = "Read: reading(landing) -> EndFailed(TRUE) -> failed(): not walked in the pair"
    assert any(line.startswith(due) for line in crippled.wrong(KNOWN))
    loose = replace(covered(), pair=simulated(20_000, 1, world=World, sizes=pair_bounds))
    assert any("attending" in line and "Write(some" in line and "narrow the pattern" in line for line in loose.wrong(KNOWN))


def test_what_depends_on_a_race_may_be_walked_and_need_not_be() -> None:
    known = [*OTHERS, Unwalked(PROCESSES, str(EDGE), "a race", sometimes=True)]
    assert found().wrong(known) == found(EDGE).wrong(known) == []
    nowhere = [*OTHERS, Unwalked(PROCESSES, "Transfer: nowhere() -> *", "a race", sometimes=True)]
    (line,) = found().wrong(nowhere)
    assert "no such edge is missing: take it out" in line


HEAD = (
    '{"process":"decode-0","seq":0,"kind":"header","format":3,"protocol":2,"role":"decode","rank":0,"ranks":1,"members":1,'
    '"incarnation":16,"layers":1}\n'
)


def event(seq: int, op: str) -> str:
    return f'{{"process":"decode-0","seq":{seq},"kind":"event","op":"{op}","attempt":73}}\n'


def test_what_a_process_did_before_it_was_killed_counts(tmp_path: Path) -> None:
    path = tmp_path / "decode-0.jsonl"
    path.write_text(HEAD + event(1, "Admit") + event(2, "Registered")[:-9])
    assert {edge.event for edge in traced([tmp_path]).pairs if edge.machine == "RequestCompletion"} == {"Allocate(some)"}
    assert not read_file(path).ended
    path.write_text(HEAD[:-9])
    assert traced([tmp_path]) == (set(), set())


def test_an_event_that_the_sessions_refuse_covers_nothing(tmp_path: Path) -> None:
    path = tmp_path / "decode-0.jsonl"
    path.write_text(HEAD + event(1, "Admit") + event(2, "Finish"))
    with pytest.raises(SpecError, match=r"decode-0.jsonl:3: Finish\(attempt=73\) was accepted there, and is refused here"):
        traced([tmp_path])


def test_the_machines_are_as_they_were_after_a_walk() -> None:
    real = TR.Publish
    with walking() as walked:
        assert TR.Publish is not real
        assert TR.Publish(TR.Initial()) == real(TR.Initial())
        with pytest.raises(SpecError, match="within another"), walking():
            pass
    assert TR.Publish is real
    assert len(walked) == 1


def test_a_simulation_that_fails_covers_nothing() -> None:
    class Loses(World):
        def violations(self) -> list[str]:
            return ["planted"]

    with pytest.raises(SpecError, match="it says nothing about coverage: planted"):
        simulated(100, 1, world=Loses)


def test_every_machine_has_edges() -> None:
    assert all(edges(name) for name in machines())


def test_processes_without_traces_is_refused_with_the_way_out() -> None:
    done = CliRunner().invoke(app, ["coverage", "--processes"])
    assert done.exit_code == 2
    assert "give the folders" in " ".join(done.output.replace("│", " ").split())
