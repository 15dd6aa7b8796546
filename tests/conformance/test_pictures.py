"""A counterexample is told truly: its messages in order, only what changed, for whom the property fails; and pictures do not age."""

from __future__ import annotations

import io
import itertools
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from tidegate.spec import draw, models, museum_page, story
from tidegate.spec.counterexample import explain
from tidegate.spec.diagram import Diagram
from tidegate.spec.diagram_svg import svg
from tidegate.spec.explain import steps
from tidegate.spec.mistake import Mistake
from tidegate.spec.museum import planted, show
from tidegate.spec.paths import root
from tidegate.spec.tlc_output import Result, TraceState
from tidegate.spec.values import parse_state
from tidegate.spec.vocabulary import Vocabulary, items, record

SYSTEM = root() / "tla" / "system" / "System.tla"
START, READY = '[op |-> "START", attempt |-> 1]', '[op |-> "READY", transfer |-> <<1, 1, 2>>, attempt |-> 1]'
SAVE = '[op |-> "save", transfer |-> <<1, 1, 2>>, right |-> TRUE]'


def state(number: int, ev: str, net: str, *, io: str = "{}", mem: str = "<<0, 0, 0>>", phase: str = "free") -> TraceState:
    slots = f'0 :> (<<0, 1>> :> [phase |-> "{phase}", epoch |-> 1, saves |-> {{}}])'
    text = f"/\\ ev = {ev}\n/\\ net = {{{net}}}\n/\\ io = {io}\n/\\ mem = (0 :> (<<0, 1>> :> {mem}))\n/\\ slots = ({slots})"
    return TraceState(number, "Next", parse_state(text))


def deliver(message: str, keep: str = "FALSE") -> str:
    return f'[op |-> "Deliver", message |-> {message}, keep |-> {keep}]'


STORY = [
    state(1, '[op |-> "Init"]', ""),
    state(2, '[op |-> "Registered", attempt |-> 1]', START),
    state(3, deliver(START, "TRUE"), START),
    state(4, '[op |-> "Write", run |-> 1]', f"{START}, {READY}", io=f"{{{SAVE}}}", mem="<<1, 2, 1>>", phase="draining"),
    state(5, f'[op |-> "Lose", message |-> {READY}]', START, io=f"{{{SAVE}}}", mem="<<1, 2, 1>>", phase="draining"),
    state(6, deliver(START), "", io=f"{{{SAVE}}}", mem="<<1, 2, 1>>", phase="draining"),
    state(7, '[op |-> "ResendReady", transfer |-> <<1, 1, 2>>]', READY, io=f"{{{SAVE}}}", mem="<<1, 2, 1>>", phase="draining"),
]
TOLD = [
    ("START attempt 1", "decode", "prefill", 0, 1, False, False),
    ("START attempt 1", "decode", "prefill", 1, 4, False, True),
    ("READY 1·1·2", "prefill", "decode", 2, 3, True, False),
    ("READY 1·1·2", "prefill", "decode", 5, None, False, False),
]


@pytest.fixture(scope="module")
def words() -> Vocabulary:
    return Vocabulary(SYSTEM)


def messages(diagram: Diagram) -> list[tuple[object, ...]]:
    return [(a.label, a.source, a.target, a.sent, a.got, a.lost, a.copy) for a in diagram.arrows]


def test_a_diagram_has_exactly_the_messages_of_its_behaviour(words: Vocabulary) -> None:
    assert messages(story.tell(STORY, words, "a story")) == TOLD


