"""`tidegate trace` on a run of several ranks: accepted; tampered with, or recorded of an engine with a planted bug, refused for the
reason that is true."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pair_tools import MODEL, TEXT, config, run
from tampering import changed, find, moved, retold, without

from tidegate.engine.config import Request, RunConfig
from tidegate.engine.pair import run_pair
from tidegate.spec.trace import check, check_all
from tidegate.spec.trace_lines import TraceRefused

Lines = list[dict[str, Any]]
HAND, LEADER, DECODE = "prefill-1", "prefill-0", "decode-0"


def small(**changes: Any) -> RunConfig:
    """One request of 2 chunks of 3 blocks, 3 layers, one slot for two of them: no step of it is shared out evenly."""
    settings: dict[str, Any] = {
        "requests": (Request("one", tuple(TEXT[:96])),), "chunk": 48, "p_tp": 2, "concurrency": 1, "shared_buffers": 1,
        "model": MODEL | {"dtype": "bfloat16", "num_hidden_layers": 3, "first_k_dense_replace": 2}, "new_tokens": 2, "tags": False,
    }  # fmt: skip
    return config(**settings | changes)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest") / "run"
    folder.mkdir()
    assert all(one.equal for one in run(small(trace=str(folder)))[1])
    return folder


def test_every_rank_tells_what_it_moved(honest: Path) -> None:
    accepted = check(honest)
    assert accepted.steps == accepted.physical["write_end"] == 2 * 3 * 2
    assert accepted.events["Join"] == 1
    assert accepted.physical["read_end"] == accepted.steps, "each rank has a share of the indexer's blocks"
    assert {path.name for path in honest.iterdir()} == {"decode-0.jsonl", "prefill-0.jsonl", "prefill-1.jsonl"}


# ---- tampering ------------------------------------------------------------------------------------------------------------


def of_hand(lines: Lines, kind: str) -> int:
    return find(lines, kind=kind, member=1)


def early_step(lines: Lines) -> Lines:
    """The leader begins a step before the other rank has its slot."""
    claim = find(lines, op="Claim", member=1)
    begin = lines.pop(find(lines, kind="write_begin"))
    lines.insert(claim, begin)
    return lines


def one_share_twice(lines: Lines) -> Lines:
    """Rank 1 reads what rank 0 has read of the indexer, into a place of its own."""
    first = lines[find(lines, kind="read_begin", member=0)]
    other = lines[next(n for n, x in enumerate(lines) if x["kind"] == "read_begin" and x["member"] == 1 and x["layer"] == first["layer"])]
    index = first["regions"].index("index")
    other["ranges"][0][0] = first["ranges"][index][0]
    other["tags"][0] = first["tags"][index]
    return lines


def same_place(lines: Lines) -> Lines:
    """What rank 1 sends lands where what rank 0 sends has landed."""
    first = lines[find(lines, kind="read_begin", member=0)]
    other = lines[next(n for n, x in enumerate(lines) if x["kind"] == "read_begin" and x["member"] == 1 and x["layer"] == first["layer"])]
    other["ranges"][0][1] = first["ranges"][first["regions"].index("index")][1]
    return lines


def other_range_tag(kind: str) -> Any:
    def change(lines: Lines) -> Lines:
        lines[of_hand(lines, kind)]["tags"][0] = "0" * 16
        return lines

    return change


def fewer_tags(kind: str) -> Any:
    """The tags of a share's end leave out a range, of which then nobody says what was moved."""

    def change(lines: Lines) -> Lines:
        lines[of_hand(lines, kind)]["tags"].pop()
        return lines

    return change


def no_share(lines: Lines) -> Lines:
    """Rank 1 sends nothing of one step, and Decode is told that this was its share."""
    return without({"kind": "read_end", "member": 1}, {"kind": "read_begin", "member": 1})(lines)


def unannounced_end(lines: Lines) -> Lines:
    """What rank 1 has copied it has not yet copied when the leader's session hears of it."""
    return moved({"kind": "save_end"}, {"kind": "end"})(lines)


def inserted(line: dict[str, Any], **before: Any) -> Any:
    def change(lines: Lines) -> Lines:
        at = find(lines, **before)
        return [*lines[:at], lines[at] | line, *lines[at:]]

    return change


