"""Pulls: byte-exact bounds, coalescing, outcomes that say whether the copy has stopped, and events from the copy
itself.
"""

import ctypes
import itertools
import queue
import re
import statistics
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.engine import pull_shm
from tidegate.engine.copying import CopyWorkers, Fault, Job, Work
from tidegate.engine.pull_shm import Part, ShmPull
from tidegate.engine.recorder import Recorder, content_tag, read_lines
from tidegate.engine.slot_layout import plan_layout
from tidegate.engine.slots import SharedMemory

WORK = Work(slot=1, epoch=4, labels={"transfer": 17})


class Rig:
    """A Prefill's memory of random bytes, a backend that reads it, and two destination regions."""

    def __init__(self, **options):
        self.memory = SharedMemory.allocate(plan_layout([0, 1], {"main": 16, "index": 4}, "bfloat16", blocks=2, block_size=4))
        self.memory.bytes[:] = np.random.default_rng(1).integers(0, 255, self.memory.bytes.size)
        self.main, self.index = np.zeros(512, np.uint8), np.zeros(128, np.uint8)
        self.backend = ShmPull(**options)
        self.backend.connect("p0", self.memory)
        self.backend.register("main", self.main)
        self.backend.register("index", self.index)
        self.outcomes = queue.Queue()

    def pull(self, *parts):
        return self.backend.pull("p0", parts, WORK)

    def submit(self, *parts):
        self.backend.submit("p0", parts, WORK, self.outcomes.put)

    def close(self):
        self.backend.close()
        self.memory.close()


