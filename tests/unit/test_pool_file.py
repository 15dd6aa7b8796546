"""The file pool: readable only when whole, write-once, pinned while read, first in first out, and nothing left
behind.
"""

import errno
import os
import queue
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from tidegate.engine import file_io, pool_file
from tidegate.engine.copying import Fault, Work
from tidegate.engine.pool_file import FilePool, Key, PoolError
from tidegate.engine.recorder import Recorder, content_tag, read_lines

KEY, SIZES, WORK = Key("run-1", 0), (96, 96), Work(slot=0, epoch=2, labels={"layer": 1})


def rows(seed):
    """A layer's main and indexer views: 64 and 32 bytes."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(4, 8, generator=generator).to(torch.bfloat16),
        torch.randn(4, 4, generator=generator).to(torch.bfloat16),
    ]


class Rig:
    def __init__(self, folder, **options):
        self.pool = FilePool(folder, **options)
        self.outcomes = queue.Queue()

    def save(self, layer, buffers, key=KEY):
        self.pool.save(key, layer, buffers, WORK, self.outcomes.put)

    def saved(self, layer, buffers, key=KEY):
        self.save(layer, buffers, key)
        return self.outcomes.get(timeout=10)

    def load(self, layer, key=KEY):
        buffers = [torch.zeros_like(view) for view in rows(0)]
        self.pool.load(key, layer, buffers, WORK, self.outcomes.put)
        return self.outcomes.get(timeout=10), buffers

    def whole(self, key=KEY):
        self.pool.allocate(key, SIZES)
        for layer in (0, 1):
            assert self.saved(layer, rows(layer), key).ok
        self.pool.finish(key)


@pytest.fixture
def hold():
    """What a copy waits for; set in any case at the end, so that a failed test does not leave a thread behind."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "pool")
    yield rig
    rig.pool.close()


def test_what_is_loaded_is_what_was_saved(rig):
    rig.pool.allocate(KEY, SIZES)
    assert rig.saved(1, rows(1)).bytes == 96
    assert rig.saved(0, rows(0)).ok
    assert not rig.pool.pin(KEY)
    assert [path.name for path in rig.pool.folder.iterdir()] == ["run-1-0.part"]
    rig.pool.finish(KEY)
    assert [path.name for path in rig.pool.folder.iterdir()] == ["run-1-0.kv"]
    assert rig.pool.pin(KEY)
    for layer in (1, 0):
        outcome, got = rig.load(layer)
        assert outcome.ok
        assert all(torch.equal(a, b) for a, b in zip(got, rows(layer), strict=True))


def test_a_miss_is_an_answer(rig):
    assert not rig.pool.pin(Key("other", 0))
    assert not rig.pool.evict(Key("other", 0))
    rig.pool.remove(Key("other", 0))


def test_an_object_is_not_finished_before_every_layer_is_saved(tmp_path, hold):
    rig = Rig(tmp_path / "pool", faults=lambda kind, work: Fault(hold=hold))
    rig.pool.allocate(KEY, SIZES)
    with pytest.raises(PoolError, match=r"layers \[0, 1\] are not saved"):
        rig.pool.finish(KEY)
    rig.save(0, rows(0))
    rig.save(1, rows(1))
    with pytest.raises(PoolError, match="not saved"):  # queued is not saved
        rig.pool.finish(KEY)
    hold.set()
    assert rig.outcomes.get(timeout=10).ok
    assert rig.outcomes.get(timeout=10).ok
    rig.pool.finish(KEY)
    rig.pool.close()


@pytest.mark.parametrize("mode", ["quiet", "unknown"])
def test_a_failed_save_never_becomes_readable(tmp_path, mode):
    faults = iter([None, Fault(mode)])
    rig = Rig(tmp_path / "pool", faults=lambda kind, work: next(faults))
    rig.pool.allocate(KEY, SIZES)
    rig.save(0, rows(0))
    rig.save(1, rows(1))
    ends = [rig.outcomes.get(timeout=10) for _ in range(3 if mode == "unknown" else 2)]
    assert [(end.ok, end.stopped) for end in ends[1:]] == (
        [(False, True)] if mode == "quiet" else [(False, False), (False, True)]
    )
    with pytest.raises(PoolError, match="spoilt by a failed save"):
        rig.pool.finish(KEY)
    with pytest.raises(PoolError, match="spoilt by a failed save"):
        rig.save(1, rows(1))
    assert not rig.pool.pin(KEY)
    rig.pool.remove(KEY)
    rig.pool.allocate(KEY, SIZES)
    rig.pool.close()


