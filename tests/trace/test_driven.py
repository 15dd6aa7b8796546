"""`tidegate trace` on runs of the real sessions that a test drives in one thread: every fault is accepted, every tampering and
every planted bug is refused, and the reason is the one that is true."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from scenarios import SCENARIOS, advertised, revokes
from scripted import CHUNK, Pair, good, nonce
from tampering import FORM, TAMPERED, P, delivery, early_claim, retold

from tidegate.engine import tracing
from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.machines import physical_buffer as PB
from tidegate.protocol.machines import transfer as TR
from tidegate.protocol.messages import ReadDone
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec import trace, trace_judge, trace_lines
from tidegate.spec.trace import check, check_all
from tidegate.spec.trace_lines import TraceRefused, Unreadable


def test_both_sides_speak_of_one_format():
    assert tracing.FORMAT == trace_lines.FORMAT


# ---- what may happen is accepted ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged(tmp_path_factory, honest):
    """The verdict on every scenario and every tampered run, all from one JVM."""
    top, folders, jvms = tmp_path_factory.mktemp("judged"), {}, []
    for name, scenario in SCENARIOS.items():
        pair = Pair(top / name)
        scenario(pair)
        folders[name] = pair.close()
    folders |= {name: retold(honest, top / name, role, change) for name, (role, change, _) in TAMPERED.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_judge, "run", lambda cases, told, real=trace_judge.run: jvms.append(len(cases)) or real(cases, told))
        verdicts = dict(zip(folders, check_all(list(folders.values())), strict=True))
    return verdicts, jvms


def test_one_jvm_judges_many_traces(judged):
    """All but those of another form; what Python refuses is only shown its state there."""
    verdicts, jvms = judged
    assert len(verdicts) == len(SCENARIOS) + len(TAMPERED)
    assert len(jvms) == 1
    assert max(jvms) > 25


@pytest.mark.parametrize("name", SCENARIOS)
def test_faults_are_accepted(name, judged):
    accepted = judged[0][name]
    if isinstance(accepted, Exception):
        raise accepted
    assert accepted.attempts >= 1
    assert accepted.physical["write_begin"] >= 1


def test_a_revoked_read_is_accepted(tmp_path):
    pair = Pair(tmp_path / "run", lease=True)
    revokes(pair)
    assert check(pair.close()).events["Revoke"] == 1


def test_the_same_run_is_refused_where_prefill_may_not_revoke(tmp_path):
    pair = Pair(tmp_path / "run")
    revokes(pair)
    with pytest.raises(TraceRefused, match=r"what is read is what was computed|may revoke"):
        check(pair.close())


def test_a_long_run_is_judged_whole(tmp_path):
    """1,400 lines over two slots."""
    pair = Pair(tmp_path / "run", layers=9, shared=tuple(range(1, 9)), slots=2)
    for name in ("a", "b"):
        pair.admit(name, 4 * CHUNK)
    accepted = check(pair.settle().close())
    assert sum(accepted.events.values()) + sum(accepted.physical.values()) > 1_300


# ---- several requests in one step -------------------------------------------------------------------------------------------


def side_by_side(folder, kind=Pair):
    """Two runs, in two lanes of the same slots: both have taken the first one before either is done with it."""
    pair = kind(folder, lanes=2)
    for name in ("a", "b"):
        advertised(pair, name, 2)
    for run in [*pair.prefill.runs] * 2:
        pair.step(run)
    return pair.settle().close()


def test_runs_of_two_lanes_are_accepted(tmp_path):
    accepted = check(side_by_side(tmp_path / "run"))
    assert (accepted.runs, accepted.steps) == (2, 12)
    lines = [json.loads(line) for line in (tmp_path / "run" / "prefill-0.jsonl").read_text().splitlines()]
    claims = [line["run"] for line in lines if line.get("op") == "Claim"]
    assert claims[:2] == [nonce("run 000"), nonce("run 001")]


def one_lane(lines):
    lines[delivery(lines, "START", 1)]["lane"] = 1
    return lines


def test_two_runs_in_one_lane_at_once_are_refused(tmp_path):
    folder = side_by_side(tmp_path / "run")
    with pytest.raises(TraceRefused, match="CanClaim: the gate of the slot is open"):
        check(retold(folder, tmp_path / "tampered", P, one_lane))


class OneBlockList(Pair):
    """Gives both lanes the same blocks."""

    def range_of(self, chunk, slot, run=0):
        return super().range_of(chunk, slot)


def test_planted_lanes_that_share_their_blocks_are_refused(tmp_path):
    with pytest.raises(TraceRefused, match=r"of lane 2, writes over bytes of lane 1, which .*jsonl:\d+ still uses"):
        check(side_by_side(tmp_path / "run", OneBlockList))


# ---- tampering is refused -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return good(tmp_path_factory.mktemp("honest") / "run")


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_refused_for_its_reason(name, judged):
    verdict, reason = judged[0][name], TAMPERED[name][2]
    assert isinstance(verdict, TraceRefused)
    assert re.search(reason, str(verdict)), str(verdict)
    assert f"/{name}/" in verdict.where


@pytest.mark.parametrize("name", [name for name in TAMPERED if name not in FORM])
def test_a_refusal_says_line_reason_state_and_what_was_possible(name, judged):
    verdict = judged[0][name]
    assert re.search(r"-0\.jsonl:\d+$", verdict.where)
    assert verdict.why
    text = "\n".join(verdict.more)
    assert re.search(r"state before it \(.*\):\n  \w+: ", text)
    assert re.search(r"^enabled was: \w+", text, re.MULTILINE)
    assert re.search(r"^the data path could: \w+", text, re.MULTILINE)


def test_together_or_alone_a_trace_is_judged_alike(judged, honest, tmp_path):
    name = "a torn save"
    with pytest.raises(TraceRefused) as caught:
        check(retold(honest, tmp_path / name, *TAMPERED[name][:2]))
    assert [caught.value.why, *caught.value.more] == [judged[0][name].why, *judged[0][name].more]


def test_a_trace_whose_end_tlc_does_not_tell_is_judged_again(honest, monkeypatch):
    """Planted: TLC falls silent about one of two traces."""
    real, asked = trace_judge.run, []

    def silent(cases, told):
        asked.append(len(cases))
        result = real(cases, told)
        if len(cases) == 2:
            result.printed = result.printed.replace('<<"ENDED", 2, "">>', "")
        return result

    monkeypatch.setattr(trace_judge, "run", silent)
    assert [type(v).__name__ for v in check_all([honest, honest])] == ["Accepted", "Accepted"]
    assert asked == [2, 1]


def test_a_broken_property_is_shown_with_the_state_before_it(honest, monkeypatch, tmp_path):
    """Planted: a rule of the trace is dropped, so only a property of System notices."""
    case, _ = trace._case(retold(honest, tmp_path / "run", P, early_claim))
    line = next(n for n, one in enumerate(case.lines) if one.op == "Claim" and n > 10)
    said = f'<<"BROKEN", 1, "<<{line + 1}, {{\\"ReuseSafe\\"}}, [slot |-> 1]>>">>'
    real = trace_judge.run
    first = []

    def broken(cases, told):
        result = real(cases, told)
        if not first:
            first.append(1)
            result.printed = said
        return result

    monkeypatch.setattr(trace_judge, "run", broken)
    (verdict,) = trace_judge.judge([case], lambda done, lines: None)
    text = str(verdict)
    assert "ReuseSafe of System.tla does not hold: nobody who reads a slot" in text
    assert text.index("state after it") < text.index("state before it") < text.index("enabled was: ")


def test_a_gap_a_broken_line_and_a_missing_file(honest, tmp_path):
    path = retold(honest, tmp_path / "run", "none", lambda lines: lines) / "prefill-0.jsonl"
    raw = path.read_text().splitlines(keepends=True)
    for text, error, reason in (
        (raw[:5] + raw[6:], TraceRefused, ":6: seq is 6, 5 is due"), (raw[:5] + ["{]\n"] + raw[6:], Unreadable, ":6: no JSON object"),
        (raw[:5] + [raw[5].replace('"kind"', '"king"')] + raw[6:], Unreadable, ":6: kind None"),
    ):  # fmt: skip
        path.write_text("".join(text))
        with pytest.raises(error, match=reason):
            check(tmp_path / "run")
    path.unlink()
    with pytest.raises(TraceRefused, match="file of the prefill process is missing"):
        check(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(Unreadable, match="holds no trace: there is no"):
        check(tmp_path / "empty")
    with pytest.raises(Unreadable, match="no directory"):
        check(tmp_path / "nowhere")


def test_a_run_in_which_nothing_came_to_an_end_is_trivial(tmp_path):
    pair = Pair(tmp_path / "run")
    pair.admit("a", CHUNK)
    with pytest.raises(TraceRefused, match="trivial: no attempt was scheduled"):
        check(pair.close())
    with pytest.raises(TraceRefused, match="trivial: no attempt was ever admitted"):
        check(Pair(tmp_path / "idle").close())


def test_a_run_that_stops_in_the_middle_is_refused_at_its_end(tmp_path):
    pair = Pair(tmp_path / "run")
    pair.admit("a", CHUNK)
    pair.settle()
    pair.admit("b", CHUNK)
    pair.do(pair.decode.registered(pair.registering.pop()))
    with pytest.raises(TraceRefused, match="ends too early; false: every attempt was scheduled or has failed"):
        check(pair.close())


def test_the_explanation_shows_the_state_and_what_was_possible(honest, tmp_path):
    with pytest.raises(TraceRefused) as caught:
        check(retold(honest, tmp_path / "run", P, early_claim))
    text = str(caught.value)
    assert "prefill-0.jsonl:" in caught.value.where
    assert "state before it" in text
    assert "phase=draining" in text
    assert "enabled was: " in text
    assert "Lose(" not in text
    assert f"run 1 is {nonce('run 000')}" in text


# ---- bugs of the sessions are refused -------------------------------------------------------------------------------------


class NoGate(PrefillSession):
    """Claims the next slot without asking its gate."""

    def claim(self, run):
        gate = self.gate_of(self.step_of(run))
        old = self.slots[gate]
        self.slots[gate] = PB.State(phase="free", owner=0, epoch=old.epoch, saves=old.saves, transfers=old.transfers,
                                    attending=old.attending)  # fmt: skip
        return super().claim(run)


class EarlyAck(DecodeSession):
    """Believes every read as soon as it has ended."""

    def read_end(self, transfer, how, reason=""):
        effects = super().read_end(transfer, how, reason)
        self._on_committed(transfer, effects)
        return effects


class CommitsAll(PrefillSession):
    """Answers COMMITTED even for a transfer that it revoked."""

    def revoke(self, transfer):
        effects = super().revoke(transfer)
        self.transfers[transfer] = TR.State(phase="done")
        return effects


class Hasty(DecodeSession):
    """Schedules as soon as the first layer is there."""

    def can_schedule(self, attempt):
        return self.attempts[attempt].phase == "receiving" and bool(self.attempts[attempt].got)

    def schedule(self, attempt):
        return self._did("Schedule", [], attempt=attempt)


def schedule_at_once(pair, attempt):
    """Schedules the attempt as soon as its session allows it."""
    while not pair.decode.can_schedule(attempt):
        with contextlib.suppress(AssertionError):
            pair.settle(limit=1)
    pair.do(pair.decode.schedule(attempt))


def test_a_skipped_gate_is_refused(tmp_path):
    pair = Pair(tmp_path / "run", prefill=NoGate)
    run = advertised(pair, "a", 1)
    pair.step(run)
    pair.step(run)
    pair.do(pair.prefill.claim(run))
    pair.do(pair.decode.abort(pair.admit("b", CHUNK)))
    with pytest.raises(TraceRefused, match="CanClaim: the gate of the slot is open") as caught:
        check(pair.close())
    assert "Claim(run=" in str(caught.value)


@pytest.mark.parametrize("session", [EarlyAck, Hasty])
def test_a_schedule_before_everything_is_committed_is_refused(session, tmp_path):
    pair = Pair(tmp_path / "run", decode=session)
    schedule_at_once(pair, pair.admit("a", CHUNK))
    with pytest.raises(TraceRefused, match="CanSchedule: every layer of every chunk is committed"):
        check(pair.close())


def test_a_commit_of_a_revoked_transfer_is_refused(tmp_path):
    pair = Pair(tmp_path / "run", lease=True, prefill=CommitsAll)
    revokes(pair)
    with pytest.raises(TraceRefused, match=r"Committed.*was sent and is in flight; what is believed is what was computed"):
        check(pair.close())


def test_reports_that_are_never_sent_are_a_hang_and_refused(tmp_path):
    pair = Pair(tmp_path / "run")
    pair.admit("a", CHUNK)
    pair.settle()
    carry_out = pair.do
    pair.do = lambda effects: carry_out([e for e in effects if not isinstance(getattr(e, "message", None), ReadDone)])
    pair.admit("b", CHUNK)
    pair.settle()
    with pytest.raises(TraceRefused, match="every attempt was scheduled or has failed"):
        check(pair.close())


def test_the_judge_says_how_far_it_is(honest):
    told = []
    check(honest, lambda *progress: told.append(progress))
    assert told == [(0, 222), (222, 222)]


# ---- the command ----------------------------------------------------------------------------------------------------------


def test_exit_codes(honest, tmp_path):
    def run(*folders):
        line = [sys.executable, "-c", "from tidegate.engine.cli import main; main()", "trace", *map(str, folders)]
        return subprocess.run(line, capture_output=True, text=True)

    cut = retold(honest, tmp_path / "run", P, lambda lines: lines[:-20])
    refused = run(honest, cut)
    assert (refused.returncode, refused.stderr) == (1, "")
    assert "accepted: 118 machine events and 104 physical ones of 2 attempts" in refused.stdout
    assert "REFUSED" in refused.stdout
    assert "never sent" in refused.stdout
    (tmp_path / "none").mkdir()
    assert run(tmp_path / "none").returncode == 2
    unreadable = run(tmp_path / "nowhere")
    assert unreadable.returncode == 2
    assert "no directory" in unreadable.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_judge_and_leaves_no_folder(honest, tmp_path, number):
    main = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from tidegate.engine.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", main, "trace", str(honest)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=os.environ | {"TMPDIR": str(tmp_path)})  # fmt: skip
    while process.poll() is None and not list(tmp_path.glob("tidegate-tlc-*")):
        time.sleep(0.01)
    process.send_signal(number)
    said, complaint = process.communicate()
    assert (process.returncode, said) == (128 + number, "")
    assert complaint == f"tidegate trace: interrupted; {honest} is not judged\n"
    assert not list(tmp_path.iterdir())
