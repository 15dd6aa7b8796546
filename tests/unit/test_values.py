"""Canonical values: TLA+'s equality, whoever wrote the value."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.protocol._runtime import BOOLEAN, EvaluationError, Functions, Map, Powerset, Records
from tidegate.spec.errors import SpecError
from tidegate.spec.gen import load_source
from tidegate.spec.values import FALSE, TRUE, canon, function, parse, parse_all, parse_state, sequence, show, to_python

values = st.recursive(
    st.one_of(st.integers(-99, 99), st.text('ab\\" \n', max_size=4), st.sampled_from([TRUE, FALSE])),
    lambda inner: st.one_of(
        st.frozensets(inner, max_size=3),
        st.lists(inner, max_size=3).map(sequence),
        st.dictionaries(inner, inner, max_size=3).map(lambda d: function(d.items())),
    ),
    max_leaves=12,
)
EMPTY = load_source("empty", "RECORDS = {}")


@given(values)
def test_shown_values_parse_back(value):
    assert parse(show(value)) == value


@given(values)
def test_python_values_keep_their_canonical_form_or_are_refused(value):
    if mixed(value):
        with pytest.raises(SpecError, match="mixes booleans and numbers"):
            to_python(value, EMPTY)
    else:
        assert canon(to_python(value, EMPTY)) == value


def loose(value):
    """The value with 1 for TRUE and 0 for FALSE: what Python cannot tell apart becomes one."""
    if isinstance(value, frozenset):
        return frozenset(map(loose, value))
    if isinstance(value, tuple):
        return int(value[1]) if value[0] == "bool" else function((loose(k), loose(v)) for k, v in value[1])
    return value


def mixed(value):
    """Whether a set or domain holds two elements that Python cannot tell apart."""
    if isinstance(value, frozenset):
        return len(loose(value)) < len(value) or any(map(mixed, value))
    if isinstance(value, tuple) and value[0] == "fun":
        keys = {k for k, _ in value[1]}
        return len(set(map(loose, keys))) < len(keys) or any(mixed(x) for pair in value[1] for x in pair)
    return False


def test_true_is_not_one():
    assert canon(True) != canon(1)
    assert canon(frozenset((1,))) != canon(frozenset((True,)))
    assert parse("TRUE") != parse("1")
    assert canon(Map({1: 2})) != canon(Map({True: 2}))
    with pytest.raises(SpecError, match="mixes booleans and numbers"):
        to_python(frozenset((1, TRUE)), EMPTY)


def test_records_sequences_and_functions_are_functions():
    class Pair(msgspec.Struct, frozen=True):
        a: int
        class_: int = msgspec.field(name="class")

    assert canon(Pair(1, 2)) == parse("[class |-> 2, a |-> 1]") == parse('("a" :> 1 @@ "class" :> 2)')
    assert canon((7, 8)) == parse("<<7, 8>>") == parse("(1 :> 7 @@ 2 :> 8)") == canon(Map({2: 8, 1: 7}))
    assert parse("<< >>") == canon(Map()) == canon(())


def test_model_values_are_strings():
    assert parse("{m1, m2}") == parse('{"m1", "m2"}') == frozenset(("m1", "m2"))


def test_wrapped_output_parses():
    assert parse('<<"a long\n  string", {1,\n 2}>>') == sequence(["a long string", frozenset((1, 2))])
    assert parse_all("<<1>>\n{2}\n3") == [sequence([1]), frozenset((2,)), 3]


def test_states():
    assert parse_state('/\\ a = 1\n/\\ b = [x |-> "/\\\\ no"]') == {"a": 1, "b": parse('[x |-> "/\\\\ no"]')}
    assert parse_state("a = {}") == {"a": frozenset()}


@pytest.mark.parametrize("text", ["", "{1", "<<1,", "[a |-> ]", "1 2", "(1 :> 2", "?", "{1} }"])
def test_what_is_no_value_is_refused(text):
    with pytest.raises(SpecError):
        parse(text)


def test_what_no_machine_makes_is_refused():
    with pytest.raises(SpecError, match="is no TLA\\+ value"):
        canon(1.5)


class TestMap:
    def test_a_map_of_1_to_n_equals_the_tuple(self):
        m = Map({1: "a", 2: "b"})
        assert m == ("a", "b")
        assert m == ("a", "b")
        assert hash(m) == hash(("a", "b"))
        assert m in {("a", "b")}
        assert m != ("a",)
        assert Map({0: "a"}) != ("a",)

    def test_it_does_not_change(self):
        m = Map({1: 2})
        for change in (lambda: m.__setitem__(1, 3), lambda: m.update({}), lambda: m.pop(1), lambda: m.__ior__({})):
            with pytest.raises(TypeError, match="does not change"):
                change()
        assert m.put(1, 3) == Map({1: 3})
        assert m.put(9, 3) is m

    def test_outside_its_domain_it_raises(self):
        with pytest.raises(EvaluationError, match="applied to 2, outside its domain"):
            Map({1: 2})[2]

    def test_comparison_with_a_record_is_loud(self):
        class R(msgspec.Struct, frozen=True):
            a: int

        with pytest.raises(EvaluationError, match="compared with the record"):
            assert Map({"a": 1}) != R(1)


class TestLazySets:
    class R(msgspec.Struct, frozen=True):
        a: int
        b: bool

    @pytest.mark.parametrize(
        "lazy",
        [Powerset({1, 2, 3}), Functions({1, 2}, {3, 4}), Functions(set(), {1}), Records(R, a={1, 2}, b=BOOLEAN)],
        ids=repr,
    )
    def test_a_lazy_set_equals_its_members(self, lazy):
        listed = frozenset(lazy)
        assert lazy == listed
        assert listed == lazy
        assert hash(lazy) == hash(listed)
        assert len(lazy) == len(listed)
        assert all(x in lazy for x in listed)
        assert lazy | {0} == listed | {0}
        assert listed <= lazy
        assert lazy - listed == frozenset()

    def test_membership_does_not_list(self):
        big = Powerset(range(200))
        assert frozenset((1, 2)) in big
        assert frozenset((200,)) not in big
        assert Map({i: i for i in range(60)}) in Functions(range(60), set(range(60)))
        assert (3, 3) in Functions({1, 2}, {3})
