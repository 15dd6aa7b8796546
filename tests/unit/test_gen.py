"""`tidegate gen`: what is stale, and Python that is right whatever the names are."""

import shutil

import pytest

from tidegate.protocol._runtime import EMPTY
from tidegate.protocol.machines import physical_buffer, prefill_run, read, transfer
from tidegate.spec import gen
from tidegate.spec.emit import docstring, snake
from tidegate.spec.errors import SpecError
from tidegate.spec.paths import root


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tla" / "machines").mkdir(parents=True)
    (tmp_path / "protocol" / "machines").mkdir(parents=True)
    shutil.copy(root() / "tests" / "conformance" / "gate" / "Gate.tla", tmp_path / "tla" / "machines" / "SmallGate.tla")
    source = tmp_path / "tla" / "machines" / "SmallGate.tla"
    source.write_text(source.read_text().replace("MODULE Gate", "MODULE SmallGate"))
    (tmp_path / "protocol" / "machines" / "__init__.py").write_text("")
    return tmp_path


def test_generate_then_check(tree):
    target = tree / "protocol" / "machines" / "small_gate.py"
    assert gen.check(tree) == ["protocol/machines/small_gate.py: missing, tla/machines/SmallGate.tla was never compiled"]
    assert gen.generate(tree) == ["wrote protocol/machines/small_gate.py"]
    assert target.read_text().startswith(
        '"""Generated from tla/machines/SmallGate.tla by `tidegate gen`; do not edit.\n\nA small gate,'
    )
    assert gen.check(tree) == []
    assert gen.generate(tree) == []


def test_a_changed_file_is_stale(tree):
    gen.generate(tree)
    target = tree / "protocol" / "machines" / "small_gate.py"
    target.write_text(target.read_text().replace("not in", "in"))
    assert gen.check(tree) == ["protocol/machines/small_gate.py: differs from what tla/machines/SmallGate.tla compiles to"]


def test_a_changed_source_is_stale_even_by_a_comment(tree):
    gen.generate(tree)
    source = tree / "tla" / "machines" / "SmallGate.tla"
    source.write_text(source.read_text() + "\n")
    assert "differs" in gen.check(tree)[0]


def test_a_file_without_a_source_is_stale_and_removed(tree):
    gen.generate(tree)
    old = tree / "protocol" / "machines" / "old.py"
    old.write_text(gen.MARK + 'tla/machines/Old.tla"""\n')
    assert gen.check(tree) == ["protocol/machines/old.py: no source in tla/machines"]
    assert gen.generate(tree) == ["removed protocol/machines/old.py"]


def test_a_file_that_was_not_generated_is_never_removed(tree):
    hand = tree / "protocol" / "machines" / "hand.py"
    hand.write_text("x = 1\n")
    with pytest.raises(SpecError, match=r"hand\.py was not generated"):
        gen.generate(tree)
    assert hand.exists()


def test_output_does_not_depend_on_the_run(tree):
    source = tree / "tla" / "machines" / "SmallGate.tla"
    assert gen.compile_file(source) == gen.compile_file(source)


@pytest.mark.parametrize(
    ("name", "want"), [("PhysicalBuffer", "physical_buffer"), ("PBGate", "pb_gate"), ("Read", "read"), ("A_b", "a_b")]
)
def test_snake(name, want):
    assert snake(name) == want


@pytest.mark.parametrize("text", ['a"', 'a"""b', "back\\slash", "ends in \\", "two\nlines", 'q"\nr"'])
def test_docstrings_say_exactly_the_text(text):
    module = gen.load_source("m", "\n".join(docstring(text, "")))
    assert module.__doc__.rstrip("\n") == text


def test_what_takes_nothing_is_worked_out_once():
    """A session asks for such values several times a layer."""
    for machine in (physical_buffer, prefill_run, read, transfer):
        assert machine.Initial() is machine.Initial()
    assert physical_buffer.Initial().saves is EMPTY
    assert prefill_run.Forgotten() is prefill_run.Forgotten()
