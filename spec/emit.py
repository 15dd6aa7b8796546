"""Writes the Python module of a TLA+ machine module.

Rules: one function per definition, under its TLA+ name, with its comment and place as docstring; what mentions constants,
itself or through others, takes them as keyword-only parameters; what takes nothing is worked out once, when it is first asked
for; IF, CASE and LET at the top of a body become statements; one frozen msgspec Struct per set of record fields; the output depends on
the source alone.

Names: a definition that is one record set names its class, and the set is called by the plural (`State` the class, `States`
the set; `Transfers` the set, `Transfer` the class).  Records in Events are called Event and their fields but op; all others
Record and their fields.  A name that Python or the run-time library claims gets underscores behind it.
"""

from __future__ import annotations

from dataclasses import replace

from tidegate.spec import types as ty
from tidegate.spec.errors import Refused
from tidegate.spec.infer import Inference
from tidegate.spec.names import Names
from tidegate.spec.python_code import IF, NOT, OR, Env, is_other
from tidegate.spec.sany import Def, Module, Node
from tidegate.spec.translate import Translator
from tidegate.spec.types import ANY, NEVER, T

WIDTH = 110  # of a return statement that is not broken into lines


def snake(name: str) -> str:
    """PhysicalBuffer -> physical_buffer; PBGate -> pb_gate."""
    out = ""
    for i, c in enumerate(name):
        if (
            c.isupper()
            and i
            and (not name[i - 1].isupper() or (i + 1 < len(name) and name[i + 1].islower()))
            and name[i - 1] != "_"
        ):
            out += "_"
        out += c.lower()
    return out


def needed_constants(module: Module) -> dict[str, list[str]]:
    """Definition uid -> the constants that it mentions, itself or through what it uses."""
    names = {name for name, _, _ in module.constants}
    direct, uses = {}, {}
    for d in module.defs:
        nodes = list(d.body.walk())
        direct[d.uid] = {n.op for n in nodes if n.kind == "app" and n.decl == "const" and n.op in names}
        uses[d.uid] = {n.uid for n in nodes if n.kind == "app" and n.decl == "user"}
    changed = True
    while changed:
        changed = False
        for uid, found in direct.items():
            more = set().union(*(direct.get(u, set()) for u in uses[uid])) - found
            if more:
                found |= more
                changed = True
    return {uid: sorted(found) for uid, found in direct.items()}


