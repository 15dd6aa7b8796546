"""However a run ends, nothing is left: no process, no file; and the user is told what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from pair_tools import TEXT, config, slow
from typer.testing import CliRunner

from tidegate.engine.cli import app
from tidegate.engine.http.proxy import ProxyConfig
from tidegate.engine.pair import PairError, run_pair, worker_argv
from tidegate.engine.worker_io import FAILED, Line

# A background job inherits an ignored SIGINT, and so would its children; a program at a terminal does not.
AT_A_TERMINAL = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
TIDEGATE = [sys.executable, "-c", f"{AT_A_TERMINAL}; from tidegate.engine.cli import main; main()"]


def workers(parent: int) -> list[int]:
    """The worker processes that `parent` started and that are alive."""
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout.splitlines()
    rows = [line.split(None, 2) for line in found if "tidegate.engine." in line and "_worker" in line]
    return [int(pid) for pid, ppid, _ in rows if int(ppid) == parent]


def alive(pid: int) -> bool:
    """Not gone, and not a zombie that nobody reaps."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int]) -> bool:
    """The workers end by themselves soon after their parent."""
    end = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < end:
        threading.Event().wait(0.02)
    return not any(map(alive, pids))


def left(folder: Path) -> list[str]:
    """What runs have left in shared memory."""
    return [path.name for path in folder.glob("tidegate-*")]


@pytest.mark.parametrize("role", ["prefill", "decode", "proxy"])
def test_a_worker_killed_in_the_middle_is_named_and_the_other_ended(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_SHARED_MEMORY", str(tmp_path))
    pids: dict[str, int] = {}

    def on_line(_: str, line: Line) -> None:
        if "chunk 2 of" in line.text:
            assert left(tmp_path)
            os.kill(pids[role], signal.SIGKILL)

    with pytest.raises(PairError, match=rf"the {role} worker was killed by SIGKILL \(out of memory\?\): "):
        run_pair(config(decode_faults=(slow("read", 0.5),)), on_started=pids.update, on_line=on_line, timeout=30)
    assert gone(list(pids.values()))
    assert not left(tmp_path)


def start_run(tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes(TEXT * 10)
    process = subprocess.Popen([*TIDEGATE, "run", "--prompt-file", str(prompt), "--chunk", "64"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, start_new_session=True,
                               env=os.environ | {"TIDEGATE_SHARED_MEMORY": str(tmp_path)})  # fmt: skip
    end = time.monotonic() + 30
    while len(pids := workers(process.pid)) < 3 and time.monotonic() < end:
        threading.Event().wait(0.02)
    return process, pids


ENDINGS = [(signal.SIGINT, "all"), (signal.SIGTERM, "parent"), (signal.SIGTERM, "all"), (signal.SIGHUP, "all")]


@pytest.mark.parametrize(("number", "whom"), ENDINGS, ids=[f"{number.name} to {whom}" for number, whom in ENDINGS])
def test_a_signal_ends_all(number: signal.Signals, whom: str, tmp_path: Path) -> None:
    process, pids = start_run(tmp_path)
    (os.kill if whom == "parent" else os.killpg)(process.pid, number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert said.startswith("tidegate run: ")
    assert said.count("\n") == 1
    assert gone(pids)
    assert not left(tmp_path)


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    process, pids = start_run(tmp_path)
    process.kill()
    process.communicate(timeout=30)
    assert gone(pids)
    assert not left(tmp_path)


def test_a_proxy_whose_port_is_in_use_says_so_and_ends() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config_line = msgspec.json.encode(ProxyConfig(prefillers=(), decoders=(), port=port)) + b"\n"
        process = subprocess.Popen(worker_argv("proxy"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        said, complaint = process.communicate(config_line, timeout=30)
    assert (process.returncode, complaint) == (FAILED, b"")
    assert f"proxy port {port} cannot be bound: Address already in use" in msgspec.json.decode(said, type=Line).text


def test_a_port_in_use_is_named() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PairError, match=f"port {port} cannot be bound"):
            run_pair(config(port=port), timeout=30)
        for option in ("--port", "--proxy-port", "--prefill-port", "--decode-port"):
            done = CliRunner().invoke(app, ["run", option, str(port)])
            assert (done.exit_code, f"Address already in use; choose another with {option}" in done.output) == (2, True)
