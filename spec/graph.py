"""Compares the state graph that TLC reaches with the one that a generated machine reaches.

Rules: both graphs have canonical values (`values`) as nodes and event records as edge keys, so that an edge counts with its
arguments; the constants are read from the .cfg that TLC used; parallel edges are kept (TLC's dot says `strict`, so it is
read by regular expression and never by a dot library).
"""

from __future__ import annotations

import inspect
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import networkx as nx

from tidegate.spec import tlc
from tidegate.spec.errors import SpecError
from tidegate.spec.paths import library
from tidegate.spec.values import Value, canon, parse, parse_state, show, to_python

EDGE = re.compile(r'^(-?\d+) -> (-?\d+)(?: \[label="([^"]*)")?')
NODE = re.compile(r'^(-?\d+) \[label="((?:[^"\\]|\\.)*)"(,style = filled)?')
UNESCAPE = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
MANY = 200_000  # states; beyond it a dump takes gigabytes


def cfg_constants(config: Path) -> dict[str, Value]:
    """CONSTANTS of a .cfg as canonical values; a model value is the string of its name.

    Raises SpecError for `Name <- Definition`, since only TLC can evaluate that.
    """
    text = re.sub(r"\(\*.*?\*\)", " ", re.sub(r"\\\*.*", "", config.read_text()), flags=re.DOTALL)
    words = "SPECIFICATION|INIT|NEXT|INVARIANTS?|PROPERT(?:Y|IES)|CONSTRAINTS?|ACTION_CONSTRAINTS?|SYMMETRY|VIEW|CONSTANTS?"
    out: dict[str, Value] = {}
    for section in re.findall(rf"^\s*CONSTANTS?\b(.*?)(?=^\s*(?:{words})\b|\Z)", text, re.DOTALL | re.MULTILINE):
        if arrow := re.search(r"(\w+)\s*<-\s*(\w+)", section):
            raise SpecError(f"{config.name}: {arrow[1]} <- {arrow[2]} can only be evaluated by TLC: write the value, with =")
        starts = list(re.finditer(r"(\w+)\s*=(?!>)", section))
        ends = [m.start() for m in starts[1:]] + [len(section)]
        out |= {m[1]: parse(section[m.end() : end].strip()) for m, end in zip(starts, ends, strict=True)}
    return out


def read_dot(path: Path, state: str = "s", event: str = "ev") -> nx.MultiDiGraph:
    """TLC's dump: nodes are values of the variable `state`, edge keys the value of `event` after the step."""
    graph = nx.MultiDiGraph()
    nodes: dict[str, tuple[Value, Value]] = {}
    edges: list[tuple[str, str]] = []
    memo: dict[str, dict[str, Value]] = {}
    with path.open() as lines:
        for line in lines:
            if found := EDGE.match(line):
                edges.append((found[1], found[2]))
            elif found := NODE.match(line):
                text = re.sub(r'\\[n"\\]', lambda m: UNESCAPE[m[0]], found[2])
                values = memo.get(text) or memo.setdefault(text, parse_state(text))
                nodes[found[1]] = (values[state], values[event])
                graph.add_node(values[state])
                if found[3]:
                    graph.nodes[values[state]]["initial"] = True
    for a, b in edges:
        graph.add_edge(nodes[a][0], nodes[b][0], key=nodes[b][1])
    return graph


