"""What lies outside the subset is refused with file:line:column, and what TLC cannot evaluate raises."""

import re
from pathlib import Path

import pytest
from conformance.corpus_tools import generated

from tidegate.protocol._runtime import EvaluationError
from tidegate.spec import tlc
from tidegate.spec.emit import python_source
from tidegate.spec.errors import Refused, SpecError
from tidegate.spec.sany import load

HERE = Path(__file__).parent
REFUSED = sorted((HERE / "refused").glob("*.tla"))
LIBRARY = [HERE / "refused" / "lib"]


@pytest.mark.parametrize("path", REFUSED, ids=lambda p: p.stem)
def test_refused_with_its_place(path):
    expected = re.search(r"^\\\* refused at (\S+): (.*)$", path.read_text(), re.MULTILINE)
    with pytest.raises(Refused) as caught:
        python_source(load(path, LIBRARY), path.name)
    assert str(caught.value).startswith(f"{path.name}:{expected[1]}: {expected[2]} is outside the translated subset")


def test_a_module_that_does_not_parse_is_refused_with_sanys_words(tmp_path):
    path = tmp_path / "Broken.tla"
    path.write_text("---- MODULE Broken ----\nF == G(1)\n====\n")
    with pytest.raises(SpecError, match=r"(?s)Broken.tla is no valid.*line 2, col 6.*Unknown operator: `G'"):
        load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"Absent.tla does not exist"):
        load(tmp_path / "Absent.tla")


FAILING = load(HERE / "failing" / "Failing.tla")


@pytest.mark.parametrize("name", [d.name for d in FAILING.defs if not d.params])
def test_what_tlc_cannot_evaluate_raises(name, tmp_path):
    (tmp_path / "Root.tla").write_text(f"---- MODULE Root ----\nEXTENDS Failing\nASSUME {name} = {name}\n====\n")
    (tmp_path / "Root.cfg").write_text("")
    with pytest.raises(SpecError, match="TLC stopped with code"):
        tlc.run_tlc(tmp_path / "Root.tla", tmp_path / "Root.cfg", library=[HERE / "failing"], jvm=tlc.LIGHT)
    with pytest.raises(EvaluationError):
        getattr(generated(FAILING), name)()


def test_choose_among_several_raises_although_tlc_picks_one(tmp_path):
    path = tmp_path / "Choose.tla"
    path.write_text("---- MODULE Choose ----\nF == CHOOSE x \\in {1, 2} : TRUE\n====\n")
    with pytest.raises(EvaluationError, match="CHOOSE has 2 candidates"):
        generated(load(path)).F()
