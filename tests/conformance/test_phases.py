"""Each machine as a `transitions` machine: its phase graph is the projection of TLC's, its moves are the machine's own, and a
callback on a gate hears when it opens."""

from __future__ import annotations

import subprocess
import sys

import pytest
from transitions import MachineError

from tidegate.engine.phase_table import PHASES
from tidegate.engine.phases import phase_machine
from tidegate.protocol.machines import contributor_group as CG
from tidegate.protocol.machines import step_agreement as SA
from tidegate.protocol.machines import transfer as TR
from tidegate.spec import draw
from tidegate.spec.edges import machines
from tidegate.spec.graph import tlc_graph
from tidegate.spec.paths import root

GRAPHS = root() / "tla" / "graphs"
FIRST = {"ContributorGroup": CG.Initial(frozenset(("m0", "m1"))), "StepAgreement": SA.Initial(frozenset(("m0", "m1")))}


def moves(name):
    """{(event, phase, phase)} of the `transitions` machine itself."""
    machine = phase_machine(name, FIRST.get(name))
    return {
        (op, source, t.dest or source)
        for op, event in machine.events.items() for source, found in event.transitions.items() for t in found
    }  # fmt: skip


def projected(graph, module):
    """The same of a graph of the machine's states."""
    return {(op, a, b) for (a, b), ops in draw.phase_edges(graph, module).items() for op in ops}


@pytest.mark.parametrize("name", sorted(machines()))
def test_the_phase_graph_is_the_projection_of_tlcs(name):
    module = machines()[name]
    graph = tlc_graph(GRAPHS / f"{name}Graph.tla", GRAPHS / f"{name}Graph.cfg")
    due = projected(graph, module)
    assert moves(name) == due
    assert len(due) > 0


def test_there_is_one_for_each_machine():
    assert set(PHASES) == set(machines())


def test_a_move_that_the_graph_lacks_is_seen():
    (first, rows) = PHASES["Transfer"]
    assert {*rows, ("Revoke", "done", "revoked")} != moves("Transfer")
    assert first == "idle"


def test_guards_and_results_are_the_machines_own():
    heard = []
    machine = phase_machine("Transfer")
    machine.on_enter_revoked(lambda event: heard.append(event.event.name))
    life = machine.model
    with pytest.raises(MachineError):
        life.trigger("Done")
    assert life.trigger("Publish")
    assert life.trigger("Revoke")
    assert (life.state, life.value, heard) == ("revoked", TR.Revoke(TR.Publish(TR.Initial())), ["Revoke"])


def test_an_event_that_the_guard_refuses_changes_nothing():
    gate = phase_machine("PhysicalBuffer")
    life = gate.model
    life.trigger("Claim", run=7, load=False)
    before = life.value
    assert not life.trigger("Write", run=8, work="w", transfers=frozenset("t"), keep=False)
    assert life.value is before
    with pytest.raises(TypeError, match="Write with run: no event"):
        life.trigger("Write", run=7)


def test_the_example_hears_when_the_gate_opens():
    done = subprocess.run([sys.executable, str(root() / "examples" / "watch_gate.py")], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("from free there is Claim")
    assert lines[1:4] == [f"released before its {reader} has ended: False" for reader in ("attention", "save", "read")]
    assert lines[4:] == ["Release: the gate of epoch 1 is open"]