def test_a_disk_error_is_a_failed_save(rig, monkeypatch):
    def full(fd, pieces, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_io.os, "pwritev", full)
    rig.pool.allocate(KEY, SIZES)
    outcome = rig.saved(0, rows(0))
    assert (outcome.ok, outcome.stopped) == (False, True)
    assert "save of slot 0 epoch 2" in outcome.reason
    assert "No space left" in outcome.reason


def test_a_short_write_goes_on_and_a_short_file_fails(rig, monkeypatch):
    pwritev, preadv = os.pwritev, os.preadv
    monkeypatch.setattr(file_io.os, "pwritev", lambda fd, pieces, at: pwritev(fd, [pieces[0][:7]], at))
    rig.whole()
    monkeypatch.setattr(file_io.os, "preadv", lambda fd, pieces, at: preadv(fd, [pieces[0][:5]], at))
    rig.pool.pin(KEY)
    outcome, got = rig.load(1)
    assert outcome.ok
    assert all(torch.equal(a, b) for a, b in zip(got, rows(1), strict=True))
    os.truncate(rig.pool.folder / "run-1-0.kv", 100)
    outcome, _ = rig.load(1)
    assert not outcome.ok
    assert "92 bytes early" in outcome.reason


def test_keys_and_layers_are_written_once(rig):
    rig.pool.allocate(KEY, SIZES)
    with pytest.raises(PoolError, match="a key is written once"):
        rig.pool.allocate(KEY, SIZES)
    rig.saved(0, rows(0))
    with pytest.raises(PoolError, match="a layer is written once"):
        rig.save(0, rows(0))
    rig.saved(1, rows(1))
    rig.pool.finish(KEY)
    for again in (lambda: rig.save(0, rows(0)), lambda: rig.pool.finish(KEY)):
        with pytest.raises(PoolError, match="is finished"):
            again()
    with pytest.raises(PoolError, match="a key is written once"):
        rig.pool.allocate(KEY, SIZES)


def test_a_pin_keeps_from_eviction_and_order_is_that_of_use(rig):
    keys = [Key("r", chunk) for chunk in range(3)]
    for key in keys:
        rig.whole(key)
    assert rig.pool.evictable() == keys
    assert rig.pool.pin(keys[0])
    assert rig.pool.pin(keys[0])
    assert not rig.pool.evict(keys[0])
    rig.pool.unpin(keys[0])
    assert not rig.pool.evict(keys[0])
    rig.pool.unpin(keys[0])
    assert rig.pool.evictable() == [keys[1], keys[2], keys[0]]
    assert rig.pool.evict(keys[0])
    assert not rig.pool.pin(keys[0])
    with pytest.raises(PoolError, match="pin it before reading"):
        rig.load(0, keys[1])
    with pytest.raises(PoolError, match="taken back once"):
        rig.pool.unpin(keys[1])


def test_room_is_counted_and_given_back(tmp_path):
    rig = Rig(tmp_path / "pool", capacity=400)
    rig.whole(Key("a", 0))
    rig.pool.allocate(Key("b", 0), SIZES)
    with pytest.raises(PoolError, match="needs 192 bytes, 16 of 400 are free: evict first"):
        rig.pool.allocate(Key("c", 0), SIZES)
    assert not rig.pool.evict(Key("b", 0))  # unfinished
    assert rig.pool.evict(Key("a", 0))
    rig.pool.allocate(Key("c", 0), SIZES)
    rig.pool.close()


def test_a_full_disk_is_a_refused_allocation(rig, monkeypatch):
    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pool_file.os, "posix_fallocate", full)
    with pytest.raises(PoolError, match="has no room: No space left"):
        rig.pool.allocate(KEY, SIZES)
    assert list(rig.pool.folder.iterdir()) == []
    assert rig.pool.used == 0


