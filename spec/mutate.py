"""Lists the conjuncts of a machine's guards and drops one.

Rules: a guard is a definition CanX and every boolean definition of the module that a guard uses (a decision); its conjuncts
are the operands of the outermost /\\, however written and nested; dropping replaces exactly that text with TRUE, so that the
module stays parseable and no other line moves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tidegate.spec.infer import Inference
from tidegate.spec.paths import library
from tidegate.spec.sany import Def, Loc, Module, Node, load
from tidegate.spec.types import BOOL


@dataclass(frozen=True)
class Conjunct:
    """One conjunct of a guard: the definition, its number there from 1, its text and place."""

    machine: str
    guard: str
    number: int
    text: str
    loc: Loc

    def __str__(self) -> str:
        return f"{self.machine}.{self.guard}#{self.number} ({' '.join(self.text.split())})"


def guards(module: Module) -> list[Def]:
    """The definitions CanX and the boolean definitions that they use, in the order of the source."""
    results = Inference(module).results
    by_uid = {d.uid: d for d in module.defs}
    found = {d.uid for d in module.defs if re.match(r"Can[A-Z]", d.name)}
    todo = list(found)
    while todo:
        for n in by_uid[todo.pop()].body.walk():
            if n.uid in by_uid and n.decl == "user" and n.uid not in found and results[n.uid] == BOOL:
                found.add(n.uid)
                todo.append(n.uid)
    return [d for d in module.defs if d.uid in found]


def operands(n: Node) -> list[Node]:
    """The operands of the outermost conjunction; [n] where there is none. LET belongs to its body's one conjunct."""
    if n.kind == "app" and n.op in ("$ConjList", "\\land"):
        return [leaf for a in n.args for leaf in operands(a)]
    return [n]


def span(source: str, loc: Loc) -> tuple[int, int]:
    """The offsets in the source of a place, end exclusive."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts[loc.line - 1] + loc.column - 1, starts[loc.end_line - 1] + loc.end_column


def conjuncts(source: Path | Module) -> list[Conjunct]:
    """Every conjunct of every guard of a machine module, in the order of the source. Raises SpecError."""
    module = source if isinstance(source, Module) else load(source, library())
    out = []
    for d in guards(module):
        for i, n in enumerate(operands(d.body), 1):
            begin, end = span(module.source, n.loc)
            out.append(Conjunct(module.name, d.name, i, module.source[begin:end], n.loc))
    return out


def drop(source_text: str, conjunct: Conjunct) -> str:
    """The module's source with that conjunct replaced by TRUE; what follows it keeps its line and column."""
    begin, end = span(source_text, conjunct.loc)
    if source_text[begin:end] != conjunct.text:
        raise ValueError(f"{conjunct} is not at {conjunct.loc} of this text: list the conjuncts of the same source")
    *lines, last = conjunct.text.split("\n")
    filler = "\n" * len(lines) + " " * conjunct.loc.end_column if lines else " " * (len(last) - len("TRUE"))
    return source_text[:begin] + "TRUE" + filler + source_text[end:]