class Emitter(Translator):
    """The whole module: `Emitter(module).module_text(place)`."""

    def __init__(self, module: Module) -> None:
        inference = Inference(module)
        super().__init__(module, inference, Names(module, inference), needed_constants(module))
        self.locals_used: set[str] = set()

    def annotate(self, t: T) -> str:
        text = ty.annotation(self.known(t), self.names.records.__getitem__, self.used.add)
        return text.replace(" | ".join(self.names.records[r.key] for r in self.inference.event.args) or "\0", "AnyEvent")

    def known(self, t: T) -> T:
        """t with any in place of never, inside as well."""
        return ANY if t == NEVER else replace(t, args=tuple(map(self.known, t.args)))

    # -- statements
    def block(self, n: Node, env: Env, indent: str) -> list[str]:
        """The statements that return n's value."""
        if n.kind == "let":
            lines = []
            for d in n.defs:
                more, env = self.local(d, env, indent)
                lines += more
            return lines + self.block(n.args[0], env, indent)
        if n.kind == "app" and n.op == "$IfThenElse":
            test, yes, no = n.args
            head = f"{indent}if {self.ex(test, env).at(IF)}:"
            return [head, *self.block(yes, env, indent + "    "), *self.block(no, env, indent)]
        if n.kind == "app" and n.op == "$Case":
            return self.arms(n, env, indent)
        return self.returned(n, env, indent)

    def arms(self, n: Node, env: Env, indent: str) -> list[str]:
        lines: list[str] = []
        for p in n.args:
            if is_other(p):
                return lines + self.block(p.args[1], env, indent)
            lines += [f"{indent}if {self.ex(p.args[0], env).at(IF)}:", *self.block(p.args[1], env, indent + "    ")]
        return [*lines, f"{indent}return {self.use('no_case')}()"]

    def returned(self, n: Node, env: Env, indent: str) -> list[str]:
        code = self.ex(n, env)
        one_line = f"{indent}return {code.text}"
        if len(one_line) > WIDTH and n.kind == "app" and n.op in ("$ConjList", "$DisjList"):
            word, level = ("and", NOT) if n.op == "$ConjList" else ("or", OR + 1)
            parts = [self.ex(a, env).at(level) for a in n.args]
            return [
                f"{indent}return (",
                *(f"{indent}    {f'{word} ' if i else ''}{p}" for i, p in enumerate(parts)),
                f"{indent})",
            ]
        return [one_line]

    def local(self, d: Def, env: Env, indent: str) -> tuple[list[str], Env]:
        """A LET definition as an assignment, or as a function where it has parameters or may fail."""
        name = self.names.python.get(d.name, d.name)
        while name in self.locals_used:  # LETs of one name in two branches may differ in type
            name += "_"
            self.names.taken.add(name)
        self.locals_used.add(name)
        inner = self.inside(d, env)
        if not d.params and self.total(d.body, env):
            return [f"{indent}{name} = {self.ex(d.body, inner).text}"], self.bind_let(d, env, name, call=False)
        args = ", ".join(f"{self.names.python[p]}: {self.annotate(inner.types[p])}" for p, _ in d.params)
        head = f"{indent}def {name}({args}) -> {self.annotate(self.inference.results[d.uid])}:"
        return [head, *self.block(d.body, inner, indent + "    "), ""], self.bind_let(d, env, name, call=True)

    # -- definitions
    def define(self, d: Def, place: str) -> list[str]:
        self.check(d)
        env = self.inside(d, Env({}, {}, {}))
        self.locals_used = {self.names.python[p] for p, _ in d.params}
        params = [f"{self.names.python[p]}: {self.annotate(env.types[p])}" for p, _ in d.params]
        if needs := self.constants[d.uid]:
            params += ["*", *(f"{self.names.python[c]}: {self.annotate(ANY)}" for c in needs)]
        body = self.block(d.body, env, "    ")
        result = self.annotate(self.inference.results[d.uid])
        doc = docstring((d.comment + "\n\n" if d.comment else "") + f"[{place}:{d.loc.line}]", "    ")
        once = [] if params else [f"@{self.use('cache')}"]
        return [*once, f"def {self.names.function[d.name]}({', '.join(params)}) -> {result}:", *doc, *body, "", ""]

    def classes(self, place: str) -> list[str]:
        lines = []
        for key, info in self.inference.records.items():
            name = self.names.records[key]
            lines += [
                f"class {name}(msgspec.Struct, frozen=True, gc=False):",
                *docstring(f"[{', '.join(info.fields)}] in {place}.", "    "),
                "",
            ]
            for f in info.fields:
                python = self.names.field[f]
                given = f' = msgspec.field(name="{f}")' if python != f else ""
                lines.append(f"    {python}: {self.annotate(self.frozen(info.type_of(f)))}{given}")
            lines += ["", ""]
        if self.inference.event.kind == "union":
            lines += [f"AnyEvent: TypeAlias = {' | '.join(self.names.records[r.key] for r in self.inference.event.args)}", ""]
        rows = [f"    frozenset({key!r}): {self.names.records[key]}," for key in self.inference.records]
        lines += ["RECORDS: dict[frozenset[str], Any] = {", *rows, "}"] if rows else ["RECORDS: dict[frozenset[str], Any] = {}"]
        constants = "".join(f'"{name}", ' for name, _, _ in self.module.constants)
        return [
            *lines,
            f"CONSTANTS: tuple[str, ...] = ({constants.rstrip()})" if constants else "CONSTANTS: tuple[str, ...] = ()",
            "",
            "",
        ]

    def frozen(self, t: T) -> T:
        """A field's type: any set in it is annotated as a frozenset or, where it may be lazy, not at all."""
        return t if t.kind != "lazy" else ANY

    def refuse_declarations(self) -> None:
        for name, loc in self.module.variables:
            raise Refused(
                f"{loc}: the variable {name} is outside the translated subset: a machine is made of constant definitions"
            )
        for name, arity, loc in self.module.constants:
            if arity:
                raise Refused(f"{loc}: the constant operator {name} is outside the translated subset: constants are values")
        for d in self.inference.defs.values():
            self.check(d)

    def module_text(self, place: str) -> str:
        """The Python source. place: the TLA+ file as docstrings name it. Raises Refused."""
        self.refuse_declarations()
        functions = [line for d in self.module.defs for line in self.define(d, place)]
        classes = self.classes(place)
        title = f"Generated from {place} by `tidegate gen`; do not edit."
        parts = [title, self.module.header, f"sha256: {self.module.sha256}"]
        head = docstring("\n\n".join(p for p in parts if p), "")
        text = "\n".join([*head, "", *self.imports(), *classes, *functions])
        return text.rstrip("\n") + "\n"

    def imports(self) -> list[str]:
        typing = ["Any", *(["TypeAlias"] if self.inference.event.kind == "union" else [])]
        lines = ["from __future__ import annotations", ""]
        if "Set" in self.used:
            lines.append("from collections.abc import Set")
        if "cache" in self.used:
            lines.append("from functools import cache")
        lines.append(f"from typing import {', '.join(typing)}")
        if self.inference.records:
            lines += ["", "import msgspec"]
        runtime = sorted(self.used - {"Set", "Any", "cache"}, key=lambda s: (not s.isupper(), not s[0].isupper(), s))
        if runtime:
            lines += ["", f"from tidegate.protocol._runtime import {', '.join(runtime)}"]
        return [*lines, "", ""]


def docstring(text: str, indent: str) -> list[str]:
    """The lines of a docstring that says exactly `text`."""
    safe = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    if safe.endswith('"'):
        safe = safe[:-1] + '\\"'
    lines = f'"""{safe}"""' if "\n" not in safe else f'"""{safe}\n"""'
    return [indent + line if line else "" for line in lines.split("\n")]


def python_source(module: Module, place: str) -> str:
    """Translate a loaded module. Raises Refused at the first construct outside the subset."""
    return Emitter(module).module_text(place)
