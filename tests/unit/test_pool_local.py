"""The local pool: readable only when whole, write-once, pinned while read, the least recently used goes first, always clean."""

import os
import re
import stat
import threading

import numpy as np
import pytest
from pool_tools import GAP, KEYS, LAYOUT, WORK, Rig, content, keys_of

from tidegate.engine.copying import Fault, Work
from tidegate.engine.pool_folder import new_folder, sweep
from tidegate.engine.pool_interface import PoolError
from tidegate.engine.pool_layout import ExtentLayout
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.recorder import Recorder, content_tag, read_lines

A, B, C, D, E, F = KEYS[:6]


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.pool.close()


@pytest.fixture
def hold():
    """What a copy waits for; set in any case at the end, so that a failed test does not leave a thread behind."""
    event = threading.Event()
    yield event
    event.set()


def areas(rows=4, seed=0):
    return [content(seed, layer, rows) for layer in (0, 1)]


def test_what_is_loaded_is_what_was_saved_once_it_is_finished(rig):
    assert rig.pool.allocate([A, B], [4, 4]) == ["new", "new"]
    for layer in (1, 0):
        assert rig.save([A, B], layer, [content((0, key), layer, 4) for key in (A, B)]).bytes == 2 * 4 * sum(LAYOUT.layers[layer])
        assert rig.pool.lookup([A, B]) == 0
        assert rig.pool.pin([A, B]) == 0
    rig.pool.finish([A, B])
    assert rig.pool.lookup([A, B, C]) == 2
    assert rig.holds([A, B])


def test_a_miss_is_an_answer(rig):
    rig.whole([A, C])
    assert rig.pool.lookup([A, B, C]) == 1
    assert rig.pool.pin([B, A]) == 0
    assert rig.pool.pin([A, B, C]) == 1
    rig.pool.unpin([A])
    assert rig.pool.evict([B]) == [False]
    rig.pool.remove([B])


def test_a_short_block_is_loaded_with_its_own_rows(rig):
    rig.whole([A], rows=4)
    rig.whole([B], rows=3)
    assert rig.holds([A])
    assert rig.holds([B], rows=3)
    rig.pool.pin([B])
    _, got = rig.load([B], 0, [3])
    assert [part.size for part in got[0]] == [3 * 24, 3 * 8]
    for wrong in (0, 5):
        with pytest.raises(ValueError, match="an extent of this pool holds 1 to 4"):
            rig.pool.allocate([C], [wrong])
    with pytest.raises(PoolError, match="stored with 3 rows, not 4: two contents have one key"):
        rig.pool.allocate([C, B], [4, 4])
    assert rig.pool.allocate([C], [4]) == ["new"]  # all or none: the refused call began nothing


def test_an_object_is_not_finished_before_every_layer_of_it_is_saved(hold):
    rig = Rig(faults=lambda kind, work: Fault(hold=hold))
    rig.pool.allocate([A, B], [4, 4])
    with pytest.raises(PoolError, match=r"layers \[0, 1\] are not saved"):
        rig.pool.finish([A])
    for layer in (0, 1):
        rig.begin_save([A, B][: 2 - layer], layer, [areas()[layer]] * (2 - layer))
    with pytest.raises(PoolError, match="not saved"):  # queued is not saved
        rig.pool.finish([A])
    hold.set()
    assert all(rig.outcomes.get(timeout=10).ok for _ in (0, 1))
    with pytest.raises(PoolError, match=rf"{B.hex()} cannot be finished: layers \[1\]"):
        rig.pool.finish([A, B])
    assert rig.pool.lookup([A]) == 0  # all or none
    rig.pool.finish([A])
    assert rig.pool.lookup([A]) == 1
    rig.pool.close()


@pytest.mark.parametrize("mode", ["quiet", "unknown"])
def test_a_failed_save_never_becomes_readable(mode):
    faults = iter([None, Fault(mode)])
    rig = Rig(faults=lambda kind, work: next(faults, None))
    rig.pool.allocate([A, B], [4, 4])
    assert rig.save([A, B], 0, [areas()[0]] * 2).ok
    ends = [rig.save([A], 1, [areas()[1]])]
    while not ends[-1].stopped:
        ends.append(rig.outcomes.get(timeout=10))
    assert [(end.ok, end.stopped) for end in ends] == ([(False, True)] if mode == "quiet" else [(False, False), (False, True)])
    for again in (lambda: rig.pool.finish([A]), lambda: rig.save([A], 1, [areas()[1]])):
        with pytest.raises(PoolError, match="spoilt by a failed save"):
            again()
    assert rig.pool.pin([A]) == 0
    assert rig.pool.allocate([A], [4]) == ["busy"]
    rig.pool.remove([A])
    assert rig.save([B], 1, [areas()[1]]).ok  # its neighbour in the call has no part in it
    rig.pool.finish([B])
    rig.whole([C, D])
    rig.pool.close()


