"""Infers the types of a machine module's definitions and parameters.

Rules: a parameter has the join of what its callers in the module pass, the first parameter of Enabled and Step being the
state and the second the event; a parameter called s of which only fields of the state are used is the state; a record
field has the type of the record set that declares it, else of the values that constructors give it; iteration goes on until
nothing changes, so that the order of definitions does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

from tidegate.spec import types as ty
from tidegate.spec.sany import Def, Module, Node
from tidegate.spec.types import ANY, BOOL, INT, NEVER, STR, Key, T, element, join

Scope = dict[str, T]
BOOLEAN_OPS = frozenset(
    ("=", "/=", "\\in", "\\notin", "\\subseteq", "\\land", "\\lor", "\\lnot", "=>", "\\equiv", "TRUE", "FALSE",
     "$ConjList", "$DisjList", "$BoundedForall", "$BoundedExists", "<", ">", "\\leq", "\\geq")
)  # fmt: skip
INTEGER_OPS = frozenset(("+", "-", "*", "-.", "\\div", "%", "^", "Cardinality", "Len"))
ROUNDS = 20


@dataclass
class Record:
    """fields in the order of the source; declared by a record set, made by constructors."""

    fields: list[str]
    declared: dict[str, T] = field(default_factory=dict)
    made: dict[str, T] = field(default_factory=dict)

    def type_of(self, name: str) -> T:
        t = self.declared.get(name, NEVER)
        return t if t != NEVER else self.made.get(name, NEVER)


def field_pairs(n: Node) -> list[tuple[str, Node]]:
    """The (field, node) pairs of a record constructor or record set."""
    return [(str(p.args[0].value), p.args[1]) for p in n.args]


def record_set(body: Node) -> Node | None:
    """The record set that a definition's body is, perhaps filtered; None for any other body."""
    if body.kind == "app" and body.op == "$SubsetOf":
        body = body.bounds[0].domain
    return body if body.kind == "app" and body.op == "$SetOfRcds" else None


