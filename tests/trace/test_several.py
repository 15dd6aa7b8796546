"""`tidegate trace` on runs of several Prefills and Decodes, which are judged together: what one does to another's work is refused."""

from __future__ import annotations

import re

import pytest
from crashes import AnyTransfer
from scenarios import advertised
from scripted import CHUNK, Pair, nonce
from tampering import delivery, find, retold

from tidegate.engine.recorder import Recorder
from tidegate.engine.tracing import trace_file, trace_header
from tidegate.protocol.messages import ReadDone, Ready
from tidegate.protocol.topology import SlotPlan
from tidegate.spec.run_story import tell_run
from tidegate.spec.trace import check, check_all
from tidegate.spec.trace_files import read_directory
from tidegate.spec.trace_lines import TraceRefused


def two(folder, *, second=None, **options):
    """Two pairs beside each other, with names of their own."""
    return Pair(folder, **options), Pair(folder, number=1, **(options | (second or {})))


def served(pairs):
    for pair, names in zip(pairs, ("ac", "bd"), strict=True):
        for name in names:
            pair.admit(name, 2 * CHUNK, request=name)
    for pair in pairs:
        pair.settle()
        pair.close()
    return pairs[0].folder


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return served(two(tmp_path_factory.mktemp("honest") / "run"))


P1, D1 = "prefill.1-0", "decode.1-0"
TAMPERED = {
    "an ACK of another Prefill's": ("prefill-0", P1, "READ_DONE", r"READ_DONE is delivered to prefill.1, and is about work of prefill: "),
    "a READY for another Decode": ("decode-0", D1, "READY", r"READY is delivered to decode.1, and is about work of decode: "),
    "a claim for another's run": ("prefill-0", P1, "Claim", r"Claim.* in the trace of prefill.1: run \d+ is prefill's"),
    "a computation of another's run": ("prefill-0", P1, "write_begin", r"write_begin .* in the trace of prefill.1: run \d+ is prefill's"),
    "a read for another's attempt": ("decode-0", D1, "read_begin", r"read_begin .* in the trace of decode.1: attempt \d+ is decode's"),
    "an end of another's attempt": ("decode-0", D1, "Finish", r"Finish.* in the trace of decode.1: attempt \d+ is decode's"),
}  # fmt: skip


@pytest.fixture(scope="module")
def verdicts(honest, tmp_path_factory):
    top, folders = tmp_path_factory.mktemp("judged"), {"honest": honest}
    for name, (source, into, kind, _) in TAMPERED.items():
        lines = []
        retold(honest, top / f"read for {name}", source, lambda found, lines=lines: lines.extend(found) or found)
        at = delivery(lines, kind) if kind.isupper() else find(lines, **{"op" if kind[0].isupper() else "kind": kind})
        line = lines[at]

        def change(found, line=line, into=into):
            at = find(found, op="Finish") if into.startswith("decode") else delivery(found, "READ_DONE", 3)
            return [*found[:at], line | {"process": into}, *found[at:]]

        folders[name] = retold(honest, top / name, into, change)
    return dict(zip(folders, check_all(list(folders.values())), strict=True))


def test_two_of_each_are_accepted(verdicts):
    accepted = verdicts["honest"]
    if isinstance(accepted, Exception):
        raise accepted
    assert (accepted.lives, accepted.died) == (("decode", "decode.1", "prefill", "prefill.1"), ())
    assert (accepted.attempts, accepted.steps) == (4, 24)


@pytest.mark.parametrize("name", TAMPERED)
def test_what_is_done_to_anothers_work_is_refused(name, verdicts):
    verdict = verdicts[name]
    assert isinstance(verdict, TraceRefused), str(verdict)
    assert re.search(TAMPERED[name][3], str(verdict)), str(verdict)


def test_a_request_of_one_is_drawn_with_its_own_slots(honest):
    drawn = tell_run(honest, "b")
    assert {line.key for line in drawn.lines if line.key.startswith("prefill")} == {"prefill.1-0"}
    assert any("of prefill.1" in line.key for line in drawn.lines)


def test_planted_a_prefill_that_believes_an_ack_of_another_instances_request(tmp_path):
    """Both have step (1, 1) of a run of their own in slot 0, in epoch 1; the one is told what is meant for the other."""
    one, other = two(tmp_path / "run", second={"prefill": AnyTransfer})
    for pair, name in ((one, "a"), (other, "b")):
        run = advertised(pair, name, 1)
        pair.step(run)
        pair.step(run)
    while not any(isinstance(message, ReadDone) for message in one.net):
        one.deliver(one.net.popleft()) if not one.work else None
        while one.work:
            work = one.work.popleft()
            one.begin(*work)
            one.end(*work)
    (report,) = [message for message in one.net if isinstance(message, ReadDone)]
    other.deliver(report)
    for pair in (one, other):
        pair.settle()
        pair.close()
    with pytest.raises(TraceRefused, match=r"READ_DONE is delivered to prefill.1, and is about work of prefill"):
        check(tmp_path / "run")


def test_planted_a_decode_that_is_told_what_another_is_to_read(tmp_path):
    one, other = two(tmp_path / "run")
    run = advertised(one, "a", 1)
    one.step(run)
    one.step(run)
    (ready,) = [message for message in one.net if isinstance(message, Ready)]
    other.admit("b", CHUNK)
    other.deliver(ready)
    for pair in (one, other):
        pair.settle()
        pair.close()
    with pytest.raises(TraceRefused, match=r"READY is delivered to decode.1, and is about work of decode"):
        check(tmp_path / "run")


# ---- memory ---------------------------------------------------------------------------------------------------------------


def test_two_decodes_over_one_pool_are_refused(tmp_path):
    mine, same = {"main": "00:01 7", "index": ""}, {"main": "00:01 7", "index": ""}
    folder = served(two(tmp_path / "run", memories=mine, second={"memories": same}))
    with pytest.raises(TraceRefused, match=r"main of decode.1 lies in the same memory as that of decode \(file 00:01 7\)"):
        check(folder)
    read_directory(served(two(tmp_path / "apart", memories=mine, second={"memories": {"main": "00:01 8", "index": ""}})))


def ranks(folder, *places):
    """A Prefill and a Decode of two ranks each that did nothing; places: of main KV at each rank of Decode."""
    folder.mkdir()
    plan = SlotPlan(layers=2, shared=frozenset((1, 2)), shared_slots=1)
    for role in ("prefill", "decode"):
        for rank in range(2):
            more = {"plan": plan, "chunk_tokens": 4} if role == "prefill" else {"memories": {"main": places[rank]}}
            with Recorder(folder / trace_file(role, rank), f"{role}-{rank}") as recorder:
                trace_header(recorder, role=role, rank=rank, ranks=2, members=2, incarnation=nonce(f"{role[0]}{rank}"), layers=2, **more)
                recorder.record("end")
    return folder


def test_the_ranks_of_one_decode_share_its_pool(tmp_path):
    read_directory(ranks(tmp_path / "one", "00:01 7", "00:01 7"))
    with pytest.raises(TraceRefused, match="main lies in file 00:01 8, and that of decode-0 in 00:01 7: the ranks of a Decode share"):
        read_directory(ranks(tmp_path / "two", "00:01 7", "00:01 8"))