def test_keys_and_layers_are_written_once(rig):
    rig.pool.allocate([A], [4])
    assert rig.pool.allocate([A, B, A], [4, 4, 4]) == ["busy", "new", "busy"]
    rig.save([A], 0, [areas()[0]])
    with pytest.raises(PoolError, match="a layer is written once"):
        rig.save([B, A], 0, [areas()[0]] * 2)
    rig.save([A], 1, [areas()[1]])
    rig.pool.finish([A])
    for again in (lambda: rig.save([A], 0, [areas()[0]]), lambda: rig.pool.finish([A])):
        with pytest.raises(PoolError, match="not being written by this process"):
            again()
    assert rig.pool.allocate([A], [4]) == ["stored"]


def test_a_save_into_what_is_stored_moves_no_byte(rig):
    rig.whole([A], seed="first")
    assert rig.pool.allocate([A, B], [4, 4], pin=True) == ["stored", "new"]
    for layer in (0, 1):
        outcome = rig.save([A, B], layer, [content(("second", key), layer, 4) for key in (A, B)])
        assert (outcome.ok, outcome.bytes) == (True, 4 * sum(LAYOUT.layers[layer]))
    rig.pool.finish([B])
    assert rig.pool.evict([A, B]) == [False, True]  # the stored one is pinned
    rig.pool.unpin([A])
    assert rig.holds([A], seed="first")


def test_the_least_recently_used_object_that_nobody_holds_makes_room(rig):
    for key in (A, B, C, D):
        rig.whole([key])
    assert rig.pool.pin([B]) == 1
    assert rig.holds([A])  # used later than C
    assert rig.pool.allocate([E], [4]) == ["new"]
    assert [rig.pool.lookup([key]) for key in (A, B, C, D)] == [1, 1, 0, 1]
    assert rig.pool.allocate([F], [4]) == ["new"]
    assert [rig.pool.lookup([key]) for key in (A, B, C, D)] == [1, 1, 0, 0]
    assert rig.pool.stats() | {"evicted": 2, "free": 0, "objects": 4, "evictable": 1} == rig.pool.stats()


def test_of_a_chain_the_end_goes_first(rig):
    rig.whole([A, B, C], pin=True)
    rig.pool.unpin([A, B, C])
    rig.pool.allocate([D, E], [4, 4])
    assert rig.pool.lookup([A, B, C]) == 2
    rig.pool.allocate([F], [4])
    assert rig.pool.lookup([A, B, C]) == 1
    other = Rig()
    other.whole([A, B, C])
    other.pool.allocate([D, E], [4, 4])
    assert other.pool.lookup([A, B, C]) == 2
    other.pool.close()


def test_full_of_what_is_held_is_an_answer(rig):
    rig.whole([A, B], pin=True)
    assert rig.pool.allocate([C, D, E, A], [4] * 4) == ["new", "new", "full", "stored"]
    assert not rig.pool.stats()["free"]
    rig.pool.unpin([A])
    assert rig.pool.allocate([E], [4]) == ["new"]
    assert rig.pool.lookup([A]) == 0


def test_each_pin_is_taken_back_once(rig):
    rig.whole([A, B], pin=True)
    rig.pool.pin([A])
    with pytest.raises(PoolError, match="each pin is taken back once"):
        rig.pool.unpin([B, A, A, A])
    rig.pool.unpin([A])
    assert rig.pool.evict([A]) == [False]
    rig.pool.unpin([A])
    assert rig.pool.evict([A, B]) == [True, False]
    with pytest.raises(PoolError, match="pin it before reading"):
        rig.load([A], 0, [4])


def test_a_pin_lasts_while_it_is_used_and_ends_by_itself():
    now = [1000.0]
    rig = Rig(pin_seconds=10, clock=lambda: now[0])
    rig.whole([A, B, C, D], pin=True)
    for _ in range(5):
        now[0] += 6
        assert rig.load([A], 0, [4])[0].ok
    assert rig.pool.allocate([E, F], [4, 4]) == ["new", "new"]  # pins of B, C, D are over; A's is not
    assert rig.pool.lookup([A]) == 1
    with pytest.raises(PoolError, match="a pin has expired"):
        rig.load([C], 0, [4])
    with pytest.raises(PoolError, match="a pin has expired"):
        rig.begin_save([D], 0, [areas()[0]])  # as if it were stored
    assert rig.pool.pin([C]) == 0
    rig.pool.remove([A])
    now[0] += 100
    assert rig.pool.allocate([C], [4]) == ["new"]
    rig.pool.unpin([C])  # the old pin of C, nothing of the new C
    assert rig.pool.stats()["holds"] == 4
    assert rig.save([C], 0, [areas()[0]]).ok
    rig.pool.close()


