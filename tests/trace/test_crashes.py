"""`tidegate trace` on runs in which a side dies and comes back: the survivors' lines are judged, whatever the dead one left; what is
tampered with, and what a session with a planted bug records, is refused for the reason that is true."""

from __future__ import annotations

import json
import re
import shutil

import msgspec
import pytest
from crashes import CRASHES, AnyTransfer, decode_returns, prefill_dies, reading
from scenarios import copy_one
from scripted import CHUNK, Pair, good, nonce
from tampering import delivery, find, retold

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.messages import ReadDone, Ready
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec.trace import check, check_all
from tidegate.spec.trace_files import died, read_directory
from tidegate.spec.trace_lines import TraceRefused
from tidegate.spec.walks import traced


def crashed(folder, scenario, **options):
    pair = Pair(folder, **options)
    scenario(pair)
    return pair.close()


# ---- what may happen is accepted ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("crashed")
    return {name: crashed(top / name, scenario) for name, scenario in CRASHES.items()}


def torn(folder, into):
    """The dead life's process died within its last line."""
    shutil.copytree(folder, into)
    path = into / "decode-0.jsonl"
    assert died(read_directory(into), "decode")
    path.write_bytes(path.read_bytes() + b'{"process":"decode-0","seq":')
    return into


@pytest.fixture(scope="module")
def moments(tmp_path_factory):
    """What is on the disk at 40 moments of a run: what would be left if both sides were killed there."""
    top = tmp_path_factory.mktemp("moments")
    pair, found = Pair(top / "run"), []
    carry_out = pair.do

    def do(effects):
        carry_out(effects)
        found.append(shutil.copytree(top / "run", top / f"after {len(found)}"))

    pair.do = do
    pair.admit("a", 2 * CHUNK)
    pair.settle()
    return found[1 :: len(found) // 40]


@pytest.fixture(scope="module")
def verdicts(folders, moments, tmp_path_factory):
    top = tmp_path_factory.mktemp("judged")
    every = folders | {"a torn line": torn(folders["a Decode that comes back"], top / "torn")}
    every |= {name: retold(folders[scenario], top / name, file, change) for name, (scenario, file, change, _) in TAMPERED.items()}
    every |= {f"moment {n}": folder for n, folder in enumerate(moments)}
    return dict(zip(every, check_all(list(every.values())), strict=True))


@pytest.mark.parametrize("name", [*CRASHES, "a torn line"])
def test_what_survives_a_crash_is_accepted(name, verdicts):
    accepted = verdicts[name]
    if isinstance(accepted, Exception):
        raise accepted
    assert accepted.events["Schedule"] >= 1
    assert bool(accepted.died) == (name != "a Prefill that ends first")


def test_a_run_that_is_killed_at_any_moment_is_accepted(verdicts):
    found = [verdict for name, verdict in verdicts.items() if name.startswith("moment")]
    assert len(found) >= 40
    for verdict in found:
        if isinstance(verdict, Exception):
            raise verdict
        assert verdict.died == ("decode", "prefill")
    assert found[-1].events["Schedule"] > found[0].events["Schedule"]


def test_with_read_lease_no_fence_is_needed(tmp_path):
    accepted = check(crashed(tmp_path / "run", lambda pair: decode_returns(pair, fence=False), lease=True))
    assert (accepted.events["PeerLost"], accepted.events["PeerFenced"]) == (1, 0)


def test_the_sessions_walk_the_same_edges_again(folders):
    """`tidegate coverage` on such traces."""
    walked = traced([folders["a Decode that comes back"], folders["a Prefill that comes back"]])
    assert {"Go", "Fence", "Lose"} <= {edge.event for edge in walked.pairs if edge.machine == "Peer"}


def test_a_life_that_died_before_it_said_who_it_is_was_none(folders, tmp_path):
    shutil.copytree(folders["both"], tmp_path / "run")
    (tmp_path / "run" / "decode.2-0.jsonl").write_bytes(b'{"process":"dec')
    assert "decode.2" not in read_directory(tmp_path / "run")


# ---- tampering ------------------------------------------------------------------------------------------------------------

P, D = "prefill-0", "decode-0"
DECODE, PREFILL, ENDS = "a Decode that comes back", "a Prefill that comes back", "a Prefill that ends first"


def lost(**fields):
    def change(lines):
        del lines[find(lines, **fields)]
        return lines

    return change


def other_life(kind):
    def change(lines):
        lines[find(lines, op=kind)]["life"] = 4711
        return lines

    return change


def goes_on(lines):
    """Prefill says that Decode is gone while that goes on."""
    gone = {"kind": "event", "op": "PeerGone", "life": nonce("ddelife"), "process": P}
    lines.insert(delivery(lines, "READ_DONE"), gone)
    return lines


def twice(lines):
    at = find(lines, op="PeerFenced")
    return [*lines[: at + 1], *lines[at:]]


def of_another(lines):
    """The life that comes back schedules what the dead one had admitted."""
    lines[find(lines, op="Schedule")]["attempt"] = nonce("b")
    return lines


TAMPERED = {
    "no fence": (DECODE, P, lost(op="PeerFenced"), "Peer.CanLose: it is fenced"),
    "no end of what it held": (DECODE, P, lost(op="PeerLost"), "CanClaim: the gate of the slot is open"),
    "fenced before it is gone": (DECODE, P, lost(op="PeerGone"), "Peer.CanFence: it is known to be gone"),
    "fenced twice": (DECODE, P, twice, "Peer.CanFence: .* fenced once"),
    "a life that is nobody's": (DECODE, P, other_life("PeerGone"), "no process of this trace is life 4711"),
    "lines of the dead that are missing": (DECODE, D, lambda lines: lines[:-3], "never sent: .* the last line of one that died"),
    "a life that goes on": (ENDS, P, goes_on, "in a circle"),
    "another life's attempt": (DECODE, "decode.1-0", of_another, r"Schedule.* in the trace of decode.1: attempt \d+ is decode's"),
    "a copy that is open at the end": (ENDS, P, lost(kind="save_end"), "it has ended, and every copy of it before|its bytes were saved"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_refused_for_its_reason(name, verdicts):
    verdict = verdicts[name]
    assert isinstance(verdict, TraceRefused), str(verdict)
    assert re.search(TAMPERED[name][3], str(verdict)), str(verdict)


# ---- bugs of the sessions -------------------------------------------------------------------------------------------------


class NoFence(PrefillSession):
    """Takes back at once what a Decode that is gone still reads, although it may not revoke."""

    def peer_lost(self, incarnation, *, lease):
        return super().peer_lost(incarnation, lease=True)


class AnyReader(PrefillSession):
    """Hears what another life of Decode says of reads that it knows nothing of."""

    def _on_report(self, report, effects):
        if report.transfer.run in self.starts:
            report = msgspec.structs.replace(report, reader=self.starts[report.transfer.run].incarnation)
        super()._on_report(report, effects)


class AnyPrefill(DecodeSession):
    """Reads what a Prefill announced that is gone."""

    def prefill_gone(self, *lives):
        effects = super().prefill_gone(*lives)
        self.gone.clear()
        return effects


def test_planted_a_prefill_that_does_not_wait_for_the_fence(tmp_path):
    folder = crashed(tmp_path / "run", lambda pair: decode_returns(pair, fence=False), prefill=NoFence)
    with pytest.raises(TraceRefused, match=r"Peer\.CanLose: it is fenced") as caught:
        check(folder)
    assert re.search(r"held: \{.*orphans: \{", str(caught.value).replace("\n", " "))


def another_speaks(pair):
    """READY of what the dead life was reading comes to the next, which refuses it."""
    reading(pair)
    pair.work.clear()
    pair.begin_life("decode", "decode.1")
    (held,) = [t for t in pair.prefill.readies if pair.prefill.is_held(t)]
    pair.do(pair.prefill.resend_ready(held))
    pair.admit("c", 2 * CHUNK)
    pair.settle()


def test_planted_a_prefill_that_hears_another_life(tmp_path):
    """And so has the slot overwritten while a device reads it for the dead one."""
    with pytest.raises(TraceRefused, match=r"CanClaim: the gate|REVOKED is delivered and was never sent|was sent and is"):
        check(crashed(tmp_path / "run", another_speaks, prefill=AnyReader))


def test_planted_a_decode_that_reads_from_one_that_is_gone(tmp_path):
    def scenario(pair):
        pair.admit("b", CHUNK)
        pair.do(pair.decode.registered(pair.registering.pop()))
        pair.deliver(pair.net.popleft())
        (run,) = pair.prefill.runs
        pair.step(run)
        pair.step(run)
        pair.work.clear()
        (ready,) = [message for message in pair.net if isinstance(message, Ready)]
        old = pair.prefill.incarnation
        pair.begin_life("prefill", "prefill.1")
        pair.do(pair.decode.prefill_gone(old))
        pair.net.clear()
        pair.deliver(ready)
        pair.begin(*pair.work[0]) if pair.work else None
        pair.do(pair.decode.abort(nonce("b")))

    with pytest.raises(TraceRefused, match=r"read_begin .* its READY was delivered and its ReadEnd has not come"):
        check(crashed(tmp_path / "run", scenario, decode=AnyPrefill))
    check(crashed(tmp_path / "well", scenario))


def test_planted_a_prefill_that_believes_a_report_for_the_life_before_it(tmp_path):
    def scenario(pair):
        old = prefill_dies(pair)
        (report,) = [message for message in pair.net if isinstance(message, ReadDone)]
        pair.net.clear()
        pair.do(pair.decode.prefill_gone(old))
        pair.admit("c", 2 * CHUNK)
        pair.do(pair.decode.registered(pair.registering.pop()))
        pair.deliver(pair.net.pop())
        run = next(iter(pair.prefill.runs))
        pair.step(run)
        pair.step(run)
        pair.deliver(report)
        copy_one(pair)  # the save
        pair.step(run)
        pair.settle()

    check(crashed(tmp_path / "well", scenario))
    with pytest.raises(TraceRefused, match=r"CanClaim: the gate of the slot is open|COMMITTED is delivered and was never sent"):
        check(crashed(tmp_path / "run", scenario, prefill=AnyTransfer))


def test_an_end_that_was_cut_off_shows_in_what_is_said(tmp_path):
    """Nothing follows from the missing line: the run is accepted, and who died is named."""
    folder = good(tmp_path / "run")
    path = folder / "decode-0.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if json.loads(line)["kind"] != "end"))
    assert check(folder).died == ("decode",)
