"""The part of the translator that every expression passes: dispatch, logic, LET and bound names.

Rules: as in `translate`, which adds sets, records, functions and EXCEPT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from tidegate.spec import types as ty
from tidegate.spec.errors import Refused
from tidegate.spec.infer import Inference, field_pairs
from tidegate.spec.names import Names
from tidegate.spec.python_code import (
    AND,
    BINARY,
    CALLS,
    IF,
    MAX_INT,
    NAMES,
    NEGATE,
    NOT,
    OR,
    QUANTIFIERS,
    SPELLED,
    STANDARD,
    SUM,
    TOTAL,
    Code,
    Env,
    is_other,
)
from tidegate.spec.sany import LEVELS, Bound, Def, Module, Node
from tidegate.spec.types import T


class Core:
    """Dispatch, logic, LET and bound names of one module. `used`: names of the run-time library that the text needs."""

    # operators with a translation of their own: Translator fills it
    methods: ClassVar[dict[str, Callable[[Any, Node, Env], Code]]] = {}

    def __init__(self, module: Module, inference: Inference, names: Names, constants: dict[str, list[str]]) -> None:
        self.module, self.inference, self.names, self.constants = module, inference, names, constants
        self.used: set[str] = set()
        self.tops = {d.uid: d for d in module.defs}

    def refuse(self, n: Node, what: str, way: str = "") -> Refused:
        return Refused(f"{n.loc}: {what} is outside the translated subset" + (f": {way}" if way else ""))

    def use(self, name: str) -> str:
        self.used.add(name)
        return name

    def kind(self, n: Node, env: Env) -> T:
        return self.inference.type_of(n, env.types)

    # -- expressions
    def ex(self, n: Node, env: Env) -> Code:
        """An expression; raises Refused for what cannot be translated."""
        if n.level > 0:
            raise self.refuse(n, f"an expression of {LEVELS[n.level]} level", "machines have no variables and no primes")
        if n.kind == "num":
            if int(n.value) > MAX_INT:
                raise self.refuse(n, f"the number {n.value}", "TLC computes with 32 bits, at most 2147483647")
            return Code(str(n.value))
        if n.kind == "str":
            return Code(repr(n.value))
        if n.kind == "at":
            return Code(env.at[-1])
        if n.kind == "let":
            return self.let(n, env)
        if n.kind == "other":
            raise self.refuse(n, SPELLED.get(n.op, n.op))
        if n.decl == "param":
            return self.parameter(n, env)
        if n.decl == "const":
            return Code(self.names.python[n.op])
        if n.decl == "user" and n.uid in self.inference.defs:
            return self.call(n, env)
        if n.decl == "user" and n.home not in STANDARD:
            if "!" in n.op:
                raise self.refuse(n, f"{n.op}, of an INSTANCE", "machines stand alone; compose them in the system module")
            raise self.refuse(n, f"{n.op}, defined in {n.home}.tla", "define it in this module")
        return self.operator(n, env)

    def parameter(self, n: Node, env: Env) -> Code:
        if n.args:
            raise self.refuse(n, f"the operator parameter {n.op}")
        return Code(env.names[n.op])

    def call(self, n: Node, env: Env) -> Code:
        args = [self.ex(a, env).at(IF) for a in n.args]
        if n.uid in env.locals:
            text = env.locals[n.uid]
            return Code(f"{text}({', '.join(args)})") if args else Code(text)
        d = self.tops[n.uid]
        args += [f"{c}={c}" for c in (self.names.python[c] for c in self.constants[n.uid])]
        return Code(f"{self.names.function[d.name]}({', '.join(args)})")

    def operator(self, n: Node, env: Env) -> Code:
        if n.op in NAMES:
            name = NAMES[n.op]
            return Code(name if name in ("True", "False") else self.use(name))
        method = self.methods.get(n.op)
        if method is not None:
            return method(self, n, env)
        if n.op in BINARY:
            return self.binary(n, env)
        if n.op in CALLS:
            args = ", ".join(self.ex(a, env).at(IF) for a in n.args)
            name = CALLS[n.op]
            return Code(f"{name if name == 'len' else self.use(name)}({args})")
        raise self.refuse(n, SPELLED.get(n.op, f"the operator {n.op.lstrip('$')}"))

    def binary(self, n: Node, env: Env) -> Code:
        text, level, left, right = BINARY[n.op]
        a, b = n.args
        one, two = self.kind(a, env), self.kind(b, env)
        if n.op in ("=", "/=", "\\equiv", "\\subseteq"):
            self.comparable(n, one, two)
        if n.op in ("\\in", "\\notin"):
            self.comparable(n, one, ty.element(two))
            return Code(f"{self.ex(a, env).at(left)} {text} {self.iterable(b, env, literal=True).at(right)}", level)
        second = self.braces(b, env) if n.op in ("\\union", "\\intersect", "\\") and one.kind == "set" else self.ex(b, env)
        return Code(f"{self.ex(a, env).at(left)} {text} {second.at(right)}", level)

    def comparable(self, n: Node, one: T, two: T) -> None:
        if why := ty.clash(one, two):
            raise self.refuse(n, f"{SPELLED.get(n.op, n.op)} between {why}", "use values of one type")

    def braces(self, n: Node, env: Env) -> Code:
        """A set as the right operand of a frozenset's |, & or -: a literal needs no frozenset of its own."""
        if n.kind == "app" and n.op == "$SetEnumerate" and n.args:
            return Code("{" + ", ".join(self.ex(a, env).at(IF) for a in n.args) + "}")
        return self.ex(n, env)

    def iterable(self, n: Node, env: Env, *, literal: bool = False) -> Code:
        """A set that is only searched or walked: a..b is a range, a literal a set display."""
        if n.kind == "app" and n.op == ".." and n.decl == "user":
            low, high = n.args
            end = str(int(high.value) + 1) if high.kind == "num" else f"{self.ex(high, env).at(SUM)} + 1"
            return Code(f"range({self.ex(low, env).at(IF)}, {end})")
        if literal and n.kind == "app" and n.op == "$SetEnumerate":
            self.enumerate_set(n, env)  # for its refusals
            return self.braces(n, env)
        return self.ex(n, env)

    def enumerate_set(self, n: Node, env: Env) -> Code:
        kinds = [self.kind(a, env) for a in n.args]
        for other in kinds[1:]:
            self.comparable(n, kinds[0], other)
        items = [self.ex(a, env).at(IF) for a in n.args]
        return Code(
            f"frozenset(({', '.join(items)},))"
            if len(items) == 1
            else f"frozenset(({', '.join(items)}))"
            if items
            else self.use("EMPTY")
        )

    def logic(self, n: Node, env: Env) -> Code:
        word, level = (" and ", AND) if n.op == "$ConjList" else (" or ", OR)
        parts = [self.ex(a, env) for a in n.args]
        return parts[0] if len(parts) == 1 else Code(word.join(p.at(level) for p in parts), level)

    def implies(self, n: Node, env: Env) -> Code:
        return Code(f"not {self.ex(n.args[0], env).at(NOT)} or {self.ex(n.args[1], env).at(OR)}", OR)

    def negation(self, n: Node, env: Env) -> Code:
        return Code(f"not {self.ex(n.args[0], env).at(NOT)}", NOT)

    def minus(self, n: Node, env: Env) -> Code:
        return Code(f"-{self.ex(n.args[0], env).at(NEGATE)}", NEGATE)

    def condition(self, n: Node, env: Env) -> Code:
        test, yes, no = (self.ex(a, env) for a in n.args)
        return Code(f"{yes.at(OR)} if {test.at(OR)} else {no.at(IF)}", IF)

    def case(self, n: Node, env: Env) -> Code:
        text, other = "", ""
        for p in n.args:
            value = self.ex(p.args[1], env)
            if is_other(p):
                other = value.at(IF)
            else:
                text += f"{value.at(OR)} if {self.ex(p.args[0], env).at(OR)} else "
        return Code(text + (other or f"{self.use('no_case')}()"), IF)

    # -- LET
    def bind_let(self, d: Def, env: Env, name: str, call: bool) -> Env:
        """env with the LET definition d known as `name`; call: it is a function without parameters, to be called."""
        return replace(env, locals={**env.locals, d.uid: f"{name}()" if call and not d.params else name})

    def inside(self, d: Def, env: Env) -> Env:
        """env for the body of a definition."""
        for name, arity in d.params:
            if arity:
                raise Refused(f"{d.loc}: the operator parameter {name} of {d.name} is outside the translated subset")
        names = {**env.names, **{p: self.names.python[p] for p, _ in d.params}}
        return replace(env, types=self.inference.scope(d, env.types), names=names)

    def let(self, n: Node, env: Env) -> Code:
        """LET inside an expression: each definition becomes the argument of a lambda."""
        opens, closes = "", ""
        for d in n.defs:
            self.check(d)
            name, eager = self.names.python.get(d.name, d.name), not d.params and self.total(d.body, env)
            value = self.ex(d.body, self.inside(d, env))
            args = ", ".join(self.names.python[p] for p, _ in d.params)
            opens += f"(lambda {name}: "
            closes = (
                f")({value.at(IF) if eager else f'lambda {args}: {value.at(IF)}' if args else f'lambda: {value.at(IF)}'})"
                + closes
            )
            env = self.bind_let(d, env, name, call=not eager)
        return Code(f"{opens}{self.ex(n.args[0], env).at(IF)}{closes}")

    def check(self, d: Def) -> None:
        """Refuses definitions that have no translation whatever their body."""
        if d.recursive:
            raise Refused(
                f"{d.loc}: the recursive operator {d.name} is outside the translated subset: use a quantifier or a set"
            )
        if not d.name.isidentifier():
            raise Refused(f"{d.loc}: the operator symbol {d.name} is outside the translated subset: give it a name")

    def total(self, n: Node, env: Env) -> bool:
        """Whether evaluating n can never fail, so that evaluating it early changes nothing."""
        if n.kind in ("num", "str"):
            return True
        if n.kind != "app":
            return False
        if n.decl == "const" or (n.decl == "param" and not n.args):
            return True
        if n.uid in env.locals:
            return not n.args and not env.locals[n.uid].endswith("()")
        if n.uid in self.tops:
            d = self.tops[n.uid]
            inside = Env(self.inference.scope(d), {}, {})
            return all(self.total(a, env) for a in n.args) and self.total(d.body, inside)
        if n.op == "$RcdSelect":
            t = self.kind(n.args[0], env)
            return t.kind == "rec" and n.args[1].value in t.key and self.total(n.args[0], env)
        if n.op not in TOTAL:
            return False
        inner = replace(env, types=self.inference.bind(n, env.types)) if n.bounds else env
        parts = [v for _, v in field_pairs(n)] if n.op in ("$RcdConstructor", "$SetOfRcds") else n.args
        return all(self.total(b.domain, env) for b in n.bounds) and all(self.total(a, inner) for a in parts)

    # -- bound names
    def loops(self, n: Node, env: Env) -> tuple[str, Env]:
        """The `for` clauses of a quantifier or constructor, and the scope inside."""
        names = {**env.names, **{x: self.names.python[x] for b in n.bounds for x in b.names}}
        inner = replace(env, types=self.inference.bind(n, env.types), names=names)
        return "".join(self.loop(b, env) for b in n.bounds), inner

    def loop(self, b: Bound, env: Env) -> str:
        domain = self.iterable(b.domain, env, literal=True).at(OR)
        names = [self.names.python[x] for x in b.names]
        if b.is_tuple:
            return f" for {', '.join(names)}{',' if len(names) == 1 else ''} in {domain}"
        return "".join(f" for {x} in {domain}" for x in names)

    @staticmethod
    def bound_key(n: Node, env: Env) -> str:
        names = [env.names[x] for b in n.bounds for x in b.names]
        if len(n.bounds) > 1 and any(b.is_tuple for b in n.bounds):
            groups = [[env.names[x] for x in b.names] for b in n.bounds]
            parts = [f"({', '.join(g)},)" if b.is_tuple else ", ".join(g) for b, g in zip(n.bounds, groups, strict=True)]
            return f"({', '.join(parts)})"
        if len(names) == 1:
            return f"({names[0]},)" if n.bounds[0].is_tuple else names[0]
        return f"({', '.join(names)})"

    def quantifier(self, n: Node, env: Env) -> Code:
        loops, inner = self.loops(n, env)
        return Code(f"{QUANTIFIERS[n.op]}({self.ex(n.args[0], inner).at(IF)}{loops})")

    def image(self, n: Node, env: Env) -> Code:
        loops, inner = self.loops(n, env)
        return Code(f"frozenset({self.ex(n.args[0], inner).at(IF)}{loops})")

    def filtered(self, n: Node, env: Env) -> Code:
        loops, inner = self.loops(n, env)
        name = "frozenset" if n.op == "$SubsetOf" else self.use("only")
        return Code(f"{name}({self.bound_key(n, inner)}{loops} if {self.ex(n.args[0], inner).at(OR)})")

    def function(self, n: Node, env: Env) -> Code:
        loops, inner = self.loops(n, env)
        return Code(f"{self.use('Map')}(({self.bound_key(n, inner)}, {self.ex(n.args[0], inner).at(IF)}){loops})")
