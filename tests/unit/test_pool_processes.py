"""One pool, several processes: what a killed one leaves is taken back, and nothing that a living one uses."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from pool_tools import KEYS, LAYOUT, Rig, content

from tidegate.engine import pool_client, pool_folder
from tidegate.engine.pool_client import Client, is_alive, this_process
from tidegate.engine.pool_folder import new_folder, sweep
from tidegate.engine.pool_interface import PoolError
from tidegate.engine.pool_layout import ExtentLayout
from tidegate.engine.pool_local import LocalPool

A, B, C, D, E, F = KEYS[:6]
TESTS = Path(__file__).resolve().parent.parent

OTHER = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
from pool_tools import *
from tidegate.engine.copying import Fault
A, B, C, D, E, F = KEYS[:6]
def reached():
    print("reached", flush=True)
    signal.pause()
"""
STAGES = {
    "allocated": "rig.pool.allocate([A, B], [4, 4]); reached()",
    "in the middle of a copy": """
hold = threading.Event()
rig.pool._workers._faults = lambda kind, work: print("reached", flush=True) or Fault(hold=hold)
rig.pool.allocate([A, B], [4, 4]); rig.begin_save([A, B], 0, [content(0, 0, 4)] * 2); signal.pause()""",
    "one layer saved": "rig.pool.allocate([A, B], [4, 4]); rig.save([A, B], 0, [content(0, 0, 4)] * 2); reached()",
    "not finished": """
rig.pool.allocate([A, B], [4, 4])
for layer in (0, 1): rig.save([A, B], layer, [content(0, layer, 4)] * 2)
reached()""",
    "in a transaction": """
with rig.pool._folder.env.begin(write=True) as txn:
    for table in rig.pool._index._tables.values(): txn.drop(table, delete=False)
    reached()""",
    "while it reads the index": "rig.pool.allocate([A, B], [4, 4]); txn = rig.pool._folder.env.begin(); reached()",
}