def test_a_teller_that_forgets_the_second_copy_is_noticed(words: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a message that the network keeps is taken for delivered."""
    real = story._Net._taken
    monkeypatch.setattr(story._Net, "_taken", lambda net, number, event, message, stays: real(net, number, event, message, False))
    assert messages(story.tell(STORY, words, "a story")) != TOLD


def test_copies_are_bars_and_contents_bands(words: Vocabulary) -> None:
    told = story.tell(STORY, words, "a story")
    assert [(b.line, b.label, b.begin, b.end) for b in told.bars] == [("pool", "save 1·1·2", 2, None)]
    assert [(b.line, b.label, b.begin, b.end) for b in told.bands] == [("slot 0", "run 1 layer 2\nchunk 1", 2, None)]
    assert [line.key for line in told.lines] == ["decode", "network", "prefill", "slot 0", "pool"]


def test_only_what_changed_is_listed(words: Vocabulary) -> None:
    table = steps(STORY, words)
    assert table[0].changes == []
    assert table[3].changes == [
        "PhysicalBuffer slot 0: phase: free → draining", "io: + save 1·1·2", "mem slot 0: 0·0·0 → 1·2·1", "net: + READY 1·1·2",
    ]  # fmt: skip
    assert table[4].changes == ["net: - READY 1·1·2"]
    assert "epoch" not in str(table)


def test_several_ranks_have_lifelines_and_slots_of_their_own(words: Vocabulary) -> None:
    """A group of two: names of four parts, memory by rank and lane."""
    mem = "(0 :> (<<0, 1>> :> <<0, 0, 0>>) @@ 1 :> (<<0, 1>> :> {}))"
    ready = '[op |-> "READY", transfer |-> <<1, 1, 2, 1>>, attempt |-> 1]'

    def ranked(number: int, ev: str, net: str, held: str) -> TraceState:
        return TraceState(number, "Next", parse_state(f"/\\ ev = {ev}\n/\\ net = {{{net}}}\n/\\ io = {{}}\n/\\ mem = {mem.format(held)}"))

    trace = [
        ranked(1, '[op |-> "Init"]', START, "<<0, 0, 0>>"),
        ranked(2, '[op |-> "Write", run |-> 1, member |-> 1]', f"{START}, {ready}", "<<1, 2, 1>>"),
        ranked(3, '[op |-> "LayerDone", transfer |-> <<1, 1, 2, 0>>]', f"{START}, {ready}", "<<1, 2, 1>>"),
        ranked(4, deliver(ready), START, "<<1, 2, 1>>"),
    ]
    told = story.tell(trace, words, "a group")
    assert [line.key for line in told.lines] == ["decode", "network", "prefill 0", "prefill 1", "slot 0.0", "slot 1.0"]
    assert messages(told) == [("READY 1·1·2·1", "prefill 1", "decode", 0, 2, False, False)]
    assert [(b.line, b.begin) for b in told.bands] == [("slot 1.0", 0)]
    assert ET.fromstring(svg(told)).tag.endswith("svg")


def test_the_lasso_is_drawn(words: Vocabulary) -> None:
    assert "and nothing happens any more" in svg(story.tell(STORY, words, "a story", 0))
    assert story.tell(STORY, words, "a story", 3).loop == 2
    assert "for ever" in svg(story.tell(STORY, words, "a story", 3))


# ---- what TLC really finds -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def violated() -> tuple[Result, Path]:
    """The shortest of the museum's counterexamples."""
    bug = next(bug for bug in planted() if bug.property == "NoLeak")
    return show(bug), root() / "tla" / "models" / f"{bug.configuration}.cfg"


def test_a_counterexample_is_told_with_its_names(violated: tuple[Result, Path], words: Vocabulary) -> None:
    result, config = violated
    shown = explain(result, SYSTEM, config.read_text(), title="a leak")
    says = "the rule that when nothing is under way, nothing is held"
    assert re.search(rf"^Step \d+, .*, breaks NoLeak for slot 0, {says}\.$", shown.sentence)
    assert shown.diagram is not None
    events = [record(one.variables["ev"]) or {} for one in result.trace[1:]]
    assert [row.op for row in shown.diagram.rows] == [e["op"] for e in events]
    taken = [a for a in shown.diagram.arrows if a.label and a.got is not None]
    assert len(taken) == sum(e["op"] in ("Deliver", "Lose") for e in events)


def test_each_property_says_for_whom_it_fails(words: Vocabulary) -> None:
    """A property of this model that nobody can explain has no comment: its sentence would be empty."""
    named = {bug.property for bug in planted()}
    assert [name for name in sorted(named) if not words.comment(name)] == []


def test_check_tells_what_it_did_not_expect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, violated: tuple[Result, Path]) -> None:
    """Table, sentence and picture come without being asked for where a promise is broken."""
    model = models.Model("broken", SYSTEM, violated[1])
    monkeypatch.setattr(models, "read_manifest", lambda path, tla: [model])
    monkeypatch.setattr(models, "judge", lambda one, on_line=None: models.Outcome(one, 0.0, violated[0]))
    out = io.StringIO()
    assert not models.run([], manifest=tmp_path, console=Console(file=out, width=200), pictures=tmp_path)
    assert "breaks NoLeak for slot 0" in out.getvalue()
    assert "PrefillRun run 1: attempt: 0 → 1" in out.getvalue()
    assert f"drawn: {tmp_path / 'broken.svg'}" in out.getvalue()
    assert ET.parse(tmp_path / "broken.svg").getroot().tag.endswith("svg")


# ---- the picture -----------------------------------------------------------------------------------------------------------