@pytest.fixture
def hold():
    """What a copy waits for; set in any case at the end, so that a failed test does not leave a thread behind."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.close()


def test_parts_land_in_their_regions_and_neighbours_are_one_copy(rig):
    source = rig.memory.bytes
    outcome = rig.pull(Part("main", [0, 32, 96], [64, 96, 0], [32, 32, 32]), Part("index", [4096], [120], [8]))
    assert (outcome.ok, outcome.stopped, outcome.copies, outcome.bytes) == (True, True, 3, 104)
    assert (rig.main[64:128] == source[:64]).all()
    assert (rig.main[:32] == source[96:128]).all()
    assert (rig.index[120:] == source[4096:4104]).all()
    assert not rig.main[32:64].any()
    assert not rig.main[128:].any()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 16400), st.integers(0, 530), st.integers(-1, 40)), max_size=6))
def test_a_pull_copies_all_of_it_or_refuses_and_copies_nothing(ranges):
    rig = Rig()
    columns = [list(column) for column in zip(*ranges, strict=True)] or [[], [], []]
    want, size = rig.main.copy(), rig.memory.bytes.size
    fits = all(n >= 0 and s + n <= size and d + n <= 512 for s, d, n in ranges)
    for s, d, n in ranges if fits else []:
        want[d : d + n] = rig.memory.bytes[s : s + n]
    outcome = rig.pull(Part("main", *columns))
    assert outcome.ok == fits
    assert outcome.stopped
    assert (rig.main == want).all()
    rig.close()


OUTSIDE = [
    (Part("main", [16377], [0], [8]), "leaves the source of 16384 bytes"),
    (Part("main", [2**62], [0], [8]), "leaves the source"),
    (Part("main", [2**63 - 4], [0], [8]), "leaves the source"),
    (Part("main", [0], [505], [8]), "destination of 512 bytes"),
    (Part("main", [0], [2**63 - 4], [8]), "leaves"),
    (Part("main", np.array([-2147478528]), [0], [8]), "source -2147478528"),  # an offset that wrapped in 32 bits
    (Part("index", [0], [121], [8]), "region 'index'"),
    (Part("scale", [0], [0], [8]), "'scale' is not registered: there are \\['index', 'main'\\]"),
]


@pytest.mark.parametrize(("part", "message"), OUTSIDE)
def test_one_bad_range_of_any_part_moves_nothing(rig, part, message):
    outcome = rig.pull(Part("main", [0], [0], [8]), part)
    assert not outcome.ok
    assert outcome.stopped
    assert re.search(message, outcome.reason)
    assert "slot 1 epoch 4" in outcome.reason
    assert not rig.main.any()


# ---- a region that is some places in a buffer


SPANS = np.array([[32, 64], [64, 70], [96, 128]])
ALLOWED = np.zeros(512, bool)
for _first, _stop in SPANS:
    ALLOWED[_first:_stop] = True


def in_one_span(d, n):
    return any(first <= d and d + n <= stop for first, stop in SPANS.tolist())


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(20, 135), st.integers(0, 40)), min_size=1, max_size=4))
def test_a_region_of_spans_is_written_in_them_and_nowhere_else(ranges):
    rig = Rig()
    rig.backend.register("some", rig.main, SPANS)
    outcome = rig.pull(Part("some", [0] * len(ranges), *map(list, zip(*ranges, strict=True))))
    assert outcome.ok == all(n == 0 or in_one_span(d, n) for d, n in ranges), outcome.reason
    assert not rig.main[~ALLOWED].any()
    if not outcome.ok:
        assert "bytes that are registered, in 3 places: nothing was copied" in outcome.reason
        assert not rig.main.any()
    rig.close()


def test_spans_beyond_32_bits_are_exact():
    region = pull_shm.Region(np.zeros(0, np.uint8), np.array([[5 << 32, (5 << 32) + 8]]), "")
    region.check(np.array([5 << 32]), np.array([8]))
    for d, n in (((5 << 32) - 1, 1), ((5 << 32) + 8, 1), ((5 << 32) + 1, 8), (0, 8)):
        with pytest.raises(ValueError, match="leaves the 8 bytes that are registered, in 1 places"):
            region.check(np.array([d]), np.array([n]))
    with pytest.raises(ValueError, match="leaves the 0 bytes"):
        pull_shm.Region(np.zeros(8, np.uint8), np.zeros((0, 2), np.int64), "").check(np.array([0]), np.array([1]))


@pytest.mark.parametrize("spans", [[[0, 513]], [[-1, 4]], [[8, 4]], [[4, 8], [6, 9]], [[4, 8], [0, 2]], [[1, 2, 3]]])
def test_spans_that_are_none_of_the_buffers_are_refused(rig, spans):
    with pytest.raises(ValueError, match="not \\[n, 2\\] bytes of a buffer of 512, in order and apart"):
        rig.backend.register("some", rig.main, np.array(spans))


def test_the_trace_names_the_memory_where_regions_share_one(tmp_path):
    recorder = Recorder(tmp_path / "t.jsonl", "decode-0")
    rig = Rig(recorder=recorder)
    for name, spans in (("one", [[0, 8]]), ("two", [[8, 16]])):
        rig.backend.register(name, rig.main, np.array(spans), "pool")
        assert rig.pull(Part(name, [0], [spans[0][0]], [8])).ok
    rig.close()
    recorder.close()
    assert [line["regions"] for line in read_lines(recorder.path) if line["kind"] == "read_begin"] == [["pool"], ["pool"]]


def test_an_unknown_peer_and_a_region_registered_twice(rig):
    assert "not connected: there are ['p0']" in rig.backend.pull("p9", [], WORK).reason
    rig.backend.disconnect("p0")
    assert not rig.pull(Part("main", [0], [0], [8])).ok
    with pytest.raises(ValueError, match="unregister it first"):
        rig.backend.register("main", np.zeros(4, np.uint8))
    rig.backend.unregister("main")
    rig.backend.register("main", np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        rig.backend.register("x", bytes(4))


def test_a_quiet_failure_lands_nothing_then_or_later():
    rig = Rig(faults=lambda kind, work: Fault("quiet") if work.labels["transfer"] == 17 else None)
    outcome = rig.pull(Part("main", [0], [0], [64]))
    assert (outcome.ok, outcome.stopped) == (False, True)
    rig.close()
    assert not rig.main.any()


def still_waiting(rig):
    """No outcome comes for long enough that a copy which does not wait would be over."""
    with pytest.raises(queue.Empty):
        rig.outcomes.get(timeout=0.1)
    return True


def test_an_unknown_failure_lands_later_and_then_says_so(hold):
    rig = Rig(faults=lambda kind, work: Fault("unknown", hold=hold))
    rig.submit(Part("main", [0], [0], [64]))
    first = rig.outcomes.get(timeout=10)
    assert (first.ok, first.stopped) == (False, False)
    assert still_waiting(rig)
    assert not rig.main.any()  # whoever gives this memory away now will see it written
    hold.set()
    last = rig.outcomes.get(timeout=10)
    assert (last.ok, last.stopped) == (False, True)
    assert (rig.main[:64] == rig.memory.bytes[:64]).all()
    rig.close()
    assert rig.outcomes.empty()


def test_a_delayed_pull_reads_what_the_slot_holds_then(hold):
    rig = Rig(faults=lambda kind, work: Fault(hold=hold))
    rig.submit(Part("main", [0], [0], [64]))
    assert still_waiting(rig)
    rig.memory.bytes[:64] = 7  # no gate held the slot
    hold.set()
    assert rig.outcomes.get(timeout=10).ok
    assert (rig.main[:64] == 7).all()
    rig.close()


def events(path):
    return {line["kind"]: line for line in read_lines(path)}


@pytest.mark.parametrize("overwritten", [False, True])
def test_events_tell_a_torn_read_from_a_whole_one(tmp_path, overwritten, hold):
    begun = threading.Event()

    class Watched(Recorder):
        def record(self, kind, **fields):
            super().record(kind, **fields)
            begun.set()

    recorder = Watched(tmp_path / "t.jsonl", "decode-0")
    rig = Rig(recorder=recorder, faults=lambda kind, work: Fault(hold=hold))
    before = content_tag(rig.memory.bytes[:64], rig.memory.bytes[4096:4104])
    rig.submit(Part("main", [0, 32], [64, 96], [32, 32]), Part("index", [4096], [120], [8]))
    assert begun.wait(10)
    if overwritten:
        rig.memory.bytes[10] ^= 1
    hold.set()
    rig.close()
    recorder.close()
    begin, end = (events(recorder.path)[kind] for kind in ("read_begin", "read_end"))
    common = {"slot": 1, "epoch": 4, "transfer": 17, "peer": "p0", "regions": ["main", "main", "index"]}
    assert begin | common | {"tag": before, "ranges": [[0, 64, 32], [32, 96, 32], [4096, 120, 8]]} == begin
    assert end | common | {"ok": True, "bytes": 72, "landed": content_tag(rig.main[64:128], rig.index[120:])} == end
    assert (end["tag"] == begin["tag"] == end["landed"]) is not overwritten


def test_a_failed_read_records_no_landing(tmp_path):
    recorder = Recorder(tmp_path / "t.jsonl", "decode-0")
    rig = Rig(recorder=recorder, faults=lambda kind, work: Fault("quiet"))
    rig.pull(Part("main", [0], [0], [64]))
    rig.pull(Part("main", [0], [4096], [64]))  # refused before it began: no event at all
    rig.close()
    recorder.close()
    lines = read_lines(recorder.path)
    assert [line["kind"] for line in lines] == ["read_begin", "read_end"]
    assert lines[1]["ok"] is False
    assert "landed" not in lines[1]


def test_an_error_in_a_callback_stops_nothing_else(rig, caplog):
    rig.backend.submit("p0", [Part("main", [0], [0], [8])], WORK, lambda outcome: 1 / 0)
    assert rig.pull(Part("main", [8], [8], [8])).ok
    assert "its owner could not be told" in caplog.text


def longest_pauses(monkeypatch, copier, enough=0.0, tries=8):
    """Of a busy Python thread beside pulls of 32 MiB: its longest pause as a share of each copy, until one is `enough`."""
    size, spans = 32 << 20, []

    def timed(*args):
        begin = time.perf_counter()
        copies = copier(*args)
        spans.append((begin, time.perf_counter()))
        return copies

    monkeypatch.setattr(pull_shm, "copy_checked", timed)
    memory = SharedMemory.allocate(plan_layout([0], {"main": 1}, "bfloat16", blocks=1, block_size=size // 2))
    memory.bytes[:] = 1
    backend, target, shares = ShmPull(), np.ones(size, np.uint8), []
    backend.connect("p", memory)
    backend.register("main", target)
    while len(shares) < tries and min(shares, default=1) > enough:
        done, ticks = threading.Event(), [time.perf_counter()]
        backend.submit("p", [Part("main", [0], [0], [size])], WORK, lambda outcome, done=done: done.set())
        while not done.is_set():
            ticks.append(time.perf_counter())
        begin, end = spans.pop()
        inside = [begin, *(tick for tick in ticks if begin < tick < end), end]
        shares.append(max(b - a for a, b in itertools.pairwise(inside)) / (end - begin))
    backend.close()
    memory.close()
    return shares


def test_the_copy_runs_without_the_gil(monkeypatch):
    # on a busy machine it takes some tries until both threads have a core
    assert min(longest_pauses(monkeypatch, pull_shm.copy_checked, enough=0.6, tries=200)) <= 0.6


def test_the_check_sees_a_copy_that_holds_the_gil(monkeypatch):
    memmove = ctypes.PyDLL(None).memmove

    def copier(target, source, d, s, n):
        memmove(ctypes.c_void_p(target.ctypes.data), ctypes.c_void_p(source.ctypes.data), ctypes.c_size_t(int(n[0])))
        return 1

    assert statistics.median(longest_pauses(monkeypatch, copier, tries=9)) > 0.8


def test_two_streams_of_one_kind_share_the_work_and_kinds_do_not_wait_for_each_other():
    workers, hold, ended = CopyWorkers("two", threads=2), threading.Event(), queue.Queue()

    def job(kind, copy):
        return Job(kind, WORK, [], None, None, copy)

    def wait():
        hold.wait(10)
        return 0, 0

    workers.submit(job("read", wait), lambda outcome: ended.put("held"))
    workers.submit(job("read", lambda: (1, 1)), lambda outcome: ended.put("second"))
    assert ended.get(timeout=10) == "second"
    workers.submit(job("read", wait), lambda outcome: ended.put("held"))
    workers.submit(job("save", lambda: (1, 1)), lambda outcome: ended.put("save"))
    assert ended.get(timeout=10) == "save"
    hold.set()
    workers.close()
    with pytest.raises(RuntimeError, match="two is closed"):
        workers.submit(job("read", wait), ended.put)
