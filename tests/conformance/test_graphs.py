"""Every machine: TLC's reachable graph equals generated Python's, edge by edge, and a changed guard shows."""

import importlib
from pathlib import Path

import pytest

from tidegate.spec import gen, graph
from tidegate.spec.emit import snake
from tidegate.spec.errors import SpecError
from tidegate.spec.mutate import conjuncts, drop
from tidegate.spec.paths import root
from tidegate.spec.values import parse

GRAPHS = sorted((root() / "tla" / "graphs").glob("*Graph.tla"))
MACHINES = sorted((root() / "tla" / "machines").glob("*.tla"))
GATE = Path(__file__).parent / "gate"


def machine(name):
    return importlib.import_module(f"tidegate.protocol.machines.{snake(name)}")


def test_every_machine_has_a_graph():
    assert {p.stem for p in MACHINES} == {p.stem.removesuffix("Graph") for p in GRAPHS}
    assert MACHINES


@pytest.mark.parametrize("path", GRAPHS, ids=lambda p: p.stem)
def test_graphs_are_equal(path):
    theirs, wrong = graph.compare(path, path.with_suffix(".cfg"), machine(path.stem.removesuffix("Graph")))
    assert not wrong, "\n".join(wrong[:3])
    assert len(theirs) > 1
    assert theirs.number_of_edges() > 1


@pytest.fixture(scope="module")
def gate():
    """(TLC's graph, constants, the TLA+ text, the module) of a small gate of the tests' own."""
    path, config = GATE / "GateGraph.tla", GATE / "GateGraph.cfg"
    python = gen.load_source("gate", gen.compile_file(GATE / "Gate.tla"))
    theirs = graph.tlc_graph(path, config, [GATE])
    return theirs, graph.cfg_constants(config), (GATE / "Gate.tla").read_text(), python


def test_the_gate_is_equal(gate):
    theirs, constants, _, python = gate
    ours = graph.machine_graph(python, constants, sorted(graph.initial_states(theirs), key=str))
    assert graph.differences(theirs, ours) == []
    assert (len(theirs), theirs.number_of_edges()) == (len(ours), ours.number_of_edges())


GATE_CONJUNCTS = conjuncts(GATE / "Gate.tla")


@pytest.mark.parametrize("conjunct", GATE_CONJUNCTS, ids=str)
def test_a_dropped_guard_in_python_is_reported(conjunct, gate):
    theirs, constants, text, _ = gate
    python = gen.load_source("gate", gen.compile_text("Gate", drop(text, conjunct)))
    wrong = graph.differences(theirs, graph.machine_graph(python, constants, sorted(graph.initial_states(theirs), key=str)))
    assert wrong
    assert "only Python goes by" in wrong[0], wrong[0]


def test_a_wrong_argument_of_an_edge_is_reported(gate):
    theirs, constants, text, _ = gate
    python = gen.load_source("gate", gen.compile_text("Gate", text.replace("Ack(s, e.member)", 'Ack(s, "m1")')))
    wrong = graph.differences(theirs, graph.machine_graph(python, constants, sorted(graph.initial_states(theirs), key=str)))
    assert any('goes by [member |-> "m2", op |-> "Ack"]' in line for line in wrong)


def test_another_initial_state_is_reported(gate):
    theirs, constants, _, python = gate
    ours = graph.machine_graph(python, constants, [parse('[phase |-> "Free", gen |-> 1, acked |-> {}]')])
    assert graph.differences(theirs, ours)[0].startswith("only TLC begins in [acked |-> {}, gen |-> 0")


def test_constants_come_from_the_cfg(tmp_path):
    path = tmp_path / "a.cfg"
    path.write_text(
        '\\* CONSTANT X = 9\nSPECIFICATION Spec\nCONSTANTS\n  A = {m1, m2} \\* two\n  B = 3 C = "m"\nINVARIANT Inv\n'
        "CONSTANT D = TRUE\n  E = {{}, {1}}\nPROPERTIES P Q\n"
    )
    values = {"A": "{m1, m2}", "B": "3", "C": '"m"', "D": "TRUE", "E": "{{}, {1}}"}
    assert graph.cfg_constants(path) == {name: parse(text) for name, text in values.items()}
    path.write_text("CONSTANT A <- Def\n")
    with pytest.raises(SpecError, match="A <- Def can only be evaluated by TLC"):
        graph.cfg_constants(path)
