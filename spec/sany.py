"""Loads a TLA+ module as a small resolved tree, from the XML that SANY (TLC's own front end) exports.

Rules: the tree has exactly what SANY resolved (names, levels, definitions), each node with its place; a node kind that the
tree does not know is kept as `other` and refused by whoever meets it; comments come from the source text, since the XML
carries none.
"""

from __future__ import annotations

import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.spec.comments import above, header
from tidegate.spec.errors import Refused, SpecError
from tidegate.spec.tlc import run_sany

LEVELS = ("constant", "state", "action", "temporal")


@dataclass(frozen=True)
class Loc:
    """A place in a source file; lines and columns from 1, the end included."""

    module: str
    line: int = 0
    column: int = 0
    end_line: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        return f"{self.module}.tla:{self.line}:{self.column}"


@dataclass
class Bound:
    """`names \\in domain` in a quantifier or constructor; is_tuple: the names stand in << >>."""

    names: list[str]
    domain: Node
    is_tuple: bool


@dataclass
class Node:
    """kind: app (an operator applied), num, str, at, let, other (tag in op).

    For app: op is the resolved name; decl is builtin, user, param or const (a constant or a variable); home the module
    that defines a user operator;
    uid tells definitions of one name apart within one export, nothing more.
    """

    kind: str
    loc: Loc
    level: int = 0
    op: str = ""
    decl: str = ""
    home: str = ""
    uid: str = ""
    args: list[Node] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    defs: list[Def] = field(default_factory=list)
    value: int | str = 0

    def walk(self) -> Iterator[Node]:
        """This node and all below it, LET definitions and domains included."""
        yield self
        for child in (*(b.domain for b in self.bounds), *(d.body for d in self.defs), *self.args):
            yield from child.walk()


@dataclass
class Def:
    """A definition; params with their arities; comment: the text above it."""

    name: str
    loc: Loc
    level: int
    params: list[tuple[str, int]]
    body: Node
    uid: str
    recursive: bool = False
    comment: str = ""


@dataclass
class Module:
    """path: the source; constants with arities, in the order of their names; defs in the order of the source."""

    name: str
    path: Path
    source: str
    sha256: str
    header: str
    constants: list[tuple[str, int, Loc]]
    variables: list[tuple[str, Loc]]
    defs: list[Def]

    def definition(self, name: str) -> Def | None:
        return next((d for d in self.defs if d.name == name), None)


def export(path: Path, library: Sequence[Path] = ()) -> ET.Element:
    """SANY's XML for a module. Raises SpecError with SANY's message where the module does not parse."""
    if not path.is_file():
        raise SpecError(f"{path} does not exist")
    include = [word for folder in library for word in ("-I", str(folder))]  # the exporter does not know TLA-Library
    code, text = run_sany("tla2sany.xml.XMLExporter", path, library, [*include, "-o"])
    if code == 0:
        return ET.fromstring(text)
    # the exporter gives only a stack trace; SANY itself says what is wrong, but exits with 0
    _, said = run_sany("tla2sany.SANY", path, library)
    noise = ("Parsing file", "Semantic processing", "****** SANY2")
    why = [line for line in said.splitlines() if line.strip() and not line.startswith(noise)]
    raise SpecError(f"{path.name} is no valid TLA+ module:\n" + "\n".join(why))


def load(path: Path, library: Sequence[Path] = ()) -> Module:
    """Parse a module with SANY. Raises SpecError."""
    return _Loader(path, export(path, library)).module()


class Resolved:
    """A module with everything that it uses: also what EXTENDS and INSTANCE bring."""

    def __init__(self, path: Path, library: Sequence[Path] = ()) -> None:
        """Raises SpecError where the module does not parse."""
        self._folders = [path.parent, *library]
        self._loader = _Loader(path, export(path, library))
        self._known: dict[str, Def] = {}
        self.module = self._loader.module()

    def used(self, name: str) -> Module:
        """A module that this one extends or instantiates."""
        path = next(folder / f"{name}.tla" for folder in self._folders if (folder / f"{name}.tla").is_file())
        return _Loader(path, self._loader.root).module()

    def of(self, uid: str) -> Def | None:
        """The definition with this uid; None where it has no body to look at (a standard operator)."""
        if uid not in self._known:
            e = self._loader.table.get(uid)
            if e is None or e.tag != "UserDefinedOpKind" or e.find("body") is None:
                return None
            self._known[uid] = self._loader.define(uid)
        return self._known[uid]

    def named(self, name: str) -> Def | None:
        """The definition that the module knows under this name, its own or one from a module that it extends."""
        uids = self._loader.known()
        return next((self.of(uid) for uid in uids if self._loader.name(uid) == name), None)


