"""Each exhibit of the museum can still be planted, names a guard that is there, and says what a reader needs; one of each theme is
judged anew, and an exhibit that shows nothing is noticed.

All are judged anew by `tidegate check --museum` and `tidegate check --full` (in `make test-long`).
"""

import re
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from tidegate.spec import museum_judge, museum_report
from tidegate.spec.errors import SpecError
from tidegate.spec.museum import Change, definition, exhibits, found, plant_all
from tidegate.spec.museum_judge import judge, sessions, setting
from tidegate.spec.variant import configurations

ALL = exhibits()
FOUND = found()
BY_NAME = {e.name: e for e in ALL}
REFERENCE = re.compile(r"[\w.-]+/[\w.-]+(#\d+|@[0-9a-f]{10})")
ROWS = {"IndexerCover", "ResidencyExact", "HostFresh", "AddressBounds"}  # I9 to I12, of which the model says nothing
POOL = {"NoneHalfWritten", "FillReadsStored"}  # of tla/pool/PrefixReuse.tla: the sessions know no second process
CHECKED = {name for c in configurations() for name in c.properties} | ROWS | POOL
MODEL = [e for e in ALL if not e.probe]
PROBED = [e for e in ALL if e.probe]


def changed(name, **fields):
    return msgspec.structs.replace(BY_NAME[name], **fields)


def sample():
    """The exhibit of each theme that TLC shows soonest."""
    soonest = sorted((e for e in MODEL if not e.unreplayed), key=lambda e: (FOUND[e.name].states, e.name))
    return sorted({e.theme: e for e in reversed(soonest)}.values(), key=lambda e: e.theme)


def test_there_are_at_least_thirty_and_each_has_a_name_of_its_own():
    assert len(ALL) == len(BY_NAME)
    assert len(MODEL) >= 30
    assert {e.property for e in PROBED} == ROWS | POOL
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)+", e.name) for e in ALL)
    assert list(FOUND) == list(BY_NAME), "run `tidegate check --museum --write`"


@pytest.mark.parametrize("e", ALL, ids=lambda e: e.name)
def test_a_reader_is_told_everything(e):
    assert e.references
    assert all(REFERENCE.fullmatch(r) for r in e.references), e.references
    assert e.basis in ("reported", "code")
    assert all(len(text) > 20 for text in (e.title, e.saw, e.how, e.planted, e.prevents))
    assert e.property in CHECKED
    assert set(e.aside) <= CHECKED
    assert e.conjunct in definition(e.guard)


@pytest.mark.parametrize("e", MODEL, ids=lambda e: e.name)
def test_every_exhibit_can_still_be_planted(e):
    assert all(change.new in text for change in e.changes for text in plant_all([change]).values())
    assert len(plant_all(e.changes)) <= len(e.changes)
    assert all(file.startswith("protocol/") for file in plant_all(e.code))
    assert setting(e).bounds
    assert FOUND[e.name].property == e.property
    assert bool(FOUND[e.name].harm) != bool(e.unreplayed)


@pytest.mark.parametrize("e", sample(), ids=lambda e: e.name)
def test_the_fault_fails_on_its_property_and_harms_the_sessions(e):
    judged = judge(e)
    assert not judged.wrong
    assert museum_report.difference(judged, FOUND[e.name]) == ""


@pytest.mark.parametrize("e", PROBED, ids=lambda e: e.name)
def test_every_fault_of_rows_can_still_be_planted(e):
    assert all(change.file and change.new in text for change in e.code for text in plant_all([change]).values())
    assert not e.changes
    assert FOUND[e.name].harm


def test_a_probe_sees_its_fault_and_nothing_without_it():
    e = BY_NAME["address-in-thirty-two-bits"]
    assert museum_report.difference(judge(e), FOUND[e.name]) == ""


def test_a_probe_that_fails_is_not_taken_for_one_that_sees(monkeypatch):
    assert judge(changed("layers-share-an-offset", probe="no_such_probe")).wrong.startswith("no_such_probe fails without the fault")
    monkeypatch.setattr(museum_judge, "probe", lambda e, plain=False: "")
    assert judge(BY_NAME["layers-share-an-offset"]).wrong == "layers_have_places_of_their_own does not see the fault"


