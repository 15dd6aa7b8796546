"""A process that cannot go on ends, with a code that says so; memory that is not there is an error before anything is in it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tidegate.engine import slots
from tidegate.engine.endings import FAILED
from tidegate.engine.slot_layout import plan_layout
from tidegate.spec.paths import root

WORKER = """
import threading
from tidegate.engine import worker_io
{before}
def body(parent):
    parent.watch(lambda: None, server=None)
    def dies():
        raise ValueError("no more")
    threading.Thread(target=dies, name="gate-keeper").start()
    threading.Event().wait(1)
worker_io.run_worker("prefill", body)
"""


@pytest.mark.parametrize(("before", "code"), [("", FAILED), ("worker_io.end_with_any_thread = lambda fail: None", 0)],
                         ids=["as it is", "planted: nobody looks"])  # fmt: skip
def test_a_thread_that_dies_ends_its_process(before: str, code: int) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER.replace("{before}", before)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    assert worker.stdout is not None
    assert worker.stdin is not None
    with worker.stdout, worker.stdin:
        said = worker.stdout.read()
    assert (worker.wait(60), b"prefill: gate-keeper failed: no more" in said) == (code, code == FAILED)


def test_layer_buffers_are_there_when_they_are_allocated() -> None:
    """Not at the first write, where what is missing is a SIGBUS."""
    memory = slots.SharedMemory.allocate(layout := plan_layout([0, 1], {"main": 576}, "bfloat16", blocks=64, block_size=64))
    assert os.stat(memory._fd).st_blocks * 512 >= layout.size
    memory.close()
    promised = os.memfd_create("promised")
    os.ftruncate(promised, layout.size)
    assert os.stat(promised).st_blocks == 0, "this test would not see memory that is only promised"
    os.close(promised)


FULL = """
import resource, sys
from pathlib import Path
from tidegate.engine import slots, slot_layout
from tidegate.engine.pool_layout import ExtentLayout
from tidegate.engine.pool_local import LocalPool
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    {what}
except OSError as error:
    print(error)
"""
WANTED = {
    "layer buffers": 'slots.SharedMemory.allocate(slot_layout.plan_layout([0], {"main": 576}, "bfloat16", blocks=64, block_size=64))',
    "the pool": 'LocalPool(ExtentLayout(64, ((1024,), (1024,)), "test"), 16, folder=Path(sys.argv[1]) / "pool")',
}


@pytest.mark.parametrize("what", WANTED)
def test_shared_memory_that_is_full_is_one_error_and_nothing_is_left(what: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", FULL.replace("{what}", WANTED[what]), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "File too large" in done.stdout
    assert "make the pool smaller" in done.stdout or "give fewer shared buffers" in done.stdout
    assert list(tmp_path.iterdir()) == []


SERVER = """
import os, resource, sys
from tidegate.engine import slots, slot_layout
memory = slots.SharedMemory.allocate(slot_layout.plan_layout([0], {"main": 576}, "bfloat16", blocks=2, block_size=4))
server = slots.MemoryServer(memory, sys.argv[1])
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
print("full", flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
sys.stdin.readline()
server.close()
"""


def test_a_memory_server_outlives_a_time_without_descriptors() -> None:
    """Else nobody would ever be served again, and nothing would say so."""
    address = f"tidegate-test-{uuid.uuid4()}"
    with subprocess.Popen([sys.executable, "-c", SERVER, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        assert server.stdout.readline() == "full\n"
        with pytest.raises((OSError, ValueError)):  # an accept that waits has its descriptor already, and no second one
            slots.fetch_memory(address, timeout=0.5)
        assert "Too many open files; trying on" in server.stderr.readline()
        server.stdin.write("more\n")
        server.stdin.flush()
        slots.fetch_memory(address, timeout=60).close()
        server.stdin.write("end\n")
        server.stdin.close()
        assert server.wait(60) == 0


WALL = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "time.localtime", "time.gmtime"}
STAMPS = {"engine/http/decode_server.py": 1}  # `created` of an answer: told, never compared


def wall_clocks(source: str) -> list[str]:
    """What a module reads off a clock that may jump."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return [name for node in calls if (name := ast.unparse(node).removeprefix("datetime.")) in WALL or f"datetime.{name}" in WALL]


def test_no_deadline_reads_a_clock_that_jumps() -> None:
    """That a jump does no harm in real processes is tests/e2e/test_supervision.py; that nobody reads the clock is here."""
    found = {}
    for folder in ("engine", "protocol", "kernels"):
        for path in (root() / folder).rglob("*.py"):
            if count := len(wall_clocks(path.read_text())):
                found[str(path.relative_to(root()))] = count
    assert found == STAMPS
    assert wall_clocks("import time\nend = time.time() + 5") == ["time.time"]
    assert wall_clocks("import datetime\nend = datetime.datetime.now()")
