"""Translates constant-level TLA+ expressions to Python expressions.

Rules: evaluation order and laziness are TLC's (/\\ and \\/ stop early, IF and CASE evaluate one branch, LET is
evaluated where it is used); a construct that is not listed here is refused with its place; the text is a function of the
source alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidegate.spec import types as ty
from tidegate.spec.infer import field_pairs
from tidegate.spec.python_code import ATOM, IF, LAMBDA, OR, Code, Env, atom
from tidegate.spec.sany import Node
from tidegate.spec.translate_core import Core
from tidegate.spec.types import T


class Translator(Core):
    """Expressions of one module: `ex(node, env)`."""

    def record(self, n: Node, env: Env) -> Code:
        pairs = {name: self.ex(v, env).at(IF) for name, v in field_pairs(n)}
        key = tuple(sorted(pairs))
        return Code(self.construct(key, pairs))

    def construct(self, key: tuple[str, ...], values: dict[str, str]) -> str:
        fields = self.inference.records[key].fields
        return f"{self.names.records[key]}({', '.join(f'{self.names.field[f]}={values[f]}' for f in fields)})"

    def record_set(self, n: Node, env: Env) -> Code:
        pairs = {name: self.ex(v, env).at(IF) for name, v in field_pairs(n)}
        key = tuple(sorted(pairs))
        fields = ", ".join(f"{self.names.field[f]}={pairs[f]}" for f in self.inference.records[key].fields)
        return Code(f"{self.use('Records')}({self.names.records[key]}, {fields})")

    def select(self, n: Node, env: Env) -> Code:
        name, t = str(n.args[1].value), self.kind(n.args[0], env)
        if t.kind in ("rec", "union") and not any(name in r.key for r in ty.members(t)):
            raise self.refuse(n, f"the field {name}, which no such record has")
        if t.kind in ty.GROUPS and t.kind not in ("rec", "union"):
            return Code(f"{self.use('apply')}({self.ex(n.args[0], env).at(IF)}, {name!r})")
        return Code(f"{self.ex(n.args[0], env).at(ATOM)}.{self.names.field.get(name, name)}")

    def apply(self, n: Node, env: Env) -> Code:
        f, x = n.args
        t = self.kind(f, env)
        if t.kind == "rec" and x.kind == "str" and x.value in t.key:
            return Code(f"{self.ex(f, env).at(ATOM)}.{self.names.field[str(x.value)]}")
        if t.kind == "map":
            return Code(f"{self.ex(f, env).at(ATOM)}[{self.ex(x, env).at(IF)}]")
        return Code(f"{self.use('apply')}({self.ex(f, env).at(IF)}, {self.ex(x, env).at(IF)})")

    def tuple_literal(self, n: Node, env: Env) -> Code:
        items = [self.ex(a, env).at(IF) for a in n.args]
        return Code(f"({', '.join(items)}{',' if len(items) == 1 else ''})")

    def product(self, n: Node, env: Env) -> Code:
        names = [f"__{i}" for i in range(1, len(n.args) + 1)]  # no TLA+ name is without a letter
        loops = "".join(f" for {x} in {self.ex(a, env).at(OR)}" for x, a in zip(names, n.args, strict=True))
        return Code(f"frozenset(({', '.join(names)}){loops})")

    def singleton(self, n: Node, env: Env) -> Code:
        key, value = (self.ex(a, env).at(IF) for a in n.args)
        return Code(f"{self.use('Map')}((({key}, {value}),))")

    def over(self, n: Node, env: Env) -> Code:
        first, second = (self.mapping(a, env) for a in n.args)
        return Code(f"{first}.over({second})")

    def mapping(self, n: Node, env: Env) -> str:
        code = self.ex(n, env)
        return code.at(ATOM) if self.kind(n, env).kind == "map" else f"{self.use('as_map')}({code.at(IF)})"

    def sequence(self, n: Node, env: Env) -> Code:
        parts = [self.ex(a, env).at(IF) for a in n.args]
        if n.op == "Append":
            return Code(f"({self.use('seq')}({parts[0]}) + ({parts[1]},))")
        return Code(f"({self.use('seq')}({parts[0]}) + {self.use('seq')}({parts[1]}))")

    # -- EXCEPT
    def excepted(self, n: Node, env: Env) -> Code:
        """[base EXCEPT ...]: the changes one after another, each seeing the ones before it."""
        base, t = self.ex(n.args[0], env), self.kind(n.args[0], env)
        changes = [(p.args[0].args, p.args[1]) for p in n.args[1:]]
        if t.kind == "rec":
            return Code(self.update_record(base, t, changes, env))
        text = base.at(IF)
        for path, value in changes:
            text = self.update(text, t, path, value, env)
        return Code(text)

    def update_record(self, base: Code, t: T, changes: list[tuple[list[Node], Node]], env: Env) -> str:
        plain = base.text.replace(".", "").isidentifier()
        name = base.text if plain else f"_{env.depth}"
        inner = env if plain else replace(env, depth=env.depth + 1)
        values = {f: f"{name}.{self.names.field[f]}" for f in t.key}
        for path, value in changes:
            f = str(path[0].value) if path[0].kind == "str" else ""
            if f not in t.key:
                raise self.refuse(path[0], f"EXCEPT on {f or 'an argument'}, which is no field of the record")
            values[f] = self.update(values[f], self.inference.records[t.key].type_of(f), path[1:], value, inner)
        made = self.construct(t.key, values)
        return made if plain else f"(lambda {name}: {made})({base.at(IF)})"

    def update(self, old: str, t: T, path: list[Node], value: Node, env: Env) -> str:
        """The text of `old` with what lies at `path` replaced."""
        if not path:
            return self.ex(value, replace(env, at=(*env.at, atom(old)), types={**env.types, "@": t})).at(IF)
        if t.kind == "rec" and path[0].kind == "str":
            return self.update_record(Code(old, LAMBDA), t, [(path, value)], env)
        key = self.ex(path[0], env).at(IF)
        if t.kind == "map" and len(path) == 1 and not any(x.kind == "at" for x in value.walk()):
            return f"{atom(old)}.put({key}, {self.ex(value, env).at(IF)})"
        below = f"_{env.depth}"  # a key outside the domain changes nothing, so @ is evaluated only inside it
        inner = replace(env, depth=env.depth + 1)
        changed = self.update(below, self.inference.applied(t, path[0]), path[1:], value, inner)
        return f"{self.use('replace')}({old}, {key}, lambda {below}: {changed})"


METHODS: dict[str, Callable[[Translator, Node, Env], Code]] = {
    "$ConjList": Translator.logic,
    "$DisjList": Translator.logic,
    "=>": Translator.implies,
    "\\lnot": Translator.negation,
    "-.": Translator.minus,
    "$IfThenElse": Translator.condition,
    "$Case": Translator.case,
    "$BoundedForall": Translator.quantifier,
    "$BoundedExists": Translator.quantifier,
    "$SetOfAll": Translator.image,
    "$SubsetOf": Translator.filtered,
    "$BoundedChoose": Translator.filtered,
    "$FcnConstructor": Translator.function,
    "$NonRecursiveFcnSpec": Translator.function,
    "$SetEnumerate": Translator.enumerate_set,
    "$RcdConstructor": Translator.record,
    "$SetOfRcds": Translator.record_set,
    "$RcdSelect": Translator.select,
    "$FcnApply": Translator.apply,
    "$Tuple": Translator.tuple_literal,
    "$CartesianProd": Translator.product,
    "$Except": Translator.excepted,
    ":>": Translator.singleton,
    "@@": Translator.over,
    "Append": Translator.sequence,
    "\\o": Translator.sequence,
}
Translator.methods = METHODS
