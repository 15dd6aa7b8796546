"""Starts the proxy, Prefills and Decodes, sends the requests through the proxy, and leaves nothing behind.

Rules: Prefills and Decodes start first, for the proxy is told where they are; whatever ends the run (answers, an error, Ctrl-C, a worker
that dies) ends all processes and removes the pool's folder; the error names the worker and what it said last; a request's result is
its HTTP answer, beside what Decode's debug line says of the same prompt, and the two must agree.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from tidegate.engine.config import RunConfig
from tidegate.engine.folders import run_folder, sweep
from tidegate.engine.http.client import Asked, Client, Told
from tidegate.engine.http.proxy import ProxyConfig
from tidegate.engine.instances import decode_told, prefill_told, worker_names
from tidegate.engine.worker_io import Line

__all__ = ["PairError", "PairResult", "run_pair"]

STOP_SECONDS = 20.0
Lines = queue.Queue[tuple[str, Line | Told | None]]
"""What workers say, and the client; None: the worker's output has ended."""
STOPS = ("proxy", "prefill", "decode")
"""The order in which the roles stop: nobody is left with a peer that has gone."""


class PairError(RuntimeError):
    """A worker died or could not start, or an answer is not what it says; the message says which and why."""


class PairResult(msgspec.Struct):
    """results: by index of the request; stats: by role, what its workers say added up; each: by worker."""

    results: dict[int, Line] = {}
    stats: dict[str, dict[str, float]] = {}
    each: dict[str, dict[str, float]] = {}
    seconds: float = 0.0


def worker_argv(role: str) -> list[str]:
    return [sys.executable, "-m", f"tidegate.engine.{role}_worker"]


def role_of(name: str) -> str:
    """What a worker called so is: prefill.1 is a prefill."""
    return name.partition(".")[0]


def _ending(code: int) -> str:
    """An exit code in words; the kernel kills with SIGKILL when memory runs out, and says so to nobody here."""
    if code >= 0:
        return f"died with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}{' (out of memory?)' if -code == signal.SIGKILL else ''}"


class Worker:
    """One child process; its lines come out of a queue that all share."""

    def __init__(self, role: str, argv: Sequence[str], config: RunConfig | ProxyConfig, lines: Lines) -> None:
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
            raise PairError(f"the {self.role} worker gave its last line and {_ending(code)}: {self.said()[-2000:]}")

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


class Run:
    """One run: its processes, its client, and what is known by now."""

    def __init__(self, config: RunConfig, on_line: Callable[[str, Line], None], timeout: float) -> None:
        self.config, self.on_line, self.timeout = config, on_line, timeout
        self.lines: Lines = queue.Queue()
        self.workers: dict[str, Worker] = {}
        self.client: Client | None = None
        self.ready: dict[str, Line] = {}
        self.told: dict[int, Told] = {}
        self.debug: dict[int, Line] = {}
        self.out = PairResult()

    def start(self, role: str, argv: Sequence[str], config: RunConfig | ProxyConfig) -> None:
        self.workers[role] = Worker(role, argv, config, self.lines)

    def urls(self, role: str) -> tuple[str, ...]:
        """Where its workers, which are ready, are asked."""
        return tuple(f"http://127.0.0.1:{self.ready[name].http_port}" for name in self.named(role))

    def ask(self, url: str) -> None:
        """Send every request, each under a name that says which it is."""
        c = self.config
        asked = [Asked(r.id, r.prompt, c.new_tokens, c.abort_after.get(r.id, 0.0)) for r in c.requests]
        self.client = Client(url, asked, lambda told: self.lines.put(("client", told)))

    def until(self, good: Callable[[], bool], timeout: float) -> None:
        """Read lines until `good`; PairError when a worker reports an error, dies, or all are silent for `timeout` s."""
        while not good():
            try:
                role, line = self.lines.get(timeout=timeout)
            except queue.Empty:
                raise PairError(self._silent(timeout)) from None
            if isinstance(line, Told):
                self.told[line.index] = line
                self.on_line(role, Line("answer", index=line.index, status=line.status, text=line.reason))
            elif line is not None:
                self._take(role, line)
            elif (code := self.workers[role].process.wait()) or role not in self.out.each:
                said = self.workers[role].said()[-2000:] or "it said nothing"
                raise PairError(f"the {role} worker {_ending(code)}: {said}")

    def _silent(self, timeout: float) -> str:
        missing = [r.id for i, r in enumerate(self.config.requests) if i not in self.told]
        what = f"no result for {', '.join(missing)}" if missing else "all results are here, but a worker does not stop"
        return f"{', '.join(self.workers)} said nothing for {timeout:g} s ({what}); ended them"

    def _take(self, role: str, line: Line) -> None:
        if line.kind == "error":
            raise PairError(line.text)
        if line.kind == "ready":
            self.ready[role] = line
        elif line.kind == "stats":
            self._add(role, line.stats)
        elif match := re.fullmatch(r"cmpl-.*\.(\d+)-[0-9a-f]+-0", line.request):
            if line.kind == "debug":
                self.debug[int(match[1])] = line
            elif line.kind == "taken" and self.client is not None:
                self.client.taken(int(match[1]))
        self.on_line(role, line)

    def _add(self, name: str, stats: dict[str, float]) -> None:
        self.out.each[name] = stats
        role = role_of(name)
        told = [self.out.each[one] for one in self.named(role) if one in self.out.each]
        self.out.stats[role] = {figure: sum(one[figure] for one in told) for figure in stats}

    def answered(self) -> bool:
        """Is every request answered, and every success told in detail?"""
        done = [i for i, told in self.told.items() if told.status != 200 or i in self.debug]
        return len(done) == len(self.config.requests)

    def results(self) -> dict[int, Line]:
        """What became of each request; PairError where two that saw it disagree."""
        out = {}
        for index, request in enumerate(self.config.requests):
            told, debug = self.told[index], self.debug.get(index, Line("debug"))
            ok = told.status == 200
            if ok and (not debug.ok or debug.tokens != told.tokens or debug.request != told.request):
                raise PairError(f"{request.id} was answered 200 with {told.tokens}; Decode says ok={debug.ok}, {debug.tokens}, "
                                f"{debug.text or 'no reason'}")  # fmt: skip
            out[index] = Line("result", request=request.id, index=index, attempt=debug.attempt, ok=ok, tokens=told.tokens,
                              text=told.reason, status=told.status, logits=debug.logits, tags=debug.tags)  # fmt: skip
        return out

    def stop(self) -> None:
        """Let each end in order."""
        for role in STOPS:
            for name in self.named(role):
                self.workers[name].stop()
            self.until(lambda role=role: self.out.each.keys() >= set(self.named(role)), STOP_SECONDS)  # type: ignore[misc]
        for worker in self.workers.values():
            worker.left(STOP_SECONDS)

    def named(self, role: str) -> list[str]:
        """The workers of a role."""
        return [name for name in self.workers if role_of(name) == role]

    def end(self) -> None:
        """Make sure that everything is gone."""
        for worker in self.workers.values():
            worker.end()
        if self.client is not None:
            self.client.close()


