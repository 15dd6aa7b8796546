"""The recorder: one gapless order however many threads write, and a reader that sees damage."""

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from tidegate.engine.recorder import NULL, Recorder, content_tag, read_lines
from tidegate.engine.tracing import recorder_of, trace_header
from tidegate.protocol.topology import Topology


@pytest.fixture
def switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_lines_of_many_threads_are_one_gapless_order(tmp_path, switch_often):
    with Recorder(tmp_path / "t.jsonl", "prefill-0") as recorder:

        def work(me):
            for i in range(2000):
                recorder.record("step", thread=me, i=i, ranges=[(0, 2**40, 7)])

        threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = read_lines(tmp_path / "t.jsonl")
    assert len(lines) == 8000
    assert lines[7] | {"seq": 7, "process": "prefill-0", "kind": "step", "ranges": [[0, 2**40, 7]]} == lines[7]
    for me in range(4):
        assert [line["i"] for line in lines if line["thread"] == me] == list(range(2000))


def test_a_line_without_fields_is_there_at_once(tmp_path):
    """What remains of a process that is killed is all that it had recorded, for all of that may have had effects."""
    recorder = Recorder(tmp_path / "t.jsonl", 'odd "name"')
    recorder.record("ready")
    assert read_lines(tmp_path / "t.jsonl") == [{"process": 'odd "name"', "seq": 0, "kind": "ready"}]
    recorder.close()
    recorder.close()
    with pytest.raises(ValueError, match="came too late"):
        recorder.record("late")


def test_a_refused_line_takes_no_number(tmp_path):
    with Recorder(tmp_path / "t.jsonl", "p") as recorder:
        with pytest.raises(TypeError):
            recorder.record("bad", x=object())
        with pytest.raises(ValueError, match="recorder's own names"):
            recorder.record("bad", seq=3)
        recorder.record("good")
    assert [line["kind"] for line in read_lines(tmp_path / "t.jsonl")] == ["good"]


def test_a_trace_is_not_written_over(tmp_path):
    Recorder(tmp_path / "t.jsonl", "p").close()
    with pytest.raises(FileExistsError):
        Recorder(tmp_path / "t.jsonl", "p")


DAMAGE = [
    (lambda lines: lines[:1] + lines[2:], "2: seq is 2, 1 is due"),
    (lambda lines: lines[:2] + [lines[1]] + lines[2:], "3: seq is 1, 2 is due"),
    (lambda lines: [lines[1], lines[0], lines[2]], "1: seq is 1, 0 is due"),
    (lambda lines: lines[:2] + [lines[2][:9]], "3: .*died in a line"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_damage_is_seen(tmp_path, damage, message):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(damage([json.dumps({"seq": i}) + "\n" for i in range(3)])))
    with pytest.raises(ValueError, match=message):
        read_lines(path)


def test_null_records_nothing():
    NULL.record("x", a=1)
    NULL.close()
    assert not NULL.enabled


def test_tags_name_bytes_and_not_their_container():
    data = bytes(range(64))
    tags = {content_tag(data), content_tag(np.frombuffer(data, np.int16)), content_tag(data[:10], data[10:])}
    tags.add(content_tag(torch.frombuffer(bytearray(data), dtype=torch.bfloat16)))
    assert len(tags) == 1
    assert content_tag(data) == "e4af9932b61a9077"  # the same in every release: traces are compared
    assert content_tag(data) != content_tag(data[1:], data[:1])


def test_each_life_has_files_of_its_own(tmp_path):
    """Whoever comes back, or is beside another, takes the next name; its ranks go by that."""
    names = []
    for _ in range(3):
        leader = recorder_of(str(tmp_path), "decode", 0, Topology(p_tp=2, d_tp=2))
        rank = recorder_of(str(tmp_path), "decode", 1, Topology(p_tp=2, d_tp=2), leader.life)
        names += [leader.process, rank.process]
    assert names == ["decode-0", "decode-1", "decode.1-0", "decode.1-1", "decode.2-0", "decode.2-1"]
    with pytest.raises(FileExistsError):
        recorder_of(str(tmp_path), "decode", 1, Topology(p_tp=2, d_tp=2), "decode.1")


def test_the_header_of_a_trace_is_written_at_once(tmp_path):
    """What remains of a process that is killed early is a trace that was cut off, and no empty file."""
    recorder = Recorder(tmp_path / "decode-0.jsonl", "decode-0")
    trace_header(recorder, role="decode", rank=0, incarnation=5, layers=2)
    assert [line["kind"] for line in read_lines(tmp_path / "decode-0.jsonl")] == ["header"]
    recorder.close()


KEEPS = """
import os, sys
from tidegate.engine.tracing import recorder_of, trace_begin, trace_header, trace_observer
from tidegate.protocol.messages import TransferId
from tidegate.protocol.topology import ALONE
recorder = recorder_of(sys.argv[1], "decode", 0, ALONE)
trace_header(recorder, role="decode", rank=0, incarnation=5, layers=2)
trace_observer(recorder)("Admit", {"attempt": 7})
trace_begin(recorder, "attend", TransferId(1, 1, 1), 0, 1)
os._exit(9)
"""


@pytest.mark.parametrize("traced", [False, True])
def test_events_are_kept_of_a_process_that_is_killed(tmp_path, traced):
    """Of a worker that has no trace too; its bytes are nobody's concern there, and its own trace is what it was."""
    kept, trace, program = tmp_path / "kept", tmp_path / "trace", tmp_path / "worker.py"
    kept.mkdir()
    trace.mkdir()
    program.write_text(KEEPS)
    command = [sys.executable, str(program), str(trace) if traced else ""]
    assert subprocess.run(command, env=os.environ | {"TIDEGATE_TRACES": str(kept)}, check=False).returncode == 9
    (path,) = kept.glob("*/decode-0.jsonl")
    assert [line["kind"] for line in read_lines(path)] == ["header", "event"]
    told = [line["kind"] for path in trace.iterdir() for line in read_lines(path)]
    assert told == (["header", "event", "attend_begin"] if traced else [])


def test_a_process_with_other_code_than_the_products_keeps_no_events(tmp_path):
    subprocess.run([sys.executable, "-c", KEEPS, ""], env=os.environ | {"TIDEGATE_TRACES": str(tmp_path)}, check=False)
    assert not list(tmp_path.iterdir())
