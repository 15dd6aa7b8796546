"""Lists the weaker forms of a property of the system model: what could be left out of it.

Rules: a weakening replaces exactly one piece of the property's text, so that no other line or column moves, and each makes the
property say less:
  all        the whole property becomes TRUE;
  conjunct   one operand of a conjunction, wherever the property demands it, becomes TRUE;
  premise    an implication (or ~>) covers fewer cases: a disjunct of its premise becomes FALSE, or a set of names in the premise
             loses one.
A property is found by its name, in whatever module of tla/system defines it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.spec.errors import SpecError
from tidegate.spec.mutate import operands, span
from tidegate.spec.paths import library, root
from tidegate.spec.sany import Def, Loc, Module, Node, load

__all__ = ["Property", "Weakening", "properties"]


@dataclass(frozen=True)
class Weakening:
    """of: the property; number: from 0 (the whole) in the order of the text; kind: see the module; text: what is replaced; by: its
    replacement, of the same shape."""

    of: str
    number: int
    kind: str
    text: str
    loc: Loc
    by: str

    @property
    def name(self) -> str:
        return f"{self.of}#{self.number}"

    @property
    def line(self) -> str:
        """The text that is replaced, on one line."""
        return " ".join(self.text.split())


@dataclass(frozen=True)
class Property:
    """A property of the system model.  source: the text of its module; body: where its definition's body stands there; step: where A
    does, if that is [][A]_v; temporal: does it rest on fairness?"""

    name: str
    source: str
    body: Loc
    step: Loc | None
    temporal: bool
    weakenings: tuple[Weakening, ...]

    def written(self, weakening: Weakening | None = None, *, step: bool = False) -> str:
        """The body (with `step`, only the action within [][...]_v), weakened if wanted; begins at its own column, on its own
        line, so that its lists stay lists."""
        loc = self.step if step and self.step else self.body
        begin, end = span(self.source, loc)
        body = self.source[begin:end]
        if weakening is not None:
            first, last = span(self.source, weakening.loc)
            body = body[: max(first - begin, 0)] + weakening.by + body[last - begin :]
        return " " * (loc.column - 1) + body


def _filled(text: str, by: str, loc: Loc) -> str:
    """`by` with white space after it up to where `text` ended."""
    *lines, last = text.split("\n")
    return by + ("\n" * len(lines) + " " * loc.end_column if lines else " " * (len(last) - len(by)))


def _pieces(n: Node) -> Iterator[tuple[str, Node, str]]:
    """(kind, node, replacement) of each weakening below a node that the property demands; "" for a name in a set."""
    if n.kind == "let":
        yield from _pieces(n.args[0])
    elif n.kind != "app":
        return
    elif n.op in ("[]", "$SquareAct", "$BoundedForall"):
        yield from _pieces(n.args[-1] if n.op == "$BoundedForall" else n.args[0])
    elif n.op in ("=>", "\\leadsto", "~>"):
        yield from _fewer_cases(n.args[0])
        if n.op == "=>":
            yield from _pieces(n.args[1])
    elif len(parts := operands(n)) > 1:
        for part in parts:
            yield "conjunct", part, "TRUE"
            yield from _pieces(part)


def _fewer_cases(premise: Node) -> Iterator[tuple[str, Node, str]]:
    if premise.op in ("$DisjList", "\\lor"):
        for part in premise.args:
            yield "premise", part, "FALSE"
    for n in premise.walk():
        if n.op == "\\in" and n.args[1].op == "$SetEnumerate" and len(n.args[1].args) > 1:
            yield from (("premise", name, "") for name in n.args[1].args if name.kind == "str")


def _property(module: Module, d: Def) -> Property:
    source, body = module.source, d.body

    def text(loc: Loc) -> str:
        begin, end = span(source, loc)
        return source[begin:end]

    found = [Weakening(d.name, 0, "all", text(body.loc), body.loc, "TRUE")]
    for number, (kind, n, by) in enumerate(_pieces(body), 1):
        old = text(n.loc)
        new = _filled(old, by, n.loc) if by else '"' + "-" * (len(old) - 2) + '"'
        found.append(Weakening(d.name, number, kind, old, n.loc, new))
    step = body.args[0].args[0].loc if body.op == "[]" and body.args[0].op == "$SquareAct" else None
    return Property(d.name, source, body.loc, step, body.level == 3 and step is None, tuple(found))


def properties(names: Iterable[str], folder: Path | None = None) -> list[Property]:
    """The properties with these names, each with all its weakenings, in the order of the names.
    Raises SpecError for a name that no module of the folder (tla/system) defines."""
    names = list(names)
    folder = folder or root() / "tla" / "system"
    found: dict[str, Property] = {}
    for path in sorted(folder.glob("*.tla")):
        here = [name for name in names if re.search(rf"^{name} ==", path.read_text(), re.MULTILINE)]
        if here:
            module = load(path, library())
            found |= {d.name: _property(module, d) for d in module.defs if d.name in here}
    if missing := [name for name in names if name not in found]:
        raise SpecError(f"no module of {folder} defines {', '.join(missing)}: a property is named where it is checked")
    return [found[name] for name in names]
