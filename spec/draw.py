"""Draws each machine from its own graph: docs/machines.md.

Rules: nothing is drawn by hand; a diagram is the projection of the machine's reachable graph (the bounds of its .cfg) to
phases, so it shows exactly the moves that exist; guards and comments are quoted from the TLA+ source; the file is committed
and `tidegate draw --check` fails when it is stale.
"""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import networkx as nx

from tidegate.spec import gen, sany
from tidegate.spec.comments import header
from tidegate.spec.graph import cfg_constants, machine_graph
from tidegate.spec.paths import root
from tidegate.spec.values import canon, to_python

__all__ = ["check", "document", "phase_edges", "write"]

TITLE = """<!-- Generated from tla/machines and tla/graphs by `tidegate draw`; do not edit. -->
# The machines

Each machine below is a pure TLA+ module, checked by TLC alone and inside the system model ([model.md](model.md)), and compiled
to a Python module that the sessions run ([tour.md](tour.md)). A diagram shows the phases and the events that move between
them, or stay; it is computed from the machine's reachable graph. `CanX` is the guard of event `X`, quoted from the source.
"""


def document() -> str:
    """The text of docs/machines.md, from the sources as they are now. Raises SpecError if a module does not parse."""
    top = root()
    parts = [TITLE]
    for target, source in sorted(gen.outputs(top).items(), key=lambda pair: pair[1].name):
        name = source.stem
        module = importlib.import_module(f"tidegate.protocol.machines.{target.stem}")
        config = top / "tla" / "graphs" / f"{name}Graph.cfg"
        parts.append(section(source, target, module, config))
    return "\n".join(parts)


def section(source: Path, target: Path, module: ModuleType, config: Path) -> str:
    """One machine: what it is for, its diagram, its guards."""
    lines = source.read_text().splitlines()
    graph = reachable(module, config)
    diagram = mermaid(phase_edges(graph, module))
    size = f"{graph.number_of_nodes()} states, {graph.number_of_edges()} labelled edges"
    links = f"[TLA+](../tla/machines/{source.name}) · [Python](../protocol/machines/{target.name})"
    head = [f"## {source.stem}", "", f"{links} · {size} at the bounds of its .cfg", ""]
    return "\n".join([*head, header(lines), "", *diagram, "", *guard_table(source), ""])


def reachable(module: ModuleType, config: Path) -> nx.MultiDiGraph:
    """The machine's graph at the bounds of `config`; where Initial takes parameters, from all values that State allows."""
    constants = cfg_constants(config)
    if any(True for _ in _parameters(module)):
        members = {name: to_python(constants[name], module) for name in module.CONSTANTS}
        return machine_graph(module, constants, [canon(module.Initial(frozenset(*members.values())))])
    return machine_graph(module, constants)


def _parameters(module: ModuleType) -> list[str]:
    code = module.Initial.__code__
    return list(code.co_varnames[: code.co_argcount])


def phase_edges(graph: nx.MultiDiGraph, module: ModuleType) -> dict[tuple[str, str], set[str]]:
    """(phase, phase) -> names of the events that lead from one to the other; one phase if the state has none."""
    out: dict[tuple[str, str], set[str]] = defaultdict(set)
    phases = {node: phase(to_python(node, module)) for node in graph}
    for a, b, event in graph.edges(keys=True):
        out[phases[a], phases[b]].add(to_python(event, module).op)
    return out


def phase(state: Any) -> str:
    """The state's phase; what stands for it in the machines that have none."""
    if hasattr(state, "phase"):
        return str(state.phase)
    if hasattr(state, "run"):
        return "bound" if state.run else "unbound"
    ended = state.done | state.failed
    return "failed" if state.failed else "succeeded" if ended == state.members else "waiting"


def mermaid(edges: dict[tuple[str, str], set[str]]) -> list[str]:
    """A Mermaid state diagram; events that stay in a phase stand on a loop."""
    rows = [f"    {a} --> {b}: {', '.join(sorted(ops))}" for (a, b), ops in sorted(edges.items())]
    return ["```mermaid", "stateDiagram-v2", "    direction LR", *rows, "```"]


def guard_table(source: Path) -> list[str]:
    """Every guard with its text and its comment."""
    text = source.read_text().splitlines()
    rows = ["| guard | is | why |", "|---|---|---|"]
    for definition in sany.load(source).defs:
        if not re.match(r"Can[A-Z]|Missing$|Unanswered$", definition.name):
            continue
        block = [text[definition.loc.line - 1].split("==", 1)[1].strip()]
        for line in text[definition.loc.line :]:
            if not re.match(r"\s+/\\", line):
                break
            block.append(line.strip())
        body = " ".join(part for part in block if part).removeprefix("/\\ ").replace("|", "\\|")
        parameters = ", ".join(name for name, _ in definition.params)
        rows.append(f"| `{definition.name}({parameters})` | `{body}` | {' '.join(definition.comment.split())} |")
    return rows


def write() -> Path:
    """Write docs/machines.md and name it."""
    path = root() / "docs" / "machines.md"
    path.write_text(document())
    return path


def check() -> list[str]:
    """The documents that are stale; empty if all is well."""
    path = root() / "docs" / "machines.md"
    return [] if path.exists() and path.read_text() == document() else [str(path.relative_to(root()))]