def strange_member(lines: Lines) -> Lines:
    lines[find(lines, op="LayerDone")]["transfer"][3] = 5
    return lines


TAMPERED = {
    "a step that a rank may not begin": (LEADER, early_step, "StepAgreement.CanEnter: every rank has the slot"),
    "a rank that takes its gate first": (LEADER, moved({"op": "Claim", "member": 1}, {"op": "Claim", "member": 0}),
                                         "the leader takes each gate first"),
    "a claim that never was": (LEADER, without({"op": "Claim", "member": 1}), "in a circle: .* a rank acts before it is told"),
    "a run that a rank never joined": (LEADER, without({"op": "Join"}), "PrefillRun.CanAct: the run is running"),
    "a rank that joins twice": (LEADER, inserted({}, op="Join"), "this member joins it once"),
    "a rank that stops for nothing": (LEADER, inserted({"op": "Stop"}, op="Claim", member=1), "the run has failed at another member"),
    "a rank that heeds what nobody has said": (LEADER, inserted({"op": "Heed"}, op="Claim", member=1), "the leader has heard RETIRE"),
    "a rank that heeds it twice": (LEADER, inserted({}, op="Heed"), "this member has begun the run, and not heeded yet"),
    "a leader that forgets first": (LEADER, moved({"op": "Forget", "member": 0}, {"op": "Forget", "member": 1}),
                                    "the leader forgets a run last"),
    "a rank that forgets what it may be asked about": (LEADER, inserted({"op": "Forget"}, op="Claim", member=1), "PrefillRun.CanForget: "),
    "other rows at one rank": (HAND, changed({"tag": "0" * 16}, kind="write_end"), "every rank computes the same rows"),
    "a torn share of a save": (HAND, other_range_tag("save_end"), "what was saved is still what was computed"),
    "a torn share of a read": (DECODE, other_range_tag("read_end"), "what is read is what was computed"),
    "a share of a save of which a range is not told": (HAND, fewer_tags("save_end"), r"has tags of \d ranges, .+ began \d: one for each"),
    "a share of a read of which a range is not told": (DECODE, fewer_tags("read_end"), r"has tags of \d ranges, .+ began \d: one for"),
    "a share that nobody sent": (DECODE, no_share, r"read their share of run \d+ chunk \d layer \d, and index at \d+ was read by none"),
    "a share that nobody saved": (HAND, without({"kind": "save_end"}, {"kind": "save_begin"}), r"was saved by none"),
    "a share that two ranks send": (DECODE, one_share_twice, r"each row is read once for Decode rank 0"),
    "a share that lands on another": (DECODE, same_place, r"lands in index of attempt|lands in index at \d+, in bytes that are another"),
    "a save told before its end": (HAND, unannounced_end, "in a circle|its bytes were saved"),
    "bytes of another rank": (HAND, changed({"member": 0}, kind="attend_begin"), "it is rank 0 that moves these bytes"),
    "an event of a rank without sessions": (HAND, changed({"kind": "event", "op": "Claim", "run": 1, "member": 1}, kind="attend_begin"),
                                            "every session is rank 0's"),
    "a member that is not there": (LEADER, strange_member, "members 0 to 1"),
    "another size": (DECODE, changed({"members": 3}, kind="header"), "3 members, and Prefill has 2 ranks"),
    "another plan at one rank": (HAND, changed({"chunk_tokens": 5}, kind="header"), "says of its instance what prefill-0 does not"),
    "one life twice": (HAND, lambda lines: [lines[0] | {"incarnation": 7}, *lines[1:]], ""),
}  # fmt: skip
ACCEPTED = {"one life twice"}
"""Changes nothing that matters: a rank's incarnation is its own."""