def run_pair(
    config: RunConfig,
    *,
    prefill_argv: Sequence[str] | None = None,
    decode_argv: Sequence[str] | None = None,
    proxy_argv: Sequence[str] | None = None,
    on_line: Callable[[str, Line], None] = lambda role, line: None,
    on_started: Callable[[dict[str, int]], None] = lambda pids: None,
    timeout: float = 600.0,
) -> PairResult:
    """Run `config` (checked before) to its end.  PairError if a worker dies, or says nothing for `timeout` s.

    prefill_argv, decode_argv, proxy_argv: other commands for the workers (tests run them with a mutated machine).  on_started: told
    the process ids, by worker: proxy, prefill, prefill.1, ..., decode, decode.1, ...  A request that failed is a result with ok=False,
    its HTTP status (0: the client got no answer) and its reason in text.
    """
    sweep()
    folder, lock = run_folder()
    run, began = Run(config, on_line, timeout), time.monotonic()
    try:
        worker = msgspec.structs.replace(
            config.with_checkpoint(folder / "model"), pool_folder=config.pool_folder or str(folder / "pool"),
            scratch_folder=str(folder), requests=(), max_prompt=config.max_tokens, num_blocks=config.prefill_blocks,
        )  # fmt: skip
        for number, name in enumerate(worker_names("decode", config.decode_ranks)):
            run.start(name, decode_argv or worker_argv("decode"), decode_told(worker, number))
        for number, name in enumerate(worker_names("prefill", config.prefills)):
            run.start(name, prefill_argv or worker_argv("prefill"), prefill_told(worker, number))
        run.until(lambda: run.ready.keys() == run.workers.keys(), timeout)
        run.start("proxy", proxy_argv or worker_argv("proxy"), ProxyConfig(
            prefillers=run.urls("prefill"), decoders=run.urls("decode"), port=config.proxy_port, max_retries=config.max_retries,
            retry_delay=config.retry_delay, faults=config.proxy_faults, scratch_folder=str(folder),
        ))  # fmt: skip
        run.until(lambda: "proxy" in run.ready, timeout)
        on_started({name: worker.process.pid for name, worker in run.workers.items()})
        run.ask(*run.urls("proxy"))
        run.until(run.answered, timeout)
        run.stop()
        run.out.results = run.results()
    finally:
        run.end()
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
    run.out.seconds = time.monotonic() - began
    return run.out
