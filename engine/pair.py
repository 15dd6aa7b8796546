"""Starts a Prefill and a Decode process, waits for the results, and leaves nothing behind.

Rules: Decode starts first, for it owns the port; whatever ends the run (results, an error, Ctrl-C, a worker that dies) ends
both processes and removes the pool's folder; the error names the worker and what it said last.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tidegate.engine.config import RunConfig
from tidegate.engine.worker_io import Line

__all__ = ["PairError", "PairResult", "run_pair"]

STOP_SECONDS = 20.0


class PairError(RuntimeError):
    """A worker died or could not start; the message says which and why."""


class PairResult(msgspec.Struct):
    """results: by index of the request; stats: per worker."""

    results: dict[int, Line] = {}
    stats: dict[str, dict[str, float]] = {}
    seconds: float = 0.0


def worker_argv(role: str) -> list[str]:
    return [sys.executable, "-m", f"tidegate.engine.{role}_worker"]


class Worker:
    """One child process; its lines come out of a queue that both workers share."""

    def __init__(self, role: str, argv: Sequence[str], config: RunConfig, lines: queue.Queue[tuple[str, Line | None]]) -> None:
        self.role, self.stderr = role, tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self.process = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, bufsize=0
        )
        self._lines = lines
        with contextlib.suppress(BrokenPipeError):
            assert self.process.stdin is not None
            self.process.stdin.write(msgspec.json.encode(config) + b"\n")
        self._reader = threading.Thread(target=self._read, name=f"{role}-lines", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as out:
            buffered = b""
            while piece := out.read(1 << 16):
                *whole, buffered = (buffered + piece).split(b"\n")
                for line in whole:
                    self._lines.put((self.role, msgspec.json.decode(line, type=Line)))
        self._lines.put((self.role, None))

    def stop(self) -> None:
        """Ask it to end in order."""
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.write(b"stop\n")

    def left(self, timeout: float) -> None:
        """Wait for its end; PairError after `timeout` s, or for a bad exit code."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise PairError(f"the {self.role} worker gave its last line and did not end in {timeout:g} s; ended it") from None
        if code:
            raise PairError(f"the {self.role} worker ended with exit code {code}: {self.said()[-2000:]}")

    def said(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read().decode(errors="replace").strip()

    def end(self) -> None:
        """Make sure that it is gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        self.stderr.close()


def run_pair(
    config: RunConfig,
    *,
    prefill_argv: Sequence[str] | None = None,
    decode_argv: Sequence[str] | None = None,
    on_line: Callable[[str, Line], None] = lambda role, line: None,
    on_started: Callable[[dict[str, int]], None] = lambda pids: None,
    timeout: float = 600.0,
) -> PairResult:
    """Run `config` (checked before) to its end.  PairError if a worker dies, or says nothing for `timeout` s.

    prefill_argv, decode_argv: other commands for the workers (tests run them with a mutated machine).  on_started: told the
    process ids.  A request that failed is a result with ok=False and its reason in text.
    """
    lines: queue.Queue[tuple[str, Line | None]] = queue.Queue()
    folder = tempfile.mkdtemp(prefix="tidegate-pool-")
    config = msgspec.structs.replace(
        config, pool_folder=config.pool_folder or str(Path(folder) / "pool"), scratch_folder=folder
    )
    out, workers, began = PairResult(), {}, time.monotonic()
    try:
        workers["decode"] = Worker("decode", decode_argv or worker_argv("decode"), config, lines)
        port = _until(lines, workers, lambda role, line: line.kind == "ready", config, out, on_line, timeout).port
        workers["prefill"] = Worker(
            "prefill", prefill_argv or worker_argv("prefill"), msgspec.structs.replace(config, port=port), lines
        )
        on_started({role: worker.process.pid for role, worker in workers.items()})
        _until(lines, workers, lambda role, line: len(out.results) == len(config.requests), config, out, on_line, timeout)
        for role in ("prefill", "decode"):
            workers[role].stop()
            _until(lines, workers, lambda _, line: line.kind == "stats", config, out, on_line, STOP_SECONDS)
        for worker in workers.values():
            worker.left(STOP_SECONDS)
    finally:
        for worker in workers.values():
            worker.end()
        shutil.rmtree(folder, ignore_errors=True)
    out.seconds = time.monotonic() - began
    return out


def _until(
    lines: queue.Queue[tuple[str, Line | None]],
    workers: dict[str, Worker],
    good: Callable[[str, Line], bool],
    config: RunConfig,
    out: PairResult,
    on_line: Callable[[str, Line], None],
    timeout: float,
) -> Line:
    """Read lines until `good`; PairError when a worker reports an error, dies, or all are silent for `timeout` s."""
    while True:
        try:
            role, line = lines.get(timeout=timeout)
        except queue.Empty:
            missing = [r.id for i, r in enumerate(config.requests) if i not in out.results]
            what = f"no result for {', '.join(missing)}" if missing else "all results are here, but a worker does not stop"
            raise PairError(f"{' and '.join(workers)} said nothing for {timeout:g} s ({what}); ended them") from None
        if line is None:
            code = workers[role].process.wait()
            if code == 0 and role in out.stats:
                continue
            said = workers[role].said()[-2000:] or "it said nothing"
            raise PairError(f"the {role} worker died with exit code {code}: {said}")
        if line.kind == "error":
            raise PairError(line.text)
        if line.kind == "result":
            out.results[line.index] = line
        if line.kind == "stats":
            out.stats[role] = line.stats
        on_line(role, line)
        if good(role, line):
            return line
