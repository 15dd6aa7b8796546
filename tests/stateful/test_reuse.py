"""Prefix reuse: the real pool, driven through everything that tla/pool/PrefixReuse.tla allows, is at each step where the model is."""

from __future__ import annotations

import inspect
import os
import random
import re
import sys
import tempfile
import textwrap
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from reuse_world import Sizes, World

from tidegate.engine.pool_change import Change
from tidegate.engine.pool_interface import PoolError
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_copies import PoolCopies
from tidegate.spec import tlc
from tidegate.spec.graph import EDGE, NODE, UNESCAPE
from tidegate.spec.paths import library, root
from tidegate.spec.values import parse_state

LONG = bool(os.environ.get("TIDEGATE_LONG"))
TWO = {"SamePrompt": {1: (1, 2), 2: (1, 2)}}
CLIENTS = {"OwnClient": {1: 1, 2: 2}, "OneClient": {1: 1, 2: 1}}
VARIABLES = ("entries", "mem", "runs", "io", "dead", "used")


def plain(value: Any) -> Any:
    """A value of TLC in Python: a sequence is a tuple, any other function a dict, a set of records a list."""
    if isinstance(value, frozenset):
        items = [plain(v) for v in value]
        return items if any(isinstance(v, dict) for v in items) else frozenset(items)
    if not isinstance(value, tuple):
        return value
    kind, inner = value
    if kind == "bool":
        return inner
    found = {plain(k): plain(v) for k, v in inner}
    return tuple(found[i] for i in range(1, len(found) + 1)) if found.keys() == set(range(1, len(found) + 1)) else found


class Graph:
    """states: number -> the variables; steps: state -> [(label, state)]."""

    def __init__(self, dump: Path) -> None:
        numbers: dict[Any, int] = {}
        self.states: list[dict[str, Any]] = []
        self.steps: dict[int, dict[Any, int]] = defaultdict(dict)
        nodes: dict[str, tuple[int, Any]] = {}
        edges = []
        with dump.open() as lines:
            for line in lines:
                if edge := EDGE.match(line):
                    edges.append((edge[1], edge[2]))
                elif node := NODE.match(line):
                    values = parse_state(re.sub(r'\\[n"\\]', lambda m: UNESCAPE[m[0]], node[2]))
                    key = tuple(values[name] for name in VARIABLES)
                    if key not in numbers:
                        numbers[key] = len(self.states)
                        self.states.append({name: plain(values[name]) for name in VARIABLES})
                    nodes[node[1]] = numbers[key], values["ev"]
                    if node[3]:
                        self.initial = numbers[key]
        for a, b in edges:
            self.steps[nodes[a][0]][nodes[b][1], nodes[b][0]] = nodes[b][0]


def graph_of(name: str) -> tuple[Graph, Sizes]:
    text = (root() / "tla" / "models" / f"{name}.cfg").read_text()
    bare = re.sub(r"^(VIEW|INVARIANTS?|PROPERT(Y|IES))\b.*$", "", text, flags=re.MULTILINE)
    with tempfile.TemporaryDirectory(prefix="tidegate-reuse-") as folder:
        config, dump = Path(folder) / "reuse.cfg", Path(folder) / "graph.dot"
        config.write_text(bare)
        module = root() / "tla" / "pool" / "PrefixReuse.tla"
        assert tlc.run_tlc(module, config, library=library(), dump=dump, jvm=tlc.LIGHT).verdict == "pass"
        graph = Graph(dump)

    def word(constant: str) -> str:
        return re.search(rf"^ *{constant} (?:=|<-) (.*)$", text, re.MULTILINE)[1]

    many = {constant: word(constant).count(",") + 1 for constant in ("Layers", "Extents")}
    return graph, Sizes(TWO[word("Prompt")], CLIENTS[word("ClientOf")], many["Layers"], many["Extents"])


def explore(graph: Graph, sizes: Sizes, walks: int | None = None) -> tuple[int, int]:
    """Take every step of the model from every state of it (or so many walks); (states, steps) taken.  AssertionError with the way there
    where the real pool goes elsewhere."""
    todo = {state: set(steps) for state, steps in graph.steps.items()}
    ways: dict[int, list[tuple[int, Any]]] = {graph.initial: []}
    order = [graph.initial]
    for state in order:
        for step, after in sorted(graph.steps[state].items(), key=repr):
            if after not in ways:
                ways[after] = [*ways[state], (state, step)]
                order.append(after)
    assert len(order) == len(graph.states)
    world, seen, taken, rng = World(sizes), set[int](), 0, random.Random(7)
    try:
        for first in order if walks is None else rng.sample(order, len(order)):
            while todo.get(first) and (walks is None or walks > 0):
                walks = walks if walks is None else walks - 1
                world.reset()
                taken += walk(graph, world, todo, ways[first], first, seen)
    finally:
        world.close()
    assert walks is not None or not any(todo.values())
    return len(seen), taken


