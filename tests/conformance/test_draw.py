"""docs/machines.md shows the machines as they are."""

from __future__ import annotations

import importlib

import pytest

from tidegate.spec import draw, gen
from tidegate.spec.graph import cfg_constants, machine_graph
from tidegate.spec.paths import root


def test_committed_drawing_is_current() -> None:
    assert draw.check() == [], "run `tidegate draw` and commit docs/machines.md"


def test_a_changed_machine_makes_the_drawing_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a gate that opens while saves run has the same phases, but its quoted guard differs."""
    real = draw.guard_table
    monkeypatch.setattr(draw, "guard_table", lambda source: [row.replace("s.saves = {} /\\ ", "") for row in real(source)])
    assert draw.check() == ["docs/machines.md"]


def test_phase_edges_are_the_graphs_projection() -> None:
    """A move that a wrong machine has shows in its diagram."""
    module = importlib.import_module("tidegate.protocol.machines.physical_buffer")
    source = (root() / "tla/machines/PhysicalBuffer.tla").read_text()
    constants = cfg_constants(root() / "tla/graphs/PhysicalBufferGraph.cfg")
    right = draw.phase_edges(machine_graph(module, constants), module)
    assert ("loading", "computing") in right
    assert ("free", "draining") not in right
    wrong = gen.load_source("PhysicalBuffer", gen.compile_text("PhysicalBuffer", source.replace(
        'CanExtend(s, r) == s.phase = "draining" /\\ s.owner = r', 'CanExtend(s, r) == TRUE')))  # fmt: skip
    moves = draw.phase_edges(machine_graph(wrong, constants), wrong)
    assert "Extend" in moves["free", "computing"]
    assert "Extend" not in right["free", "computing"]