def labels(text: str) -> list[tuple[float, float, float, float, str]]:
    """left, top, right, bottom of every text that stands level; as wide as a wide font makes it."""
    out = []
    for node in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text"):
        if "transform" in node.attrib:
            continue
        parts = [part for part in node.iter() if not part.tag.endswith("title")]
        words = "".join(text for part in parts for text in [part.text or "", *(child.tail or "" for child in part)])
        small = node.get("class", "") in ("s", "m", "s n")
        width, height = len(words) * (5.6 if small else 6.4), 8 if small else 10
        x, y = float(node.attrib["x"]), float(node.attrib["y"])
        left = {"start": x, "middle": x - width / 2, "end": x - width}[node.get("text-anchor", "start")]
        out.append((left, y - height, left + width, y, words))
    return out


@pytest.mark.parametrize("which", ["story", "counterexample"])
def test_no_two_labels_meet(which: str, words: Vocabulary, violated: tuple[Result, Path]) -> None:
    text = svg(story.tell(STORY if which == "story" else violated[0].trace, words, "title"))
    for a, b in itertools.combinations(labels(text), 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a[4], b[4])


def test_the_same_diagram_is_the_same_text(words: Vocabulary) -> None:
    assert svg(story.tell(STORY, words, "a story")) == svg(story.tell(STORY, words, "a story"))


def test_names_come_from_the_source(words: Vocabulary) -> None:
    key = parse_state("k = <<1, 2, 3, 0>>")["k"]
    assert len(items(key) or []) == 4
    assert words.named(words.words("Transfers"), key) == "run 1 chunk 2 layer 3"
    assert words.machine("transfers") == "Transfer"
    assert words.machine("mem") == ""


# ---- committed pictures ----------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place that looks like this checkout, with drawings of its own."""
    for name in ("tla", "protocol", "spec", "engine"):
        (tmp_path / name).symlink_to(root() / name)
    shutil.copytree(root() / "docs", tmp_path / "docs")
    for module in (draw, museum_page):
        monkeypatch.setattr(module, "root", lambda: tmp_path)
    return tmp_path


def test_a_tampered_missing_or_left_over_picture_is_stale(checkout: Path) -> None:
    assert draw.check() == []
    path = checkout / "docs" / "machines" / "physical_buffer.svg"
    path.write_text(path.read_text().replace("Release", "Relaese"))
    assert draw.check() == ["docs/machines/physical_buffer.svg"]
    path.rename(path.with_name("other.svg"))
    assert draw.check() == ["docs/machines/physical_buffer.svg", "docs/machines/other.svg"]


def test_a_tampered_picture_of_the_museum_is_stale(checkout: Path) -> None:
    path = next((checkout / "docs" / "museum").glob("*.svg"))
    text = path.read_text()
    for altered in (text.replace("READY", "READ", 1), text.replace("source ", "source 0", 1)):
        path.write_text(altered)
        assert altered != text
        assert draw.check() == [str(path.relative_to(checkout))]


def test_a_trace_of_another_model_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a guard changes in the model; comments may change as they like."""
    exhibit = museum_page._drawable()[0]
    place = museum_page.setting(exhibit)
    now = museum_page._key(exhibit, place)
    real = Path.read_text
    edits = {"free": ("\"free\"", "\"fere\""), "comment": ("EXTENDS", "\\* a remark\nEXTENDS")}
    keys = {}
    for name, (old, new) in edits.items():
        monkeypatch.setattr(Path, "read_text", lambda self, *a, old=old, new=new, **k: real(self, *a, **k).replace(old, new)
                            if self.suffix == ".tla" else real(self, *a, **k))  # fmt: skip
        keys[name] = museum_page._key(exhibit, place)
    assert keys["comment"] == now
    assert keys["free"] != now


def test_a_kept_behaviour_is_the_one_that_tlc_found(violated: tuple[Result, Path]) -> None:
    result = violated[0]
    mistake = Mistake(2, result.trace[1].variables, [result.trace[1].variables["ev"]])
    again, who, made = museum_page._restored(museum_page._stored(result, [], mistake, "key"))
    assert [one.variables for one in again.trace] == [one.variables for one in result.trace]
    assert (again.violated, again.loop, who, made) == (result.violated, result.loop, [], mistake)


def test_a_picture_of_a_machine_shows_every_move() -> None:
    for source, target in ((s, t) for t, s in draw.machines()):
        module = draw._module(target)
        moves = draw.phase_edges(draw.reachable(module, draw._config(source)), module)
        text = draw.picture(source, target)
        shown = re.findall(r">([^<>]+)</text>", text)
        events = {event.strip(",") for line in shown for event in line.split()}
        assert {op for ops in moves.values() for op in ops} <= events, source.stem
        assert text.count('marker-end="url(#a)"') == 1 + sum(a != b for a, b in moves), source.stem