@contextmanager
def other(code, folder, rig="rig = Rig(sys.argv[2])"):
    """Another process with the same pool, which has come to `reached`."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER + rig + "\n" + code, str(TESTS), str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        assert line == "reached\n", line
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "pool")
    yield rig
    rig.pool.close()
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_killed_writer_left_is_taken_back(rig, stage):
    rig.whole([F])
    with other(STAGES[stage], rig.pool.path) as process:
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and its parent has not looked: a zombie
        assert rig.pool.lookup([A]) == 0
        assert rig.holds([F])
        assert rig.pool.allocate([A, B, C], [4, 4, 4]) == ["new"] * 3  # in the place of what is dead, evicting nothing
        assert rig.holds([F])
    rig.pool.recover()
    assert rig.pool.stats() | {"objects": 4, "holds": 3, "processes": 1, "free": 0, "evicted": 0} == rig.pool.stats()


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "in a transaction"])
def test_nothing_is_taken_from_a_living_writer(rig, stage):
    with other(STAGES[stage], rig.pool.path) as process:
        process.send_signal(signal.SIGSTOP)  # it lives, however long it says nothing
        assert rig.pool.recover() == 0
        assert rig.pool.allocate([A, C, D, E], [4] * 4) == ["busy", "new", "new", "full"]
        with pytest.raises(PoolError, match=f"being written by process {process.pid}"):
            rig.pool.remove([A])
    assert rig.pool.allocate([A, E], [4] * 2) == ["new"] * 2


def test_what_others_finished_is_read_and_their_pins_keep_it(rig):
    code = "rig.whole([A, B], seed=5); rig.pool.pin([B]); reached()"
    with other(code, rig.pool.path) as process:
        assert rig.holds([A, B], seed=5)
        assert rig.pool.evict([A, B]) == [True, False]
        rig.pool.remove([B])
        assert rig.pool.lookup([B]) == 0
        assert rig.pool.allocate([C, D, E, F], [4] * 4) == ["new", "new", "new", "full"]
        process.kill()
        process.wait()
        assert rig.pool.allocate([F], [4]) == ["new"]


def test_what_a_dead_reader_held_can_be_evicted(rig):
    rig.whole([A, B])
    with other("rig.pool.pin([A]); reached()", rig.pool.path) as process:
        assert rig.pool.evict([A, B]) == [False, True]
        process.kill()
        process.wait()
        assert rig.pool.evict([A]) == [False]
        assert rig.pool.recover() == 1
        assert rig.pool.evict([A]) == [True]


def test_an_orderly_end_gives_back_too_and_the_last_one_cleans_up(tmp_path):
    with other("rig.whole([A]); rig.pool.allocate([B], [4]); print('reached', flush=True); input(); rig.pool.close(); reached()",
               tmp_path / "pool", rig="sys.stdin = open(0); rig = Rig(sys.argv[2])") as process:  # fmt: skip
        rig = Rig(tmp_path / "pool")
        assert rig.pool.allocate([B], [4]) == ["busy"]
        rig.pool.close()
        assert (tmp_path / "pool" / "arena").exists()
        assert process.poll() is None
    assert (tmp_path / "pool").exists()  # it was killed
    rig = Rig(tmp_path / "pool")
    assert rig.pool.lookup([A]) == 0
    assert rig.pool.stats()["processes"] == 1
    rig.pool.close()
    assert list(tmp_path.iterdir()) == []


CREATION = {
    "the folder is there": "from pathlib import Path; Path(sys.argv[2]).mkdir(0o700); reached()",
    "the arena is there": "from tidegate.engine import pool_folder; pool_folder.lmdb.open = lambda *a, **k: reached(); Rig(sys.argv[2])",
    "it is open": "rig = Rig(sys.argv[2]); rig.whole([A]); reached()",
}


@pytest.mark.parametrize("stage", CREATION)
@pytest.mark.parametrize("how", ["next start", "sweep"])
def test_a_killed_pool_leaves_nothing_that_a_next_start_does_not_clear(stage, how):
    folder = new_folder()
    with other(CREATION[stage], folder, rig=""):
        assert folder.exists()
        if stage == "it is open":
            sweep()
            assert (folder / "arena").exists()
    assert folder.exists()
    if how == "sweep":
        assert sweep() >= 1
    else:
        rig = Rig(folder)
        assert rig.pool.lookup([A]) == 0
        rig.whole([A, B, C, D])
        rig.pool.close()
    assert not folder.exists()


RUN = """
from tidegate.engine.pool_folder import run_folder
folder, lock = run_folder()
folder.rename(sys.argv[2])
(Path(sys.argv[2]) / "model").mkdir()
reached()
"""


def test_the_folder_of_a_run_is_swept_once_its_parent_and_its_pool_are_dead():
    folder = new_folder().with_name(f"tidegate-run-{os.geteuid()}-{os.getpid()}")
    with other("from pathlib import Path" + RUN, folder, rig="") as parent:
        rig = Rig(folder / "pool")
        sweep()
        assert (folder / "model").exists()
        parent.kill()
        parent.wait()
        rig.whole([A])
        sweep()
        assert rig.holds([A])
        rig.pool.close()
        assert sweep() >= 1
    assert not folder.exists()


DIFFERENT = [
    (lambda path: LocalPool(LAYOUT, 5, folder=path), "extents 4, not 5"),
    (lambda path: LocalPool(ExtentLayout(4, LAYOUT.layers, "rank 1"), 4, folder=path), "layout .*test.* not .*rank 1"),
]


@pytest.mark.parametrize(("opens", "message"), DIFFERENT)
def test_users_of_a_pool_agree_on_it(tmp_path, opens, message):
    with other("reached()", tmp_path / "pool"), pytest.raises(PoolError, match=message):
        opens(tmp_path / "pool")


def test_ids_of_another_name_space_say_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_folder, "pid_namespace", lambda: 1)
    with other("reached()", tmp_path / "pool"), pytest.raises(PoolError, match=r"pid_namespace \d+, not 1"):
        Rig(tmp_path / "pool")


def test_who_counts_as_dead(monkeypatch):
    me = this_process()
    assert is_alive(me)
    assert Client.unpack(me.pack()) == me
    assert not is_alive(Client(me.pid, me.started - 1))  # the id has come back
    assert not is_alive(Client(2**22 + 1, 1))  # beyond any id
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    zombie = Client(child.pid, pool_client._stat(child.pid)[1])
    assert not is_alive(zombie)
    child.wait()
    assert not is_alive(zombie)
    code = "import ctypes, threading; threading.Thread(target=input).start(); ctypes.CDLL(None).pthread_exit(None)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        while pool_client._stat(child.pid)[0] != "Z":
            time.sleep(0.001)
        assert is_alive(Client(child.pid, pool_client._stat(child.pid)[1]))  # its first thread has ended, another runs
        child.kill()

    def hidden(pid):
        raise PermissionError

    monkeypatch.setattr(pool_client, "_stat", hidden)
    assert is_alive(me)


STRESS = """
import random
rig = Rig(sys.argv[2], extents=6)
random.seed(int(sys.argv[3]))
print("reached", flush=True)
for step in range(int(sys.argv[4])):
    first = random.randrange(12)
    keys = KEYS[first : first + random.randint(1, 3)]
    if random.random() < 0.5:
        for key, answer in zip(keys, rig.pool.allocate(keys, [4] * len(keys))):
            if answer == "new":
                for layer in (0, 1): assert rig.save([key], layer, [content((0, key), layer, 4)]).ok
                if random.random() < 0.8: rig.pool.finish([key])
                else: rig.pool.remove([key])
    elif count := rig.pool.pin(keys):
        rig.pool.unpin(keys[:count])
        if random.random() < 0.3: rig.pool.evict(keys)
        else: rig.holds(keys[:count])
rig.pool.close()
"""


def test_several_at_once_with_sudden_deaths(tmp_path):
    """Three processes write, read and evict the same objects; two are killed somewhere; the others find right bytes only, and at
    the end everything is accounted for."""
    steps = 4000 if os.environ.get("TIDEGATE_LONG") else 300
    rig = Rig(tmp_path / "pool", extents=6)
    start = [sys.executable, "-c", OTHER + STRESS, str(TESTS), str(rig.pool.path)]
    for round_ in range(6 if os.environ.get("TIDEGATE_LONG") else 1):
        count = [steps, 10**9, 10**9]
        processes = [subprocess.Popen([*start, str(3 * round_ + i), str(n)], stdout=subprocess.PIPE) for i, n in enumerate(count)]
        for process in processes:
            assert process.stdout.readline() == b"reached\n"
        for key in KEYS[:6]:
            rig.holds([key])
        assert processes[0].wait() == 0
        for process in processes[1:]:
            assert process.poll() is None, "it found a wrong byte"
            process.kill()
            process.wait()
        for process in processes:
            process.stdout.close()
        rig.pool.recover()
        found = rig.pool.stats()
        assert found["objects"] == found["evictable"] == 6 - found["free"]
        assert (found["holds"], found["processes"]) == (0, 1)
        for key in KEYS:
            rig.holds([key])
    rig.pool.close()


def test_the_content_of_tests_is_the_same_in_every_process():
    code = OTHER + "print(content((5, A), 1, 4)[0].tobytes().hex())"
    out = subprocess.run([sys.executable, "-c", code, str(TESTS)], capture_output=True, text=True, check=True).stdout
    assert out.strip() == content((5, A), 1, 4)[0].tobytes().hex()