class _Loader:
    def __init__(self, path: Path, root: ET.Element) -> None:
        """path: of the main module, or of one that it uses: that is loaded."""
        self.path, self.root = path, root
        data = path.read_bytes()
        self.sha256, self.source = hashlib.sha256(data).hexdigest(), data.decode()
        self.lines = self.source.splitlines()
        context = root.find("context")
        self.table = {} if context is None else {str(e.findtext("UID")): e[1] for e in context}

    def loc(self, e: ET.Element) -> Loc:
        place = e.find("location")
        if place is None:
            return Loc(self.path.stem)
        at = [int(str(place.findtext(p))) for p in ("line/begin", "column/begin", "line/end", "column/end")]
        return Loc(str(place.findtext("filename")), *at)

    def name(self, uid: str) -> str:
        return str(self.table[uid].findtext("uniquename"))

    def node(self, e: ET.Element) -> Node:
        at, level = self.loc(e), int(e.findtext("level") or 0)
        if e.tag == "NumeralNode":
            return Node("num", at, level, value=self.number(e, at))
        if e.tag == "StringNode":
            if e.find("StringValue") is None:  # a mark of SANY's own: CASE's OTHER
                return Node("other", at, level, op=(e.text or "").strip())
            return Node("str", at, level, value=e.findtext("StringValue") or "")
        if e.tag == "AtNode":
            return Node("at", at, level)
        if e.tag == "LetInNode":
            uids = [str(u.text) for u in e.iterfind("opDefs/UserDefinedOpKindRef/UID")]
            body = e.find("body")
            assert body is not None
            defs = sorted((self.define(u) for u in uids), key=lambda d: (d.loc.line, d.loc.column))
            return Node("let", at, level, args=[self.node(body[0])], defs=defs)
        if e.tag == "SubstInNode":  # a definition that INSTANCE brought: args[0] with the constants of its module replaced
            return Node("other", at, level, op=e.tag, args=[self.node(e.find("body")[0])], defs=self.replaced(e))  # type: ignore[index]
        if e.tag != "OpApplNode":
            return Node("other", at, level, op=e.tag)
        return self.application(e, at, level)

    def replaced(self, e: ET.Element) -> list[Def]:
        """What INSTANCE ... WITH puts in the place of each constant, as definitions with that constant's uid."""
        out = []
        for s in e.iterfind("substs/Subst"):
            uid, body = str(s[0].findtext("UID")), self.node(s[1])
            out.append(Def(self.name(uid), body.loc, body.level, [], body, uid))
        return out

    def number(self, e: ET.Element, at: Loc) -> int:
        value = e.findtext("IntValue")
        text = self.lines[at.line - 1][at.column - 1 : at.end_column] if at.module == self.path.stem else ""
        if text.isdigit():
            return int(text)  # the XML wraps a literal beyond 32 bits
        if value is None:
            raise Refused(f"{at}: the number {text} cannot be read: write it in decimal, below 2**31")
        return int(value)

    def application(self, e: ET.Element, at: Loc, level: int) -> Node:
        operator = e.find("operator")
        assert operator is not None
        ref = operator[0]
        uid = str(ref.findtext("UID"))
        kinds = {
            "BuiltInKindRef": "builtin",
            "UserDefinedOpKindRef": "user",
            "FormalParamNodeRef": "param",
            "OpDeclNodeRef": "const",
        }
        out = Node("app", at, level, op=self.name(uid), decl=kinds.get(ref.tag, "other"), uid=uid)
        out.args = [self.node(c) for c in e.find("operands") or ()]
        out.home = self.table[uid].findtext("location/filename") or ""
        for b in e.iterfind("boundSymbols/bound"):
            names = [self.name(str(r.findtext("UID"))) for r in b.iterfind("FormalParamNodeRef")]
            out.bounds.append(Bound(names, self.node(b[-1]), b.find("tuple") is not None))
        return out

    def define(self, uid: str) -> Def:
        e = self.table[uid]
        at, body = self.loc(e), e.find("body")
        params = [self.table[str(u.text)] for u in e.iterfind("params/leibnizparam/FormalParamNodeRef/UID")]
        return Def(
            str(e.findtext("uniquename")),
            at,
            int(e.findtext("level") or 0),
            [(str(p.findtext("uniquename")), int(p.findtext("arity") or 0)) for p in params],
            Node("other", at, op="a definition without a body") if body is None else self.node(body[0]),
            uid,
            e.find("recursive") is not None,
            above(self.lines, at.line) if at.module == self.path.stem else "",
        )

    def main(self) -> ET.Element:
        return next(n for n in self.table.values() if n.tag == "ModuleNode" and n.findtext("uniquename") == self.path.stem)

    def known(self) -> list[str]:
        """The uids of what the main module defines, extends or instantiates."""
        return [str(u.text) for u in self.main().iterfind("UserDefinedOpKindRef/UID")]

    def module(self) -> Module:
        name, e = self.path.stem, self.main()
        declared = [self.table[str(u.text)] for u in e.iterfind("OpDeclNodeRef/UID")]
        constants = [
            (str(n.findtext("uniquename")), int(n.findtext("arity") or 0), self.loc(n))
            for n in declared
            if n.findtext("kind") == "2"
        ]
        variables = [(str(n.findtext("uniquename")), self.loc(n)) for n in declared if n.findtext("kind") == "3"]
        own = [u for u in self.known() if self.table[u].findtext("location/filename") == name and "!" not in self.name(u)]
        defs = sorted((self.define(u) for u in own), key=lambda d: (d.loc.line, d.loc.column))
        return Module(name, self.path, self.source, self.sha256, header(self.lines), sorted(constants), variables, defs)