class Inference:
    """After __init__: results and params by definition uid, records by key; type_of(node, scope) for any expression."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.defs: dict[str, Def] = {}
        for d in module.defs:
            self._collect(d)
        self.results: dict[str, T] = dict.fromkeys(self.defs, NEVER)
        self.params: dict[str, list[T]] = {uid: [NEVER] * len(d.params) for uid, d in self.defs.items()}
        self.records: dict[Key, Record] = {}
        self._declare_records()
        self.state, self.event = self._state(), self._event()
        self._seed()
        self._settle()
        # what no caller in the module decides may be anything
        self.params = {uid: [ANY if t == NEVER else t for t in types] for uid, types in self.params.items()}
        self._settle()

    def _settle(self) -> None:
        """Infer until nothing changes; any for everything if that takes too long."""
        for _ in range(ROUNDS):
            before = (dict(self.results), {u: list(p) for u, p in self.params.items()}, repr(self.records))
            for d in self.module.defs:
                self.results[d.uid] = join(self.results[d.uid], self.type_of(d.body, self.scope(d)))
            if before == (self.results, self.params, repr(self.records)):
                return
        self.results, self.params = dict.fromkeys(self.defs, ANY), {u: [ANY] * len(p) for u, p in self.params.items()}

    def _collect(self, d: Def) -> None:
        self.defs[d.uid] = d
        for n in d.body.walk():
            for inner in n.defs:
                self.defs[inner.uid] = inner

    def _declare_records(self) -> None:
        for d in self.module.defs:
            for n in d.body.walk():
                if n.kind == "app" and n.op in ("$SetOfRcds", "$RcdConstructor"):
                    names = [name for name, _ in field_pairs(n)]
                    known = self.records.setdefault(tuple(sorted(names)), Record(names))
                    if n.op == "$SetOfRcds" and not known.declared:
                        known.fields, known.declared = names, dict.fromkeys(names, NEVER)

    def _state(self) -> T:
        d = self.module.definition("State")
        found = record_set(d.body) if d else None
        return ANY if found is None else ty.record(name for name, _ in field_pairs(found))

    def _event(self) -> T:
        d = self.module.definition("Events")
        sets = [n for n in d.body.walk() if n.kind == "app" and n.op == "$SetOfRcds"] if d else []
        return reduce(join, (ty.record(name for name, _ in field_pairs(n)) for n in sets), NEVER) if sets else ANY

    def _seed(self) -> None:
        for d in self.module.defs:
            for i, (name, _) in enumerate(d.params):
                if d.name in ("Enabled", "Step") and i < 2:
                    self.params[d.uid][i] = (self.state, self.event)[i]
                elif name == "s" and self.state.kind == "rec" and self._fields_used(d, name) <= set(self.state.key):
                    self.params[d.uid][i] = self.state

    @staticmethod
    def _fields_used(d: Def, param: str) -> set[str]:
        def is_param(n: Node) -> bool:
            return n.kind == "app" and n.decl == "param" and n.op == param

        selected = {str(n.args[1].value) for n in d.body.walk() if n.op == "$RcdSelect" and is_param(n.args[0])}
        changes = [n for n in d.body.walk() if n.op == "$Except" and is_param(n.args[0])]
        return selected | {str(p.args[0].args[0].value) for n in changes for p in n.args[1:]}

    def scope(self, d: Def, outer: Scope | None = None) -> Scope:
        """The types of a definition's parameters, added to those of the scope around it."""
        return {**(outer or {}), **dict(zip((name for name, _ in d.params), self.params[d.uid], strict=True))}

    # -- expressions
    def type_of(self, n: Node, scope: Scope) -> T:
        """The type of an expression; on the way, call sites and constructors are noted."""
        if n.kind == "num":
            return INT
        if n.kind == "str":
            return STR
        if n.kind == "let":
            for d in n.defs:
                self.results[d.uid] = join(self.results[d.uid], self.type_of(d.body, self.scope(d, scope)))
            return self.type_of(n.args[0], scope)
        if n.kind != "app":
            return scope.get("@", ANY) if n.kind == "at" else ANY
        inner = self.bind(n, scope)
        args = [self.type_of(a, inner) for a in n.args if n.op not in ("$Pair", "$Seq")]
        if n.decl == "param":
            return scope.get(n.op, ANY)
        if n.decl == "const":
            return ANY
        if n.decl == "user" and n.uid in self.results:
            self.params[n.uid] = [join(p, a) for p, a in zip(self.params[n.uid], args, strict=False)]
            return self.results[n.uid]
        return self.operator(n, args, scope, inner)

    def bind(self, n: Node, scope: Scope) -> Scope:
        """The scope inside a quantifier or constructor."""
        if not n.bounds:
            return scope
        inner = dict(scope)
        for b in n.bounds:
            item = element(self.type_of(b.domain, scope))
            if b.is_tuple:
                parts = item.args if item.kind == "tuple" and len(item.args) == len(b.names) else [ANY] * len(b.names)
                inner.update(zip(b.names, parts, strict=True))
            else:
                inner.update(dict.fromkeys(b.names, item))
        return inner

    def operator(self, n: Node, args: list[T], scope: Scope, inner: Scope) -> T:
        op = n.op
        if op in BOOLEAN_OPS:
            return BOOL
        if op in INTEGER_OPS:
            return INT
        if op in ("$Case", "$RcdConstructor", "$SetOfRcds", "$Except"):
            return getattr(self, {"$Case": "_case", "$Except": "_except"}.get(op, "_record"))(n, inner)  # type: ignore[no-any-return]
        if op in ("$SetOfAll", "$FcnConstructor", "$NonRecursiveFcnSpec", "$SubsetOf", "$BoundedChoose"):
            return self._bounded(n, args, inner)
        if op == "$FcnApply":
            return self.applied(args[0], n.args[1])
        if op == "$RcdSelect":
            return self.selected(args[0], str(n.args[1].value))
        return self._set_operator(op, args)

    def _set_operator(self, op: str, args: list[T]) -> T:
        if op == "$IfThenElse":
            return join(args[1], args[2])
        if op == "$SetEnumerate":
            return ty.set_of(reduce(join, args, NEVER))
        if op in ("\\union", "\\intersect"):
            both = join(args[0], args[1])
            return T(args[0].kind, both.args) if both.kind in ("set", "lazy") and args[0].kind in ("set", "lazy") else both
        if op == "\\":
            return args[0]
        if op in ("BOOLEAN", "..", "DOMAIN"):
            return ty.set_of({"BOOLEAN": BOOL, "..": INT}.get(op) or self._domain(args[0]))
        if op in ("Nat", "Int"):
            return ty.lazy_of(INT)
        if op == "SUBSET":
            return ty.lazy_of(ty.set_of(element(args[0])))
        if op == "UNION":
            return ty.set_of(element(element(args[0])))
        if op == "$SetOfFcns":
            return ty.lazy_of(ty.map_of(element(args[0]), element(args[1])))
        if op == "$CartesianProd":
            return ty.set_of(T("tuple", tuple(map(element, args))))
        if op == "$Tuple":
            return T("tuple", tuple(args))
        if op == ":>":
            return ty.map_of(args[0], args[1])
        if op == "@@":
            return join(args[0], args[1])
        if op in ("Append", "\\o", "Tail"):
            return T("seq", (ANY,))
        return ANY

    @staticmethod
    def _domain(t: T) -> T:
        return t.args[0] if t.kind == "map" else INT if t.kind in ("seq", "tuple") else STR if t.kind == "rec" else ANY

    def _case(self, n: Node, scope: Scope) -> T:
        for p in n.args:
            self.type_of(p.args[0], scope)
        return reduce(join, (self.type_of(p.args[1], scope) for p in n.args), NEVER)

    def _record(self, n: Node, scope: Scope) -> T:
        pairs = [(name, self.type_of(v, scope)) for name, v in field_pairs(n)]
        info = self.records[tuple(sorted(name for name, _ in pairs))]
        kinds, take = (info.declared, element) if n.op == "$SetOfRcds" else (info.made, lambda t: t)
        for name, t in pairs:
            kinds[name] = join(kinds.get(name, NEVER), take(t))
        key = ty.record(name for name, _ in pairs)
        return ty.lazy_of(key) if n.op == "$SetOfRcds" else key

    def _except(self, n: Node, scope: Scope) -> T:
        base = self.type_of(n.args[0], scope)
        for p in n.args[1:]:
            old = base
            for key in p.args[0].args:
                self.type_of(key, scope)
                old = self.applied(old, key)
            self.type_of(p.args[1], {**scope, "@": old})
        return base

    def _bounded(self, n: Node, args: list[T], inner: Scope) -> T:
        if n.op == "$SetOfAll":
            return ty.set_of(args[0])
        if n.op in ("$FcnConstructor", "$NonRecursiveFcnSpec"):
            names = [inner[x] for b in n.bounds for x in b.names]
            return ty.map_of(names[0] if len(names) == 1 and not n.bounds[0].is_tuple else T("tuple", tuple(names)), args[0])
        names = [inner[x] for x in n.bounds[0].names] if n.bounds else [ANY]
        one = T("tuple", tuple(names)) if n.bounds and n.bounds[0].is_tuple else names[0]
        return ty.set_of(one) if n.op == "$SubsetOf" else one

    def applied(self, f: T, argument: Node) -> T:
        """The type of f[argument]."""
        if f.kind == "map":
            return f.args[1]
        if f.kind == "seq":
            return f.args[0]
        if f.kind == "tuple":
            i = argument.value if argument.kind == "num" else 0
            return f.args[i - 1] if isinstance(i, int) and 1 <= i <= len(f.args) else reduce(join, f.args, NEVER)
        return NEVER if f == NEVER else self.selected(f, str(argument.value)) if argument.kind == "str" else ANY

    def selected(self, r: T, name: str) -> T:
        """The type of r.name."""
        if r.kind == "rec":
            return self.records[r.key].type_of(name) if name in r.key else ANY
        if r.kind == "union":
            return reduce(join, (self.records[m.key].type_of(name) for m in r.args if name in m.key), NEVER)
        return r if r == NEVER else ANY
