"""Servers that end in every way, and what they leave: nothing, or what the next start sweeps, and never what a living one uses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from pair_tools import config, run
from test_ends import gone, start_run
from test_ranks import hands_of
from test_servers import SIZES, Server, ask, expect, until
from typer.testing import CliRunner

from tidegate.engine.cli import app
from tidegate.engine.endings import Ending
from tidegate.engine.folders import sweep
from tidegate.engine.notes import running
from tidegate.engine.run_options import DEFAULTS

Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Servers whose shared memory is in `tmp_path`/shm."""
    shared = tmp_path / "shm"
    shared.mkdir()
    with ExitStack() as servers:
        yield lambda verb, *options: servers.enter_context(Server(verb, *options, env={"TIDEGATE_SHARED_MEMORY": str(shared)}))


def two_ranks(folder: Path) -> str:
    """A configuration file of the demo with two ranks of Prefill."""
    settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(DEFAULTS))
    settings["prefill"]["tensor_parallel_size"] = 2
    file = folder / "two.json"
    file.write_bytes(msgspec.json.encode(settings))
    return str(file)


def folders(shared: Path) -> set[str]:
    return {path.name for path in shared.iterdir()}


def test_servers_that_are_killed_leave_what_the_next_start_sweeps_and_nothing_of_the_living(start: Start, tmp_path: Path) -> None:
    shared, options = tmp_path / "shm", ("--config", two_ranks(tmp_path), *SIZES)
    proxy = start("proxy", "--port", "0")
    of_proxy = folders(shared)
    with ThreadPoolExecutor() as pool:
        prefill, decode = pool.map(lambda verb: start(verb, *options, "--proxy", proxy.url), ("prefill", "decode"))
    while httpx.get(f"{proxy.url}/health", trust_env=False).status_code != 200:
        time.sleep(0.05)
    assert ask(proxy.url).json()["choices"][0]["token_ids"] == expect(4)
    assert [note.url for note in running(shared)] == [proxy.url, decode.url, prefill.url]
    told = CliRunner().invoke(app, ["why", "--state", str(shared)])
    assert (told.exit_code, told.output.count(": nothing waits")) == (Ending.DONE, 3), told.output

    hands = hands_of(prefill.process.pid)
    os.kill(hands[0], signal.SIGKILL)
    code, log = prefill.ended()
    assert (code, len(hands)) == (Ending.FAILED, 1)
    assert "rank 1 of 2 ended by signal 9, so all ranks of this instance end" in log.splitlines()[-1]
    of_decode = folders(shared) - of_proxy
    assert len(of_decode) == 1, "a rank's death takes the whole folder of its instance along, pool and meeting place"
    assert httpx.get(f"{decode.url}/health", trust_env=False).status_code == 200, "it concerns nobody else"

    decode.process.kill()
    decode.ended()
    assert [note.url for note in running(shared)] == [proxy.url], "notes of the dead are none"
    assert folders(shared) == of_proxy | of_decode
    taken = proxy.url.rpartition(":")[2]
    second = start("proxy", "--port", taken)
    code, log = second.ended()
    assert (code, f"proxy port {taken} cannot be bound" in log) == (Ending.REFUSED, True)
    assert folders(shared) == of_proxy, "the second start swept what the killed one left, and not what the living one uses"
    proxy.process.send_signal(signal.SIGTERM)
    assert proxy.ended()[0] == Ending.DONE
    assert folders(shared) == set()


def test_a_run_whose_processes_are_all_killed_at_once_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, pids = start_run(tmp_path)
    monkeypatch.setenv("TIDEGATE_SHARED_MEMORY", str(tmp_path))
    before = list(tmp_path.glob("tidegate-*"))
    assert sweep() == 0, "it lives"
    assert list(tmp_path.glob("tidegate-*")) == before != []
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert gone(pids)
    assert list(tmp_path.glob("tidegate-*")), "nobody was left to clean up"
    until(lambda: sweep() >= 1)  # a killed process keeps its locks until the last of it is gone
    assert not list(tmp_path.glob("tidegate-*"))


LITTLE = (
    "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16)); from tidegate.engine.cli import main; main()"
)


def test_a_server_without_room_in_shared_memory_ends_before_it_serves(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LITTLE, "prefill", *SIZES], capture_output=True, text=True, timeout=300,
                          env=os.environ | {"TIDEGATE_SHARED_MEMORY": str(tmp_path)})  # fmt: skip
    assert (done.returncode, done.stdout) == (Ending.REFUSED, "")
    assert "cannot be had: File too large; give fewer shared buffers or shorter prompts" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


JUMPS = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long hours(void) { return (rand() % 49 - 24) * 3600L; }
int clock_gettime(clockid_t id, struct timespec *at) {
    long error = syscall(SYS_clock_gettime, id, at);
    if (!error && id == CLOCK_REALTIME) at->tv_sec += hours();
    return error;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return out ? (*out = now.tv_sec) : now.tv_sec;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="the clock is made to jump by a small C library")
def test_a_clock_that_jumps_by_hours_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards and backwards, at every look at it, in all processes: no deadline, lease, resend or pin depends on it."""
    (tmp_path / "jumps.c").write_text(JUMPS)
    library = tmp_path / "jumps.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, tmp_path / "jumps.c"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    looks = subprocess.run([sys.executable, "-c", "import time; print(len({int(time.time()) // 3600 for _ in range(99)}))"],
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert int(looks.stdout) > 10, "it does jump"
    result, compared = run(config(read_lease=30.0, deadline_seconds=60.0))
    assert all(one.equal for one in compared), compared
    assert result.stats["prefill"]["slots_free"] == result.stats["prefill"]["slots"]


CLIENT = """
import sys, threading
import msgspec, numpy as np
from tidegate.engine.config import RunConfig
from tidegate.engine.copying import Fault, Work
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_copies import extent_layout
config = msgspec.json.decode(sys.stdin.buffer.readline(), type=RunConfig)
layout, begun = extent_layout(config.slot_layout()), threading.Event()
def late(kind, work):
    begun.set()
    return Fault(mode="ok", delay=3600)
pool = LocalPool(layout, config.pool_objects, folder=config.pool_folder, faults=late)
keys = [b"%016d" % n for n in range(config.pool_objects - 1)]
assert {*pool.allocate(keys, [1] * len(keys))} == {"new"}
source = np.zeros(layout.size, np.uint8)
pool.save(keys[:1], 0, source, np.zeros((1, len(layout.layers[0])), np.int64), Work(0, 1, {}), lambda outcome: None)
begun.wait()
print(pool.stats()["writing"], flush=True)
threading.Event().wait()
"""


def test_a_pool_client_killed_in_the_middle_of_a_save_hinders_nobody(tmp_path: Path) -> None:
    """It has taken every extent but one when it is killed, after Prefill has joined: Prefill has to take them back."""
    c = config(pool_folder=str(tmp_path / "pool"), pool_blocks=60)
    told = msgspec.structs.replace(c, requests=(), max_prompt=c.max_tokens, num_blocks=c.prefill_blocks)
    client = subprocess.Popen([sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdin is not None
    assert client.stdout is not None
    with client.stdin, client.stdout:
        client.stdin.write(msgspec.json.encode(told) + b"\n")
        client.stdin.flush()
        assert client.stdout.readline() == b"59\n"

        def killed(pids: dict[str, int]) -> None:
            client.kill()
            client.wait()

        try:
            _, compared = run(c, on_started=killed)
        finally:
            client.kill()
            client.wait()
    assert all(one.equal for one in compared), compared
    assert not (tmp_path / "pool").exists(), "the last of the living removed it"
