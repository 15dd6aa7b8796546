"""What `tidegate run` refuses: one line with value, rule and way out, exit code 2, and nothing allocated, started or left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from settings_tools import raw
from test_ends import TIDEGATE, gone, left, workers

from tidegate.spec.trace_lines import read_file

BAD: dict[str, list[str]] = {
    "--chunk is 0: Prefill's: tokens that are computed in one step, of one request or of several, at least 1": ["--chunk", "0"],
    "--block-size is 0": ["--block-size", "0"],
    "--shared-buffers is 0: an integer of at least 1": ["--shared-buffers", "0"],
    "--independent-layers is 'first': a list of layer numbers": ["--independent-layers", "first"],
    "layerwise_independent_layers names [8]: layers with a cache are numbered 0 to 7": ["--independent-layers", "8"],
    "layerwise_prefetch_layers is 3: below the number of shared buffers": ["--prefetch-layers", "3"],
    "layerwise_prefetch_layers is 1: below the number of shared buffers, 1": ["--prefetch-layers", "1", "--shared-buffers", "1"],
    "--concurrency: 100000000 requests at once": ["--concurrency", "100000000"],
    "topk_buffer_size is 100: a hot buffer is made of whole blocks of 64": ["--hot-buffer", "100"],
    "topk_buffer_size is 16: a hot buffer is made": ["--hot-buffer", "16", "--block-size", "16"],
    "--block-size, --hot-buffer: topk_buffer_size is 1": ["--hot-buffer", "1", "--block-size", "8"],
    "index_topk = 64 rows; give 100000, or another block_size": ["--block-size", "100000"],
    "--port, --proxy-port: port and proxy port are both 4000: give each server its own": ["--port", "4000", "--proxy-port", "4000"],
    "a list of layer numbers (negative ones count from the last; an empty one, or the option's \"none\"": ["--independent-layers", "x"],
    "the host pool is of 0.001 GiB (dram_size_per_dp_GB): one request of": ["--host-memory", "0.001"],
    "--host-memory is 0.0": ["--host-memory", "0"],
    "dtype is 'float8': the main KV cache must be bfloat16": ["--kv-dtype", "float8"],
    "dtype is 'float64': the main KV cache must be bfloat16": ["--kv-dtype", "float64"],
    "--device: device is 'npu'": ["--device", "npu"],
    "device is 'cuda'": ["--device", "cuda"],
    "--port is 70000": ["--port", "70000"],
    "--prompts is 0": ["--prompts", "0"],
    "new tokens is 0": ["--new-tokens", "0"],
    "--layers: num_hidden_layers is 0": ["--layers", "0"],
    "100000 requests at once of up to": ["--prompts", "100000"],
    "prompt file /nowhere: No such file or directory; give a readable file with --prompt-file": ["--prompt-file", "/nowhere"],
    "configuration file /nowhere: No such file or directory; give a readable file with --config": ["--config", "/nowhere"],
    "trace folder /proc/x": ["--trace", "/proc/x"],
    "--read-lease: read lease is -1": ["--read-lease", "-1"],
    "read lease is inf: give a finite number": ["--read-lease", "inf"],
    "retry delay is nan": ["--retry-delay", "nan"],
    "--host-memory is inf": ["--host-memory", "inf"],
    "--deadline is inf": ["--deadline", "inf"],
}
FILES: dict[str, Any] = {
    "has no key 'blocksize': the nearest known one is 'block_size'": raw(prefill__blocksize=3),
    "pipeline parallelism (PP) is not supported": raw(decode__pipeline_parallel_size=2),
    "P/D colocation": raw(p__kv_role="kv_both"),
    "shared buffers need eager mode": raw(prefill__enforce_eager=False),
    "Prefill's must be at least Decode's": raw(decode__tensor_parallel_size=2),
}
EACH = """
import os, sys, threading
from pathlib import Path
from typer.testing import CliRunner
from tidegate.engine.cli import app

def here():
    fds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line or "memfd" in line]
    return {"open": sorted(fds.values()), "threads": threading.active_count(), "memory": maps,
            "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text(), "folder": os.listdir(os.environ["TMPDIR"])}

cases = eval(sys.stdin.read())
before = here()
for args in cases:
    r = CliRunner().invoke(app, ["run", *args])
    print(r.exit_code, r.output.strip().replace(chr(10), "|"))
after = here()
print({name: after[name] for name in after if after[name] != before[name]})
"""


def test_bad_values_are_one_line_that_names_value_rule_and_way_out_and_leave_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    cases = BAD | {f"prompt file {empty} is empty: a prompt has": ["--prompt-file", str(empty)],
                   "is not empty: a trace": ["--trace", str(tmp_path)],
                   f"trace folder {empty} is a file: give a new folder": ["--trace", str(empty)]}
    for n, (why, content) in enumerate(FILES.items()):
        (tmp_path / f"{n}.json").write_text(json.dumps(content))
        cases[why] = ["--config", str(tmp_path / f"{n}.json")]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cases["Address already in use; choose another with --port"] = ["--port", str(taken.getsockname()[1])]
        done = subprocess.run([sys.executable, "-c", EACH], input=repr(list(cases.values())), capture_output=True, text=True,
                              env=os.environ | {"TMPDIR": str(scratch)})  # fmt: skip
    *lines, changed = done.stdout.splitlines()
    assert len(lines) == len(cases), done.stderr
    for expected, line in zip(cases, lines, strict=True):
        assert line.startswith("2 tidegate run: "), line
        assert expected in line
        assert "|" not in line, line
    assert changed == "{}"


def test_the_command_itself_exits_with_2_and_one_line_on_standard_error(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = subprocess.run([*TIDEGATE, "run", "--kv-dtype", "float32", "--trace", str(trace)], capture_output=True, text=True,
                          env=os.environ | {"TMPDIR": str(tmp_path)})  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tidegate run: --kv-dtype: prefill.dtype is 'float32'")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())  # not even the trace's folder


def sockets_of(pids: list[int]) -> list[str]:
    """Abstract sockets that carry one of the process ids in their name."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line for line in lines if any(f"@tidegate-{pid}-" in line for pid in pids)]


def memory_of(pids: list[int]) -> set[str]:
    """Files of shared memory that the processes have mapped."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found |= {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/" in line}
    return found


@pytest.mark.parametrize("moment", ["first worker", "in the middle"])
def test_ctrl_c_leaves_no_process_socket_file_or_shared_memory(moment: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    process = subprocess.Popen([*TIDEGATE, "run", "--chunk", "64", "--trace", str(trace)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, start_new_session=True,
                               env=os.environ | {"TMPDIR": str(tmp_path)})  # fmt: skip
    written, end = trace / "prefill-0.jsonl", time.monotonic() + 60
    while time.monotonic() < end:
        pids = workers(process.pid)
        if pids and (moment == "first worker" or (written.exists() and "save_end" in written.read_text())):
            break
        threading.Event().wait(0.02)
    memory = memory_of([process.pid, *pids])
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in said
    if written.exists() and written.read_bytes():
        assert not read_file(written).ended, "the judge will say of it that it died"
    assert gone(pids)
    assert not left(tmp_path)
    assert not sockets_of(pids)
    assert not [path for path in memory if os.path.exists(path)]