def tlc_graph(module: Path, config: Path, folders: Sequence[Path] | None = None) -> nx.MultiDiGraph:
    """Run TLC on a graph module and read what it reached. folders: where it finds modules, those of tla if absent.

    Raises SpecError where a property fails or TLC cannot judge.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-graph-") as folder:
        dump = Path(folder) / "graph.dot"
        result = tlc.run_tlc(module, config, library=library() if folders is None else folders, dump=dump, jvm=tlc.LIGHT)
        if result.verdict != "pass":
            raise SpecError(f"{module.name} with {config.name}: {result.violated or result.verdict}, no graph to compare")
        if result.distinct > MANY:
            raise SpecError(f"{config.name} reaches {result.distinct} states: choose bounds below {MANY} for a comparison")
        return read_dot(dump)


class Machine:
    """A generated module with its constants filled in: initial(), successors(state)."""

    def __init__(self, module: ModuleType, constants: Mapping[str, Value]) -> None:
        self.module = module
        missing = set(module.CONSTANTS) - set(constants)
        if missing:
            raise SpecError(f"{module.__name__} needs the constants {', '.join(sorted(missing))}: give them in the .cfg")
        self.constants = {name: to_python(constants[name], module) for name in module.CONSTANTS}
        self.enabled, self.step = self.bound("Enabled"), self.bound("Step")
        self.events = sorted(self.bound("Events")(), key=lambda e: show(canon(e)))

    def bound(self, name: str) -> Callable[..., Any]:
        """The module's function with the constants that it takes."""
        function: Callable[..., Any] = getattr(self.module, name)
        own = {p.rstrip("_"): p for p, kind in inspect.signature(function).parameters.items() if kind.kind is kind.KEYWORD_ONLY}
        given = {p: self.constants[tla] if tla in self.constants else self.constants[p] for tla, p in own.items()}
        return (lambda *args: function(*args, **given)) if given else function

    def initial(self) -> list[Any] | None:
        """[Initial]; the set Initials if there is one; None where Initial takes parameters, so that TLC's have to do."""
        if hasattr(self.module, "Initials"):
            return list(self.bound("Initials")())
        parameters = inspect.signature(self.module.Initial).parameters.values()
        return None if any(p.kind is not p.KEYWORD_ONLY for p in parameters) else [self.bound("Initial")()]

    def successors(self, state: Any) -> Iterator[tuple[Any, Any]]:
        """(event, next state) for each event that is enabled."""
        for event in self.events:
            if self.enabled(state, event):
                yield event, self.step(state, event)


def machine_graph(module: ModuleType, constants: Mapping[str, Value], initial: list[Value] | None = None) -> nx.MultiDiGraph:
    """Breadth-first search of a generated machine. initial: canonical states to begin with where Initial takes parameters."""
    machine = Machine(module, constants)
    first = machine.initial()
    if first is None:
        if initial is None:
            raise SpecError(f"{module.__name__}.Initial takes parameters: say which initial states to explore")
        first = [to_python(value, module) for value in initial]
    graph = nx.MultiDiGraph()
    names = {state: canon(state) for state in first}
    labels = {id(event): canon(event) for event in machine.events}
    graph.add_nodes_from(names.values(), initial=True)
    todo = deque(first)
    while todo:
        state = todo.popleft()
        for event, after in machine.successors(state):
            if after not in names:
                names[after] = canon(after)
                todo.append(after)
            graph.add_edge(names[state], names[after], key=labels[id(event)])
    return graph


def initial_states(graph: nx.MultiDiGraph) -> set[Value]:
    return {n for n, data in graph.nodes(data=True) if data.get("initial")}


def differences(a: nx.MultiDiGraph, b: nx.MultiDiGraph, names: tuple[str, str] = ("TLC", "Python")) -> list[str]:
    """What only one graph has: initial states, states, edges with their events; the shortest first. Empty if equal."""
    out: list[str] = []
    for name, x, y in ((names[0], a, b), (names[1], b, a)):
        lines = [f"only {name} begins in {show(n)}" for n in initial_states(x) - initial_states(y)]
        edges = set(x.edges(keys=True)) - set(y.edges(keys=True))
        # an edge from a state that both know says where they part; the rest follows from it
        lines += [f"only {name} goes by {show(e)}\n    from {show(s)}\n    to   {show(t)}" for s, t, e in edges if s in y]
        lines += [f"only {name} goes by {show(e)} from {show(s)}, a state of its own" for s, t, e in edges if s not in y]
        lines += [f"only {name} reaches {show(n)}" for n in set(x) - set(y)]
        out += sorted(lines)
    return sorted(out, key=lambda line: ("begins" not in line, "\n" not in line))


def compare(module: Path, config: Path, machine: ModuleType) -> tuple[nx.MultiDiGraph, list[str]]:
    """(TLC's graph, differences) of a graph module with its .cfg and the generated machine."""
    theirs = tlc_graph(module, config)
    ours = machine_graph(machine, cfg_constants(config), sorted(initial_states(theirs), key=show))
    return theirs, differences(theirs, ours)
