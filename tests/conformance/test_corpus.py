"""Generated Python and TLC give every definition of the corpus the same value, and the corpus notices planted compiler bugs."""

import pytest
from conformance.corpus_tools import CORPUS, load_corpus, python_values, tlc_values, values_of

from tidegate.protocol import _runtime
from tidegate.spec import python_code, translate
from tidegate.spec.python_code import IF, OR, Code
from tidegate.spec.sany import Node
from tidegate.spec.translate import Translator
from tidegate.spec.values import show


@pytest.fixture(scope="module")
def modules():
    return load_corpus()


@pytest.fixture(scope="module")
def expected(modules):
    return tlc_values(modules)


def differing(modules, expected):
    found = {}
    for module in modules:
        found |= {key: v for key, v in python_values(module).items() if expected[key] != v}
    return found


@pytest.mark.parametrize("name", [path.stem for path in CORPUS])
def test_generated_python_agrees_with_tlc(name, modules, expected):
    module = next(m for m in modules if m.name == name)
    wrong = differing([module], expected)
    assert not wrong, "\n".join(
        f"{k}: TLC {show(expected[k])}, Python {v if isinstance(v, str) else show(v)}" for k, v in wrong.items()
    )


def test_every_definition_was_evaluated_by_tlc(modules, expected):
    assert set(expected) == {(m.name, name) for m in modules for name in values_of(m)}
    assert len(expected) > 130


def without_last(self, n, env):
    return Translator.logic(self, Node(**{**vars(n), "args": n.args[:-1] or n.args}), env)


def swapped_condition(self, n, env):
    test, yes, no = (self.ex(a, env) for a in n.args)
    return Code(f"{no.at(OR)} if {test.at(OR)} else {yes.at(IF)}", IF)


def at_is_base(self, old, t, path, value, env, _update=Translator.update):
    """@ stands for the whole record, not for the field."""
    return _update(self, old.partition(".")[0] if not path else old, t, path, value, env)


def changes_apart(self, n, env, _excepted=Translator.excepted):
    """Of two changes of one place, the second does not see the first."""
    last = {str([(a.kind, a.value, a.op) for a in p.args[0].args]): p for p in n.args[1:]}
    return _excepted(self, Node(**{**vars(n), "args": [n.args[0], *last.values()]}), env)


def eager_let(self, n, env):
    return True


def put_new_key(self, key, value):
    out = _runtime.Map(self)
    dict.__setitem__(out, key, value)
    return out


BUGS = {
    "all becomes any": lambda m: m.setitem(python_code.QUANTIFIERS, "$BoundedForall", "any"),
    "any becomes all": lambda m: m.setitem(python_code.QUANTIFIERS, "$BoundedExists", "all"),
    "division truncates": lambda m: m.setattr(_runtime, "quotient", lambda a, b: int(a / b)),
    "remainder has the sign of the dividend": lambda m: m.setattr(_runtime, "modulo", lambda a, b: a - b * int(a / b)),
    "the last conjunct is dropped": lambda m: m.setitem(translate.METHODS, "$ConjList", without_last),
    "a disjunction is a conjunction": lambda m: m.setitem(python_code.BINARY, "\\lor", ("and", 3, 3, 3)),
    "implication is reversed": lambda m: m.setitem(
        translate.METHODS,
        "=>",
        lambda self, n, env: Code(f"{self.ex(n.args[0], env).at(3)} or not {self.ex(n.args[1], env).at(5)}", 2),
    ),
    "IF takes the other branch": lambda m: m.setitem(translate.METHODS, "$IfThenElse", swapped_condition),
    "@ is the whole record": lambda m: m.setattr(Translator, "update", at_is_base),
    "only the last change of a place counts": lambda m: m.setitem(translate.METHODS, "$Except", changes_apart),
    "EXCEPT adds a new key": lambda m: m.setattr(_runtime.Map, "put", put_new_key),
    "LET is evaluated early": lambda m: m.setattr(Translator, "total", eager_let),
    "an interval lacks its end": lambda m: m.setattr(_runtime, "interval", lambda a, b: frozenset(range(a, b))),
    "set difference is symmetric": lambda m: m.setitem(python_code.BINARY, "\\", ("^", 6, 6, 7)),
    "strict order is not": lambda m: m.setitem(python_code.BINARY, "<", ("<=", 5, 6, 6)),
    "subtraction nests to the right": lambda m: m.setitem(python_code.BINARY, "-", ("-", 8, 9, 8)),
    "@@ prefers the second function": lambda m: m.setattr(_runtime.Map, "over", lambda f, g: _runtime.Map({**f, **g})),
    "SUBSET leaves out the empty set": lambda m: m.setattr(
        _runtime.Powerset, "__iter__", lambda self: iter([frozenset([x]) for x in self.base])
    ),
    "a sequence counts from 0": lambda m: m.setattr(_runtime, "apply", lambda f, x: f[x]),
    "a sequence is not a function": lambda m: m.setattr(_runtime.Map, "__eq__", dict.__eq__),
    "a membership is negated": lambda m: m.setitem(python_code.BINARY, "\\notin", ("in", 5, 6, 6)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_corpus_notices_a_planted_compiler_bug(bug, modules, expected, monkeypatch):
    BUGS[bug](monkeypatch)
    assert differing(modules, expected)