def test_what_is_being_written_has_no_expiry():
    now = [0.0]
    rig = Rig(extents=1, pin_seconds=1, clock=lambda: now[0])
    rig.pool.allocate([A], [4])
    now[0] = 1000.0
    assert rig.pool.recover() == 0
    assert rig.pool.allocate([B], [4]) == ["full"]
    rig.pool.close()


def test_a_load_that_outlasts_its_pin_has_failed(hold):
    now = [0.0]
    rig = Rig(pin_seconds=10, clock=lambda: now[0], faults=lambda kind, work: Fault(hold=hold) if kind == "load" else None)
    rig.whole([A], pin=True)
    memory, offsets = rig._memory(0, [4])
    rig.pool.load([A], 0, memory, offsets, WORK, rig.outcomes.put)
    now[0] = 10.0
    hold.set()
    outcome = rig.outcomes.get(timeout=10)
    assert (outcome.ok, outcome.stopped) == (False, True)
    assert "the pin expired while the copy ran" in outcome.reason
    rig.pool.close()


@pytest.mark.parametrize("mode", ["ok", "unknown"])
def test_memory_is_given_back_only_when_its_copy_has_stopped(hold, mode):
    rig = Rig(extents=2, faults=lambda kind, work: Fault(mode, hold=hold) if work.epoch == 7 else None)
    rig.whole([A], pin=True)
    rig.pool.allocate([B], [4])
    memory, offsets = rig._memory(0, [4])
    rig.pool.save([B], 0, memory, offsets, Work(0, 7), rig.outcomes.put)
    rig.pool.load([A], 0, memory, offsets, Work(0, 7), rig.outcomes.put)
    rig.pool.remove([B])
    rig.pool.unpin([A])
    assert rig.pool.evict([A]) == [False]
    assert rig.pool.allocate([C], [4]) == ["full"]
    assert rig.pool.allocate([B], [4]) == ["busy"]
    with pytest.raises(PoolError, match="not being written"):
        rig.save([B], 1, [areas()[1]])
    hold.set()
    while rig.pool.stats()["holds"]:
        rig.outcomes.get(timeout=10)
    assert rig.pool.allocate([C, D], [4, 4]) == ["new", "new"]
    rig.pool.close()


def test_what_is_removed_is_found_by_nobody_and_stays_for_its_readers(rig):
    rig.whole([A, B], pin=True)
    rig.pool.remove([A, B, C])
    assert rig.pool.lookup([A]) == 0
    assert rig.pool.pin([A]) == 0
    assert rig.pool.allocate([A], [4]) == ["busy"]
    assert rig.load([A], 0, [4])[0].ok
    rig.pool.unpin([A])
    assert rig.pool.allocate([A], [4]) == ["new"]
    assert rig.pool.stats()["objects"] == 2