@pytest.fixture(scope="module")
def judged(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    top = tmp_path_factory.mktemp("judged")
    folders = [retold(honest, top / name, role, change) for name, (role, change, _) in TAMPERED.items()]
    return dict(zip(TAMPERED, check_all(folders), strict=True))


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_refused_for_its_reason(name: str, judged: dict[str, Any]) -> None:
    verdict = judged[name]
    if name in ACCEPTED:
        assert not isinstance(verdict, Exception), str(verdict)
        return
    assert isinstance(verdict, TraceRefused), str(verdict)
    assert re.search(TAMPERED[name][2], str(verdict)), str(verdict)


def test_the_file_of_a_rank_is_missing(honest: Path, tmp_path: Path) -> None:
    shutil.copytree(honest, tmp_path / "run")
    (tmp_path / "run" / "prefill-1.jsonl").rename(tmp_path / "run" / "prefill-2.jsonl")
    with pytest.raises(TraceRefused, match="process is 'prefill-1' in the file of prefill-2"):
        check(tmp_path / "run")
    (tmp_path / "run" / "prefill-2.jsonl").unlink()
    with pytest.raises(TraceRefused, match="the file of prefill-1 is missing: prefill has 2 ranks"):
        check(tmp_path / "run")


# ---- bugs in the real processes ---------------------------------------------------------------------------------------------

UNASKED = """
import msgspec
from tidegate.engine.prefill_group import PrefillGroup
from tidegate.protocol.prefill_moves import PrefillMoves

def hand_wrote(self, step):
    session = self._of(step)
    self._writing[session.member].discard(step)
    effects = []
    if not session.can_write(step.run):  # the leader went on without it: take the gate now, open or not
        gate = session.gate_of(step)
        session.slots[gate] = msgspec.structs.replace(session.slots[gate], phase="free")
        effects = session.claim(step.run)
    return effects + self._followed(session, session.write(step.run))

move = PrefillMoves._move_slot

def move_slot(self, step, event, can, change):  # what comes too late for a gate that was taken away is nobody's concern
    if can(self.slots[self.gate_of(step)], step):
        move(self, step, event, can, change)

PrefillMoves._move_slot = move_slot
PrefillGroup.can_write = lambda self, run: self.leader.can_write(run)
PrefillGroup.hand_wrote = hand_wrote
"""
SLOW_SAVES = """
import time
from tidegate.engine.copying import CopyWorkers
carry_out = CopyWorkers._carry_out

def slowly(self, job, on_outcome):
    time.sleep(0.3 * (job.kind == "save" and job.work.labels["layer"] < 3))
    carry_out(self, job, on_outcome)

CopyWorkers._carry_out = slowly
"""
OTHER_ROWS = """
from tidegate.engine.step_trace import StepTrace
ends = StepTrace.write_ends

def spoilt(self, step, *, ok=True):
    if step.layer == 2 and step.chunk == 2 and step.member == 1:
        rows = self._open[step]
        self._views(rows)[0][0] += 1
    ends(self, step, ok=ok)

StepTrace.write_ends = spoilt
"""


def leader(before: str) -> list[str]:
    return [sys.executable, "-c", f"{before}\nfrom tidegate.engine.prefill_worker import main\nmain()\n"]


def hand(before: str, leads: str = "") -> list[str]:
    """A leader whose hands run `before`, and that runs `leads`."""
    code = f"{before}\nfrom tidegate.engine.prefill_rank import main\nmain()\n"
    argv = f"lambda module: [sys.executable, '-c', {code!r}]"
    return leader(f"{leads}\nimport sys\nfrom tidegate.engine import hands\nhands.rank_argv = {argv}")


def test_planted_a_leader_that_does_not_ask_the_ranks_is_refused(tmp_path: Path) -> None:
    """Slow saves keep the other rank's gate shut; the leader goes on, and nothing of it stops by itself."""
    c = small(requests=(Request("one", tuple(TEXT[:48])),), independent_layers=(), trace=str(tmp_path))
    run_pair(c, prefill_argv=hand(SLOW_SAVES, UNASKED), timeout=60)
    with pytest.raises(TraceRefused, match=r"StepAgreement.CanEnter: every rank has the slot|CanClaim: the gate of the slot is open"):
        check(tmp_path)


def test_planted_a_rank_that_computes_other_rows_is_refused(tmp_path: Path) -> None:
    """One number of one row at one rank, whose main KV nobody reads."""
    run_pair(small(trace=str(tmp_path)), prefill_argv=hand(OTHER_ROWS), timeout=60)
    with pytest.raises(TraceRefused, match="every rank computes the same rows"):
        check(tmp_path)
