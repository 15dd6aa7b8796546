"""An entry of the museum says what went wrong, at which step, and what prevents it: computed, not typed."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace

import pytest

from tidegate.spec import museum_page, story_columns
from tidegate.spec.culprit import _claims
from tidegate.spec.diagram import Arrow, Diagram, Lifeline, Row
from tidegate.spec.diagram_legend import legend
from tidegate.spec.diagram_svg import RED, svg
from tidegate.spec.errors import SpecError
from tidegate.spec.mistake import find_mistake
from tidegate.spec.mistake_text import instead
from tidegate.spec.museum import definition, exhibits, found, plant_all
from tidegate.spec.museum_diff import guard_diff
from tidegate.spec.museum_entry import Behaviour, entry, numbered, plainly
from tidegate.spec.museum_judge import setting
from tidegate.spec.paths import root
from tidegate.spec.vocabulary import Vocabulary, record

BY_NAME = {e.name: e for e in exhibits()}
DRAWN = [e for e in BY_NAME.values() if not e.probe]
PROBED = [e for e in BY_NAME.values() if e.probe]
FOUND = found()
SYSTEM = root() / "tla" / "system" / "System.tla"


def kept(name):
    """(result, culprits, mistake) as they are kept."""
    return museum_page._restored(json.loads((museum_page._traces() / f"{name}.json").read_text()))


def behaviour(name) -> Behaviour:
    return museum_page._behaviour(BY_NAME[name])


# ---- the mistake -----------------------------------------------------------------------------------------------------------


def asked():
    """One that our model takes otherwise, one that it refuses, one where a step is missing; in the long run all."""
    some = ("offered-before-registered", "hook-not-run", "lost-word-never-repeated")
    return [e.name for e in DRAWN] if os.environ.get("TIDEGATE_LONG") else some


@pytest.mark.parametrize("name", asked())
def test_the_mistake_is_where_the_behaviour_leaves_our_model(name):
    result, _, mistake = kept(name)
    place = setting(BY_NAME[name])
    assert find_mistake(place.model.module, place.text, result, plant_all(BY_NAME[name].changes)) == mistake




def test_a_behaviour_that_leaves_earlier_is_noticed():
    """Planted: the gate of slot 0 is said to be draining from the first step on, which no step of ours brings about."""
    result, _, mistake = kept("freed-under-a-save")
    held = result.trace[mistake.step - 1].variables["slots"]
    result.trace[1].variables["slots"] = held
    place = setting(BY_NAME["freed-under-a-save"])
    assert find_mistake(place.model.module, place.text, result, {}).step == 1 < mistake.step


@pytest.mark.parametrize("e", DRAWN, ids=lambda e: e.name)
def test_mistake_and_harm_are_steps_of_the_behaviour(e):
    result, _, mistake = kept(e.name)
    told = behaviour(e.name)
    assert 0 <= mistake.step <= len(result.trace) - 1 == len(told.steps)
    assert bool(mistake.step) or result.loop == 0, "without a step that is wrong, it ends where one is missing"
    assert told.instead or e.name == "no-deadline-of-its-own"
    assert told.shown.diagram.mistake == (mistake.step - 1 if mistake.step else len(told.steps))


def test_what_our_model_has_instead_is_said():
    def said(name):
        e, (result, _, mistake) = BY_NAME[name], kept(name)
        return instead(mistake, result.trace, Vocabulary(setting(e).model.module, plant_all(e.changes)))

    assert said("remote-reader-forgotten") == ["in our model the gate of slot 0 is draining, not free"]
    assert said("missing-chunk-skipped") == ["our model refuses this step"]
    assert said("failure-not-told") == ["our model sends RUN_FAILED run 1 here"]
    assert said("two-names-for-one-request") == ["our model sends READY 1·1·1 with attempt 1, not 0"]
    assert said("draft-layer-not-counted") == ["in our model attempt 1 has 2 among its layers"]
    assert said("evicted-and-waited-for") == ["our model still offers Miss (run 1)"]


# ---- texts -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("e", BY_NAME.values(), ids=lambda e: e.name)
def test_an_entry_says_what_stands_for_what_and_what_the_guard_means(e):
    assert all(len(text) > 15 for text in (e.stands, e.rule, e.means))
    assert bool(e.ours) != bool(e.unreplayed)
    text = entry(e, behaviour(e.name) if not e.probe else None, FOUND[e.name])
    words = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert not re.search(r"[{]\w|State\(|TransferId|frozenset|KeyError [T\d]|is not offered", words), words


@pytest.mark.parametrize("e", PROBED, ids=lambda e: e.name)
def test_a_drawing_of_bytes_has_the_numbers_that_the_probe_saw(e):
    shown = e.drawing.replace(",", "") + " ".join((e.stands, e.planted)).replace(",", "")
    assert all(number in shown for number in re.findall(r"-?\d+", FOUND[e.name].harm.replace("..", " ")))


def test_a_number_is_that_of_the_step():
    told = behaviour("missing-chunk-skipped")
    assert numbered("{Evict} before {mistake} before {harm}", told) == "step 8 before step 12 before step 14"
    with pytest.raises(SpecError, match=r"\{Revoke\} is no step of this behaviour: Admit"):
        numbered("{Revoke}", told)
    with pytest.raises(SpecError, match=r"\{mistake\} is no step"):
        numbered("{mistake}", behaviour("lost-word-never-repeated"))


def test_what_the_sessions_did_is_said_plainly():
    assert plainly("hang: READY ((1, 1, 1, 0), 0, 1, True) is in flight") == "it hangs: READY 1·1·1 is said again and again"
    assert plainly("the session dies in ReadEnd((1, 1, 1, 0), 1, ok): KeyError 1") == "the session dies in ReadEnd with a KeyError"
    assert plainly("object (2, 1) holds every layer") == "object 2·1 holds every layer"


def test_the_guide_names_every_step_and_message():
    guide = (root() / "tla" / "museum" / "guide.md").read_text()
    events = [record(one.variables["ev"]) or {} for e in DRAWN for one in kept(e.name)[0].trace[1:]]
    names = {e["op"] for e in events} | {(record(e["message"]) or {})["op"] for e in events if "message" in e}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", guide)] == []


# ---- the guard -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("e", BY_NAME.values(), ids=lambda e: e.name)
def test_a_diff_shows_our_lines_and_the_planted_ones(e):
    lines = guard_diff(e)
    files = [*museum_page.modules().values(), *root().glob("engine/*.py"), *root().glob("kernels/*.py")]
    ours = "\n".join(path.read_text() for path in files)
    theirs = "\n".join(plant_all(e.code if e.probe else e.changes).values())
    changed = [line for line in lines if line[0] in "-+"]
    assert changed
    assert all(line[1:].strip() in (ours if line[0] == "-" else theirs) for line in changed)
    assert not any("UNCHANGED <<" in line and line[0] == " " and len(lines) > 8 for line in lines)
    assert e.conjunct.split("\n")[0].strip() in definition(e.guard)
    assert len(lines) <= 12


def test_a_guard_that_is_not_changed_shows_its_decisive_line():
    lines = guard_diff(BY_NAME["own-copy-believed"])
    assert lines[:3] == ["  OnCommitted(m, keep) ==", "      /\\ IF RD!CanCommit(reads[t])", "  ReadEnd(t, a, how) =="]
    assert guard_diff(BY_NAME["freed-under-a-save"]) == [
        '  CanRelease(s) == /\\ s.phase = "draining"', "                   /\\ s.owner = NoRun", "                   /\\ s.attending = {}",
        "-                  /\\ s.saves = {}", "                   /\\ s.transfers = {}",
    ]  # fmt: skip


def test_of_many_changed_lines_the_decisive_one_is_shown():
    lines = guard_diff(BY_NAME["nothing-to-send-so-nothing-said"])
    assert [line[0] for line in lines] == [" ", "-", "+", " "]
    assert "READY(t, p.attempt)" in lines[1]


# ---- the pictures ----------------------------------------------------------------------------------------------------------


def bands(name, line):
    return [band.label for band in behaviour(name).shown.diagram.bands if band.line == line]


def test_columns_show_the_harm():
    assert bands("error-taken-for-the-end-of-the-copy", "blocks 1")[-2:] == ["attempt 1\nregistered\nempty", "free"]
    assert bands("failed-save-counts", "object 1·1") == ["writing\nhas 0 of 1", "readable\nhas 0 of 1"]
    assert bands("remote-reader-forgotten", "gate 0")[-3:] == ["shut for\nsave,\nread", "free", "shut for\nread"]
    assert bands("next-in-the-buffer-pays", "run 2") == ["running", "failed"]
    assert bands("own-copy-believed", "blocks 1")[-1] == "attempt 2\nnot registered\nempty"


def test_a_column_that_is_late_is_noticed(monkeypatch):
    """Planted: an object is shown as it was a step before."""
    real = bands("failed-save-counts", "object 1·1")
    each = story_columns._each
    early = {"readable": "writing"}
    monkeypatch.setattr(story_columns, "_each", lambda v: [(k, f | {"phase": early.get(f["phase"], f["phase"])}) for k, f in each(v)])
    assert bands("failed-save-counts", "object 1·1") != real


def test_the_row_of_the_mistake_says_what_ours_would_show():
    assert behaviour("remote-reader-forgotten").shown.diagram.note == "ours: gate 0 shut for read"
    assert behaviour("error-taken-for-the-end-of-the-copy").shows == ["blocks 1 of attempt 1, poisoned, junk in it"]
    assert behaviour("no-deadline-of-its-own").shows == []
    result, _, mistake = kept("remote-reader-forgotten")
    right, wrong = mistake.right, result.trace[mistake.step].variables
    assert story_columns.beside(wrong, wrong, ["gates"]) == [] != story_columns.beside(right, wrong, ["gates"])


def test_a_step_of_the_network_has_its_sign():
    """Planted: a picture whose outside step nobody is seen to take, though its legend has the sign."""
    text = svg(behaviour("no-deadline-of-its-own").shown.diagram)
    unseen = svg(replace(behaviour("no-deadline-of-its-own").shown.diagram, rows=[]))
    assert [part.count('l5 -5l5 5l-5 5z" fill="#fff"') for part in (text, unseen)] == [2, 0], "in its row, and in the legend"


def test_what_is_allowed_is_not_red():
    """Red is the harm alone: a loss, an eviction or a failed read is nobody's mistake."""
    for name in ("lost-word-never-repeated", "missing-chunk-skipped", "error-taken-for-the-end-of-the-copy"):
        text = svg(behaviour(name).shown.diagram)
        rows = [line for line in text.split("\n") if "<tspan" in line]
        assert len(rows) == len(behaviour(name).steps)
        assert not any(RED in line for line in rows)
        assert "the mistake" in text
        assert "the outside world" in text


def test_a_legend_has_the_signs_of_its_picture():
    plain = Diagram("", [Lifeline("decode", "Decode")], [Row("Admit", "", "decode")])
    lost = Diagram("", [], [Row("Lose", "", "network", fault=True)], [Arrow("READY", "a", "b", 0, 0, lost=True)])
    told = ["".join(legend(d, 800, 0)[0]) for d in (plain, lost)]
    assert "lost" not in told[0]
    assert all(text in told[1] for text in ("lost", "the outside world"))
    assert legend(lost, 200, 0)[1] > legend(lost, 2000, 0)[1], "it wraps"


def test_each_part_of_a_property_has_its_own_culprits():
    """Parts that stand one below the other, in brackets that begin on a line of their own."""
    words = Vocabulary(SYSTEM)
    assert [claim.names for claim in _claims(words, "EndsStay")] == [["a"], ["t"], ["m", "r"], ["i"]]
    assert [claim.names for claim in _claims(words, "PoolStays")] == [["o"]]
    assert "the transfer of run 1 chunk 1 layer 1" in behaviour("late-word-after-the-timeout").shown.sentence