HERE = np.array([[0, 96]])
WRONG = [
    (lambda rig: rig.pool.save([A], 2, np.zeros(200, np.uint8), HERE, WORK, None), r"layer is 2: an object has layers 0\.\.1"),
    (lambda rig: rig.pool.save([A], 0, np.zeros(200, np.uint8), np.array([[0]]), WORK, None), r"offsets of shape \(1, 1\)"),
    (lambda rig: rig.pool.save([A], 0, np.zeros(200, np.uint8), np.array([[0.0, 1.0]]), WORK, None), "one whole number"),
    (lambda rig: rig.pool.save([A], 0, np.zeros(127, np.uint8), HERE, WORK, None), "leaves the source of 127 bytes"),
    (lambda rig: rig.pool.save([A], 0, np.zeros(200, np.uint8), np.array([[-1, 96]]), WORK, None), "leaves the source"),
    (lambda rig: rig.pool.save([A], 0, np.zeros((20, 20), np.uint8).T, HERE, WORK, None), "not contiguous"),
    (lambda rig: rig.pool.load([B], 0, bytes(200), HERE, WORK, None), "destination is read-only"),
    (lambda rig: rig.pool.load([B], 0, np.zeros(127, np.uint8), HERE, WORK, None), "the destination of 127 bytes"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_places_are_refused_and_spoil_nothing(rig, call, message):
    rig.whole([B], pin=True)
    rig.pool.allocate([A], [4])
    with pytest.raises(ValueError, match=message):
        call(rig)
    assert rig.save([A], 0, [areas()[0]]).ok
    assert rig.holds([B])
    rig.pool.unpin([B])
    assert rig.pool.evict([B]) == [True]


def test_copies_run_in_the_order_of_submission(hold):
    order = []
    rig = Rig(extents=16, faults=lambda kind, work: Fault(hold=hold) if not order.append(work.epoch) else None)
    rig.pool.allocate(KEYS, [4] * 16)
    for epoch, key in enumerate(KEYS):
        rig.begin_save([key], 0, [areas()[0]], Work(0, epoch))
    assert order in ([], [0])  # the second has not begun
    hold.set()
    rig.pool.close()
    assert order == list(range(16))


def test_events_name_the_bytes_and_what_landed(tmp_path):
    with Recorder(tmp_path / "t.jsonl", "prefill-0") as recorder:
        rig = Rig(recorder=recorder)
        rig.whole([A], seed=1)
        rig.pool.allocate([A, B], [4, 3], pin=True)
        rig.save([A, B], 0, [content((1, A), 0, 4), content(2, 0, 3)], Work(3, 9, {"layer": 1, "pool_chunk": 2}))
        rig.load([A], 0, [4])
        rig.load([A], 0, [4], part_of_write=True)
        rig.pool.close()
    lines = [line for line in read_lines(recorder.path) if line["kind"].startswith("load") or line["epoch"] == 9]
    stored, new = content((1, A), 0, 4), content(2, 0, 3)
    tag = content_tag(stored[0], new[0], stored[1], new[1])  # area after area
    assert [line["kind"] for line in lines] == ["save_begin", "save_end", "load_begin", "load_end"]  # no part of a write
    named = {"slot": 3, "epoch": 9, "layer": 1, "pool_chunk": 2, "tag": tag}
    assert lines[0] | named == lines[0]
    assert lines[1] | named | {"ok": True, "bytes": 96} == lines[1]
    sources = [[entry[0], entry[2]] for entry in lines[0]["ranges"]]
    assert sources == [[GAP, 96], [GAP + 128 + GAP, 72], [GAP + 96, 32], [GAP + 128 + GAP + 72, 24]]
    assert lines[2]["ranges"] == [[0, GAP, 96], [96, GAP + 96, 32]]
    assert lines[3] | {"ok": True, "landed": content_tag(*stored)} == lines[3]


def test_the_folder_is_private_and_gone_at_the_end(tmp_path):
    old = os.umask(0)
    try:
        rig = Rig(tmp_path / "deep" / "pool")
    finally:
        os.umask(old)
    rig.whole([A])
    found = [path for path in (tmp_path / "deep").rglob("*") if path.name != "pool" or path.is_dir()]
    assert len(found) == 7  # pool, arena, header, users, index, data.mdb, lock.mdb
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    rig.pool.close()
    rig.pool.close()
    assert list((tmp_path / "deep").iterdir()) == []


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "mine").mkdir(0o700)
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    (tmp_path / "open").mkdir(0o755)
    for name, message in (("mine", r"holds other things \(notes.txt\)"), ("open", r"open to other users \(mode 755\)")):
        with pytest.raises(PoolError, match=message):
            Rig(tmp_path / name)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert (tmp_path / "open").is_dir()
    rig = Rig(tmp_path / "later")
    (tmp_path / "later" / "notes.txt").write_text("keep")
    rig.pool.close()
    assert [path.name for path in (tmp_path / "later").iterdir()] == ["notes.txt"]


def test_shared_memory_that_is_not_there_is_a_clear_error_at_the_start():
    before = set(new_folder().parent.iterdir())
    layout = ExtentLayout(128, ((1 << 20,),) * 64)
    with pytest.raises(PoolError, match=r"a pool of 1048576 blocks of \d+ bytes needs \d+ bytes, \S+ has \d+ free .*make the pool smaller"):
        LocalPool(layout, 1 << 20)
    assert set(new_folder().parent.iterdir()) == before
    for wrong in ({"extents": 0}, {"extents": 1, "pin_seconds": 0}):
        with pytest.raises(ValueError, match="room for one object, and a pin lasts"):
            LocalPool(LAYOUT, **wrong)


def test_a_pool_is_opened_once_in_a_process_and_closes_all_the_same(tmp_path):
    rig = Rig(tmp_path / "pool")
    with pytest.raises(PoolError, match="a process opens a pool once"):
        Rig(tmp_path / "pool")
    rig.whole([A])
    assert rig.holds([A])
    rig.pool.close()
    assert not (tmp_path / "pool").exists()


def test_a_sweep_takes_nothing_from_the_living():
    rig = Rig()
    empty = new_folder()
    empty.mkdir(0o700)  # its maker died at once
    assert re.fullmatch(r"tidegate-pool-\d+-[0-9a-f]{16}", rig.pool.path.name)
    assert sweep() >= 1
    assert not empty.exists()
    rig.whole([A])
    assert rig.holds([A])
    rig.pool.close()


def test_keys_of_tokens_find_their_prefix(rig):
    mine, theirs = keys_of(range(12), (4, 8, 12)), keys_of([*range(8), 77, 78, 79, 80], (4, 8, 12))
    rig.whole(mine)
    assert rig.pool.lookup(theirs) == 2
