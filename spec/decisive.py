"""Which conjuncts of the machines' guards ever decide anything in a configuration, found in one run of TLC.

Rules: a conjunct decides when it is false and all others of its guard are true, for then dropping it changes the answer; the
modules are instrumented to say so the first time (TLC's registers, one worker), and nothing else about them changes, so
states and verdict stay those of the plain model.  A conjunct that decides nowhere can be dropped without any change to the
reachable graph: by induction every guard gives the answers that it gave.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tidegate.spec.mutate import Conjunct, span
from tidegate.spec.variant import Configuration

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
    """The conjuncts that decide somewhere in what a configuration reaches. Raises SpecError if TLC cannot judge it."""
    every = [c for _, cs in machines for c in cs]
    number = {c: i for i, c in enumerate(every, 1)}
    changed = {path.stem: instrument(path.read_text(), [(number[c], c) for c in cs]) for path, cs in machines}
    text = model.module.read_text()
    end = list(re.finditer(r"^====+\s*$", text, re.MULTILINE))[-1].start()
    setup = f"Registers == INSTANCE TLC\nASSUME \\A i \\in 1..{len(every)} : Registers!TLCSet(i, 0)\n"
    changed[model.module.stem] = text[:end] + setup + text[end:]
    plain = re.sub(r"^SPECIFICATION \w+", "SPECIFICATION Spec", model.without(model.properties), flags=re.MULTILINE)
    result = model.run(changed, text=plain)
    return {every[int(i) - 1] for i in SAID.findall(result.printed)}