WRONG = [
    (lambda rig: rig.save(2, rows(0)), r"has layers 0\.\.1, not 2"),
    (lambda rig: rig.save(0, rows(0)[:1]), "has 96 bytes, the buffers have 64"),
    (lambda rig: rig.save(0, [torch.zeros(8, 8).t()]), "not contiguous"),
    (lambda rig: rig.pool.allocate(Key("../x", 0), SIZES), "letters, digits"),
    (lambda rig: rig.pool.allocate(Key("x", -1), SIZES), "numbers start at 0"),
    (lambda rig: rig.pool.allocate(Key("x", 0), (5, 0)), "sizes at 1"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_sizes_and_names_are_refused(rig, call, message):
    rig.pool.allocate(KEY, SIZES)
    with pytest.raises(ValueError, match=message):
        call(rig)
    assert rig.saved(0, rows(0)).ok  # nothing was spoilt by it


def test_a_removed_object_lets_its_copy_end(tmp_path, hold):
    rig = Rig(tmp_path / "pool", faults=lambda kind, work: Fault(hold=hold))
    rig.pool.allocate(KEY, SIZES)
    before = len(os.listdir("/proc/self/fd"))
    rig.save(0, rows(0))
    rig.pool.remove(KEY)
    assert list(rig.pool.folder.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before  # the copy still needs the file
    hold.set()
    assert rig.outcomes.get(timeout=10).ok
    assert len(os.listdir("/proc/self/fd")) == before - 1
    rig.pool.close()


def test_a_failure_that_has_not_stopped_keeps_its_file_open(tmp_path, hold):
    rig = Rig(tmp_path / "pool", faults=lambda kind, work: Fault("unknown", hold=hold))
    rig.pool.allocate(KEY, SIZES)
    before = len(os.listdir("/proc/self/fd"))
    rig.save(0, rows(0))
    assert not rig.outcomes.get(timeout=10).stopped
    rig.pool.remove(KEY)
    assert len(os.listdir("/proc/self/fd")) == before  # its number must not become another object's while a write is due
    hold.set()
    last = rig.outcomes.get(timeout=10)
    assert (last.stopped, last.bytes) == (True, 96)
    assert len(os.listdir("/proc/self/fd")) == before - 1
    rig.pool.close()


def test_copies_run_in_the_order_of_submission(tmp_path, hold):
    order = []
    rig = Rig(tmp_path / "pool", faults=lambda kind, work: Fault(hold=hold) if not order.append(work.epoch) else None)
    rig.pool.allocate(KEY, [8] * 20)
    for layer in range(20):
        rig.pool.save(KEY, layer, [np.zeros(8, np.uint8)], Work(slot=0, epoch=layer), rig.outcomes.put)
    assert order in ([], [0])  # the second has not begun
    hold.set()
    rig.pool.close()
    assert order == list(range(20))


def test_nothing_is_left_and_a_folder_has_one_owner(tmp_path):
    rig = Rig(tmp_path / "deep" / "pool")
    rig.whole()
    rig.pool.allocate(Key("half", 0), SIZES)
    with pytest.raises(PoolError, match="belongs to a pool that is running"):
        FilePool(rig.pool.folder)
    rig.pool.close()
    rig.pool.close()
    assert not rig.pool.folder.exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    Rig(tmp_path / "mine").pool.close()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


KILLED = """
import sys, signal, numpy
from tidegate.engine.pool_file import FilePool, Key
pool = FilePool(sys.argv[1])
pool.allocate(Key("dead", 0), [8])
print("ready", flush=True)
signal.pause()
"""


def test_what_a_killed_pool_left_is_swept(tmp_path):
    folder = tmp_path / "pool"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [path.name for path in folder.iterdir()] == ["dead-0.part"]
    pool = FilePool(folder)
    assert list(folder.iterdir()) == []
    pool.close()


def test_events_name_the_slot_bytes_and_what_landed(tmp_path):
    recorder, memory = Recorder(tmp_path / "t.jsonl", "prefill-0"), np.arange(256, dtype=np.uint8)
    pool, outcomes = FilePool(tmp_path / "pool", recorder=recorder, origin=memory), queue.Queue()
    pool.allocate(KEY, [48])
    pool.save(KEY, 0, [memory[32:64], memory[128:144]], WORK, outcomes.put)
    assert outcomes.get(timeout=10).ok
    pool.finish(KEY)
    pool.pin(KEY)
    pool.load(KEY, 0, [memory[64:112]], Work(slot=1, epoch=9), outcomes.put)
    pool.close()
    recorder.close()
    lines = read_lines(recorder.path)
    tag = content_tag(np.arange(32, 64, dtype=np.uint8), np.arange(128, 144, dtype=np.uint8))
    common = {"pool_run": "run-1", "pool_chunk": 0, "pool_layer": 0}
    assert [line["kind"] for line in lines] == ["save_begin", "save_end", "load_begin", "load_end"]
    save = common | {"slot": 0, "epoch": 2, "layer": 1, "tag": tag}
    assert lines[0] | save | {"ranges": [[32, 0, 32], [128, 32, 16]]} == lines[0]
    assert lines[1] | save | {"ok": True, "bytes": 48} == lines[1]
    assert lines[2] | common | {"slot": 1, "epoch": 9, "ranges": [[0, 64, 48]]} == lines[2]
    assert lines[3] | common | {"ok": True, "landed": tag} == lines[3]
    assert "tag" not in lines[3]
