"""Explores the real sessions exhaustively and holds every step to the model.

Rules: TLC dumps the reachable graph of System at a bound, every state with all variables and with `ev`, the label of the step
that led to it; a breadth-first search drives a World (the real PrefillSession and DecodeSession, the model's network and
memory) through everything that it offers; each step must be one of TLC's, with the same label and the same value of every
variable afterwards (no escape), and each step of TLC must be taken (nothing unreached).  So the two graphs are equal.
A state of the World counts as seen only if all that it remembers was seen (`World.key`), so that a session which remembers more
than the model does is followed, too.  A configuration with a VIEW merges states and cannot be compared, so its VIEW is left out
here, and so are its properties, which `tidegate check` judges.
"""

from __future__ import annotations

import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.protocol.errors import ProtocolError
from tidegate.spec import tlc
from tidegate.spec.abstract import VARIABLES, abstract, label_value
from tidegate.spec.bounds import Bounds
from tidegate.spec.errors import SpecError
from tidegate.spec.graph import EDGE, NODE, UNESCAPE
from tidegate.spec.paths import library, root
from tidegate.spec.values import Value, parse, show
from tidegate.spec.world import Label, World

__all__ = ["Graph", "Report", "explore", "tlc_graph"]

State = tuple[int, ...]
JVM = ("-XX:+UseSerialGC",)  # graphs of this size are soon done
HIDDEN = 4  # states of a World, at most, for each of the model's: beyond it a session counts something


class Names:
    """A small number for each value, so that states are short tuples; and back."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Value, int] = {}

    def number(self, value: Value) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found


@dataclass
class Graph:
    """TLC's: initial state, and for each state its steps, label to next state."""

    names: Names
    initial: State
    steps: dict[State, dict[int, State]]

    @property
    def transitions(self) -> int:
        return sum(map(len, self.steps.values()))


@dataclass
class Report:
    """What the search found.

    states, transitions: of the model, reached; worlds: states of the sessions, which may remember more than the model;
    escapes: steps of the sessions that the model does not allow; unreached: the reverse.
    """

    states: int = 0
    worlds: int = 0
    transitions: int = 0
    operations: set[str] = field(default_factory=set)
    escapes: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return not self.escapes and not self.unreached


def tlc_graph(config: Path) -> Graph:
    """Run TLC on System with `config` (its VIEW and properties left out) and read the graph that it dumps."""
    with tempfile.TemporaryDirectory(prefix="tidegate-explore-") as folder:
        plain = Path(folder) / config.name
        plain.write_text(re.sub(r"^(VIEW|INVARIANTS?|PROPERT(Y|IES))\b.*$", "", config.read_text(), flags=re.MULTILINE))
        dump = Path(folder) / "graph.dot"
        result = tlc.run_tlc(root() / "tla" / "system" / "System.tla", plain, library=library(), dump=dump, jvm=JVM)
        if result.verdict != "pass":
            raise SpecError(f"System with {config.name}: {result.violated or result.verdict}, no graph to compare with")
        return _read(dump)


def _read(dump: Path) -> Graph:
    names, parsed = Names(), dict[str, int]()
    nodes: dict[str, tuple[State, int]] = {}
    edges: list[tuple[str, str]] = []
    initial: State = ()

    def number(text: str) -> int:
        found = parsed.get(text)
        if found is None:
            found = parsed[text] = names.number(parse(text))
        return found

    with dump.open() as lines:
        for line in lines:
            if edge := EDGE.match(line):
                edges.append((edge[1], edge[2]))
            elif node := NODE.match(line):
                text = re.sub(r'\\[n"\\]', lambda m: UNESCAPE[m[0]], node[2])
                parts = dict(part.split(" = ", 1) for part in re.split(r"(?:^|\n)/\\ ", text) if part.strip())
                state = tuple(number(parts[name]) for name in VARIABLES)
                nodes[node[1]] = (state, number(parts["ev"]))
                if node[3]:
                    initial = state
    steps: dict[State, dict[int, State]] = {state: {} for state, _ in nodes.values()}
    for a, b in edges:
        steps[nodes[a][0]][nodes[b][1]] = nodes[b][0]
    return Graph(names, initial, steps)


def explore(
    graph: Graph, bounds: Bounds, world: Callable[[Bounds], World] = World, *, stop_at: int = 1
) -> Report:
    """Drive the sessions through everything and compare; ends after `stop_at` escapes."""
    names, report = graph.names, Report()
    first = world(bounds)
    start = _state(names, first)
    if start != graph.initial:
        report.escapes.append("the sessions begin elsewhere: " + _difference(names, graph.initial, start))
        return report
    seen: dict[State, set[int]] = {start: set()}
    keys = {first.key()}
    todo = deque([(start, first)])
    while todo:
        state, here = todo.popleft()
        for label in here.moves():
            report.operations.add(label[0] if label[0] != "Deliver" else f"Deliver {label[1][0]}")
            there = here.clone()
            event, after, problem = _take(graph, state, there, label)
            if problem:
                report.escapes.append(problem)
                if len(report.escapes) >= stop_at:
                    return report
                continue
            seen[state].add(event)
            seen.setdefault(after, set())
            if (key := there.key()) not in keys:
                keys.add(key)
                todo.append((after, there))
        if len(keys) > HIDDEN * len(graph.steps):
            report.escapes.append(f"the sessions have {len(keys)} states where the model has {len(graph.steps)}: they count something")
            break
    report.states, report.worlds, report.transitions = len(seen), len(keys), sum(map(len, seen.values()))
    report.unreached = list(_unreached(graph, seen))
    return report


def _take(graph: Graph, state: State, world: World, label: Label) -> tuple[int, State, str]:
    """Apply a label; (its number, the state after it, what is wrong with it or nothing)."""
    names = graph.names
    event = names.number(label_value(label))
    allowed = graph.steps[state].get(event)
    try:
        world.apply(label)
    except ProtocolError as error:
        return event, (), f"the sessions offer {show(names.values[event])} and then refuse it: {error}"
    after = _state(names, world)
    if allowed == after:
        return event, after, ""
    said = show(names.values[event])
    if allowed is None:
        return event, after, (
            f"the sessions take a step that the model does not allow here: {said}\n  it leads to: {_difference(names, state, after)}"
            f"\n  the model allows: {', '.join(sorted(show(names.values[e]) for e in graph.steps[state]))}"
            f"\n  the sessions' story: {'; '.join(world.prefill.story[-3:])} | {'; '.join(world.decode.story[-3:])}"
        )
    return event, after, f"after {said} the sessions differ from the model: {_difference(names, allowed, after)}"


def _state(names: Names, world: World) -> State:
    values = abstract(world)
    return tuple(names.number(values[name]) for name in VARIABLES)


def _difference(names: Names, model: State, sessions: State) -> str:
    """Only the variables that differ, the model's value first."""
    return "; ".join(
        f"{name}: {show(names.values[a])} -> {show(names.values[b])}"
        for name, a, b in zip(VARIABLES, model, sessions, strict=True) if a != b
    )  # fmt: skip


def _unreached(graph: Graph, seen: dict[State, set[int]]) -> Iterable[str]:
    for state, steps in graph.steps.items():
        if state not in seen:
            continue  # it follows from a step that was not taken
        for event in steps.keys() - seen[state]:
            yield f"the model allows {show(graph.names.values[event])}, the sessions never offer it there"