def walk(graph: Graph, world: World, todo: dict[int, set[Any]], way: list[tuple[int, Any]], first: int, seen: set[int]) -> int:
    """Go to `first`, and on from there for as long as there is a step that nobody has taken."""
    here, way, story, taken = graph.initial, list(way), [], 0
    while way or todo.get(here):
        step = way.pop(0)[1] if way else min(todo[here], key=repr)
        taken += step in todo[here]
        todo[here].discard(step)
        ev, after = plain(step[0]), step[1]
        story.append(ev)
        try:
            world.take(ev, graph.states[here], graph.states[after])
            world.same(graph.states[after])
            if after not in seen:
                world.refuses(graph.states[after])
        except Exception as error:
            raise AssertionError(f"{error}\nafter {'; '.join(map(str, story))}") from error
        seen.add(after)
        here = after
    return taken


EXPLORED = ("reuse", "reuse-death", "reuse-removed", "reuse-lapse", "reuse-layers")
SOON, WALKS = ("reuse", "reuse-death"), 120


@cache
def graph_and_sizes(name):
    return graph_of(name)


@pytest.mark.parametrize("name", EXPLORED if LONG else SOON)
def test_the_real_pool_goes_where_the_model_goes(name):
    graph, sizes = graph_and_sizes(name)
    states, steps = explore(graph, sizes, None if LONG else WALKS)
    if LONG:
        assert (states + 1, steps) == (len(graph.states), sum(map(len, graph.steps.values())))  # the first is nobody's next
    else:
        assert steps > 3 * WALKS


PLANTED = {
    "what is pinned is evicted": (
        "reuse", Change, "evict", ' or entry.state != "readable" or entry.pins:', ' or entry.state != "readable":'),
    "what is being written is evicted": (
        "reuse", Change, "evict", ' or entry.state != "readable" or entry.pins:', " or entry.pins:"),
    "an object that another run writes is taken as stored": (
        "reuse", Change, "allocate", 'Answer.STORED if entry.state == "readable" else Answer.BUSY', "Answer.STORED"),
    "what a dead process was writing is an obstacle": (
        "reuse-death", Change, "allocate", "not self._alive(Client.unpack(entry.owner))", "False"),
    "what a dead process was writing is taken as stored": (
        "reuse-death", Change, "allocate", "entry = None", 'self._unused(key, Entry("readable", entry.extent, rows, client))'),
    "the dead keep what they pinned": (
        "reuse-death", Change, "leave", "self.unpin(client, held[len(client) :])", "pass"),
    "an extent is given back too early": (
        "reuse-removed", Change, "unpin", "if entry.pins:", 'if entry.pins and entry.state != "evicting":'),
    "one of two runs lets the other's pin go": (
        "reuse-lapse", LocalPool, "unpin", "self._pinned[key].pins -= 1", "self._pinned[key].pins = 0"),
    "the pins of a run that is over go while a copy of it reads": (
        "reuse", PoolCopies, "_release", "if state.over and not state.copies:", "if state.over:"),
    "a failed run keeps what it has half written": (
        "reuse", PoolCopies, "remove", "self.pool.remove(state.new.pop(chunk, []))", "state.new.pop(chunk, [])"),
    "a load counts although its pin ended before it did": (
        "reuse-lapse", LocalPool, "_within", "if self._clock() >= deadline:", "if False:"),
    "the last part is taken from the pool, too": (
        "reuse", PoolCopies, "begin", "len(keys) - 1 if backed", "len(keys) if backed"),
}  # fmt: skip
EARLY = ("what is pinned is evicted", "what a dead process was writing is taken as stored", "a failed run keeps what it has half written",
         "the pins of a run that is over go while a copy of it reads")  # fmt: skip


@pytest.mark.parametrize("mistake", PLANTED if LONG else EARLY)
def test_a_planted_mistake_leads_elsewhere(mistake, monkeypatch):
    name, owner, method, old, new = PLANTED[mistake]
    source = textwrap.dedent(inspect.getsource(getattr(owner, method)))
    assert source.count(old) == 1, f"{method} has changed: plant this mistake anew"
    names = dict(vars(sys.modules[owner.__module__]))
    exec(compile(source.replace(old, new), owner.__module__, "exec", dont_inherit=True, flags=annotations.compiler_flag), names)
    monkeypatch.setattr(owner, method, names[method])
    with pytest.raises(AssertionError) as found:
        explore(*graph_and_sizes(name))
    assert isinstance(found.value.__cause__, (AssertionError, PoolError, KeyError)), "the mistake is no Python"
