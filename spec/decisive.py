"""Which conjuncts of the machines' guards ever decide anything in a configuration: in the model, and in the real sessions.

Rules: a conjunct decides when it is false and all others of its guard are true, for then dropping it changes the answer; both
sides are instrumented to say so, and nothing else about them changes.  A conjunct that decides nowhere can be dropped without
any change to the reachable graph: by induction every guard gives the answers that it gave.  The sessions are asked as well as
TLC, for a session may ask a guard where the model does not.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from tidegate.spec import gen
from tidegate.spec.mutate import Conjunct, span
from tidegate.spec.variant import Configuration
from tidegate.spec.world import World

__all__ = ["asked", "decisive", "decisive_in_sessions", "instrument"]

DECIDES = """LOCAL INSTANCE TLC
LOCAL Decides(i) == IF TLCGet(i) = 0 THEN TLCSet(i, 1) /\\ PrintT(<<"decides", i>>) ELSE TRUE
"""
SAID = re.compile(r'<<"decides", (\d+)>>')


def _body(parts: Sequence[tuple[int, Conjunct]]) -> str:
    """The guard's new body: each conjunct, named, and what it says when it alone is false."""
    names = {i: f"Conjunct{i}" for i, _ in parts}
    lines = ["LET"]
    for i, c in parts:
        # in its old columns, so that a list of conjuncts inside it stays one
        lines += [f"{names[i]} ==", " " * (c.loc.column - 1) + c.text]
    lines.append("IN")
    for i, _ in parts:
        alone = " /\\ ".join([f"~{names[i]}", *(n for k, n in names.items() if k != i)])
        lines.append(f"/\\ IF {alone} THEN Decides({i}) ELSE TRUE")
    return "\n".join([*lines, *(f"/\\ {n}" for n in names.values()), ""])


def instrument(source: str, numbered: Sequence[tuple[int, Conjunct]]) -> str:
    """A machine's source in which its guards say what decides; numbered: its conjuncts with their registers."""
    first = len(source)
    guards = [list(group) for _, group in groupby(numbered, key=lambda pair: pair[1].guard)]
    for parts in reversed(guards):
        begin, end = span(source, parts[0][1].loc)[0], span(source, parts[-1][1].loc)[1]
        head = source.rfind("==", 0, begin)
        source = source[: head + 2] + "\n" + _body(parts) + source[end:]
        first = source.rfind("\n", 0, head) + 1
    return source[:first] + DECIDES + source[first:]


def decisive(model: Configuration, machines: Sequence[tuple[Path, Sequence[Conjunct]]]) -> set[Conjunct]:
    """The conjuncts that decide somewhere in what a configuration reaches. machines: each with all its conjuncts.
    Raises SpecError if TLC cannot judge it."""
    every = [c for _, cs in machines for c in cs]
    number = {c: i for i, c in enumerate(every, 1)}
    changed = {path.stem: instrument(path.read_text(), [(number[c], c) for c in cs]) for path, cs in machines}
    text = model.module.read_text()
    end = list(re.finditer(r"^====+\s*$", text, re.MULTILINE))[-1].start()
    setup = f"Registers == INSTANCE TLC\nASSUME \\A i \\in 1..{len(every)} : Registers!TLCSet(i, 0)\n"
    changed[model.module.stem] = text[:end] + setup + text[end:]
    plain = re.sub(r"^SPECIFICATION \w+", "SPECIFICATION Spec", model.without(model.properties), flags=re.MULTILINE)
    result = model.run(changed, text=plain, seconds=None)  # it reaches what the model reaches, and no more
    return {every[int(i) - 1] for i in SAID.findall(result.printed)}


@contextmanager
def asked(module: ModuleType, guard: str, source: str, decides: Callable[[], None]) -> Iterator[None]:
    """For the time of the block the guard gives its own answers, and calls `decides` wherever the one of `source`, the
    module generated without a conjunct, would give another."""
    real = getattr(module, guard)
    with gen.installed(module, source):
        without = getattr(module, guard)

    def ask(*arguments: Any) -> bool:
        answer = bool(real(*arguments))
        if answer != without(*arguments):
            decides()
        return answer

    setattr(module, guard, ask)
    try:
        yield
    finally:
        setattr(module, guard, real)


def decisive_in_sessions(first: World, mutants: Sequence[tuple[Conjunct, ModuleType, str]]) -> set[Conjunct]:
    """The conjuncts that decide somewhere in everything that the real sessions of a new World may do; each comes with its
    module and that module's source without it.  Not safe while another thread uses the machines."""
    found: set[Conjunct] = set()
    seen, todo = {hash(first.key())}, deque([first])  # 64 bits each, as TLC does
    with ExitStack() as stack:
        for conjunct, module, source in mutants:
            stack.enter_context(asked(module, conjunct.guard, source, lambda conjunct=conjunct: found.add(conjunct)))  # type: ignore[misc]
        while todo:
            world = todo.popleft()
            for label in world.moves():
                after = world.clone()
                after.apply(label)
                key = hash(after.key())
                if key not in seen:
                    seen.add(key)
                    todo.append(after)
    return found