def test_a_fault_that_is_none_is_noticed():
    e = changed("freed-under-a-save", changes=[Change("\\* The gate opens.\n", "\\* The gate opens wide.\n")])
    assert judge(e).wrong == "TLC names nothing, not ReuseSafe"


def test_another_property_than_the_promised_one_is_noticed():
    assert judge(changed("remote-reader-forgotten", aside=[])).wrong == "TLC names GateBeforePublish, not ReuseSafe"


def test_a_fault_outside_of_the_sessions_is_refused():
    e = changed("freed-under-a-save", code=[Change("PAGE = 4096", "PAGE = 8192", file="engine/slot_layout.py")])
    assert judge(e).wrong == "freed-under-a-save changes engine/slot_layout.py: only the sessions, in protocol/, can be replayed"


def test_a_fault_in_a_part_of_the_sessions_is_theirs():
    """session.py is no session itself: both are made anew over it."""
    e = changed("freed-under-a-save", code=[Change("_STORY = 16", "_STORY = 8", file="protocol/")])
    with sessions(e) as (prefill, decode):
        mine = prefill.__mro__[-2]
        assert decode.__mro__[-2] is mine
        assert mine is not museum_judge.PrefillSession.__mro__[-2]


def test_a_fault_that_the_sessions_do_not_have_is_noticed():
    assert "no harm" in judge(changed("failed-save-counts", code=[])).wrong


def test_a_schedule_that_harms_our_own_sessions_is_noticed(monkeypatch):
    """As it would if the guard were missing here too: sessions with the fault stand in for our own."""
    e = BY_NAME["error-taken-for-the-end-of-the-copy"]
    with sessions(e) as classes:
        theirs = dict(zip(("prefill", "decode"), classes, strict=True))
    real = museum_judge.replay
    monkeypatch.setattr(museum_judge, "replay", lambda *args, **known: real(*args, **theirs | known))
    assert "may still land" in judge(e).wrong


def test_a_configuration_that_fails_by_itself_is_noticed():
    """With a message lost and no deadline an attempt may wait for ever without any fault of ours."""
    e = changed("one-layer-too-many", constants={"MaxFail": "1", "MaxAbort": "0"})
    assert judge(e, control=True).wrong == "EveryAttemptEnds breaks there without the fault"


@pytest.mark.parametrize(
    ("old", "message"), [("no such text", "no module"), ("UNCHANGED", "times"), ('CanFail(s) == s.phase = "held"', "")]
)
def test_a_text_is_planted_only_where_it_is_alone(old, message):
    if not message:
        assert list(plant_all([Change(old, "CanFail(s) == TRUE")])) == ["Transfer"]
        return
    with pytest.raises(SpecError, match=message):
        plant_all([Change(old, "x")])


def test_what_an_exhibit_names_must_be_there():
    with pytest.raises(SpecError, match="defined 0 times"):
        definition("PhysicalBuffer!CanFly")
    odd = setting(changed("freed-under-a-save", constants={"MaxFun": "1"}))
    with pytest.raises(SpecError, match="gives no MaxFun"):
        odd.text  # noqa: B018
    with pytest.raises(SpecError, match="no exhibit named nobody"):
        exhibits(["nobody"])
    with pytest.raises(SpecError, match="no configuration of the manifest"):
        setting(changed("freed-under-a-save", configuration="reach-miss"))


def test_a_result_is_written_read_and_compared(tmp_path):
    rows = [FOUND["freed-under-a-save"], msgspec.structs.replace(FOUND["hook-not-run"], harm='says "so"')]
    path = museum_report.write(rows, tmp_path / "found.toml")
    assert list(found(path).values()) == rows or list(found(path).values()) == rows[::-1]
    judged = museum_report.Judged(BY_NAME["hook-not-run"], rows[1])
    assert "harm" in museum_report.difference(judged, FOUND["hook-not-run"])
    assert museum_report.difference(judged, None).startswith("hook-not-run is new")
    assert museum_report.difference(judged, rows[1]) == ""


def test_the_report_names_what_is_wrong(monkeypatch):
    out = StringIO()
    monkeypatch.setattr(museum_report, "exhibits", lambda names=(): [changed("freed-under-a-save", property="NoLeak")])
    assert not museum_report.run(["freed-under-a-save"], console=Console(file=out, width=200))
    assert "freed-under-a-save: TLC names ReuseSafe, not NoLeak" in out.getvalue()
