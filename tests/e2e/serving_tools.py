"""Proxy, Prefill and Decode as real processes that stay up while a test asks them by HTTP."""

from __future__ import annotations

import queue
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tidegate.engine.config import RunConfig
from tidegate.engine.http.proxy import ProxyConfig
from tidegate.engine.pair import Run, Worker, worker_argv
from tidegate.engine.worker_io import Line

JSON = {"Content-Type": "application/json"}


class Serving:
    """url: by role; a Prefill is the test's to kill, the others end the run if they die."""

    def __init__(self, config: RunConfig, folder: str, on_line: Callable[[str, Line], None]) -> None:
        self.run = Run(config, on_line, 60.0)
        self.config = msgspec.structs.replace(
            config, pool_folder=str(Path(folder) / "pool"), scratch_folder=folder, requests=(), max_prompt=config.max_tokens,
            num_blocks=config.prefill_blocks,
        )
        self.prefill: Worker | None = None
        self.prefill_lines: Any = queue.Queue()
        self.url: dict[str, str] = {}

    def start(self, *, prefill: bool, decode_argv: Sequence[str] | None) -> None:
        run, config = self.run, self.config
        run.start("decode", decode_argv or worker_argv("decode"), config)
        self.url["prefill"] = "http://127.0.0.1:1"  # nobody is there
        if prefill:
            self.prefill, self.url["prefill"] = self.new_prefill(self.prefill_lines)
        run.until(lambda: "decode" in run.ready, 60)
        self.url["decode"] = f"http://127.0.0.1:{run.ready['decode'].http_port}"
        run.start("proxy", worker_argv("proxy"), ProxyConfig(
            prefillers=(self.url["prefill"],), decoders=(self.url["decode"],), max_retries=2, retry_delay=0.05, max_body=100_000,
            faults=config.proxy_faults, scratch_folder=config.scratch_folder,
        ))  # fmt: skip
        run.until(lambda: "proxy" in run.ready, 60)
        self.url["proxy"] = f"http://127.0.0.1:{run.ready['proxy'].http_port}"

    def new_prefill(self, lines: Any = None) -> tuple[Worker, str]:
        """One more, and where it is; the caller ends it."""
        return self.new_worker("prefill", self.config, lines)

    def new_worker(self, role: str, config: RunConfig, lines: Any = None) -> tuple[Worker, str]:
        """Likewise, of either role."""
        lines = queue.Queue() if lines is None else lines
        worker = Worker(role, worker_argv(role), config, lines)
        while (line := lines.get(timeout=60)[1]).kind != "ready":
            pass
        return worker, f"http://127.0.0.1:{line.http_port}"

    def post(self, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        """A completion, by way of the proxy."""
        return self.post_bytes("proxy", "/v1/completions", msgspec.json.encode(body), headers)

    def post_bytes(self, role: str, path: str, content: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
        return httpx.post(self.url[role] + path, content=content, headers=JSON | (headers or {}), timeout=60, trust_env=False)

    def health(self, role: str) -> dict[str, Any]:
        response = httpx.get(self.url[role] + "/health", timeout=60, trust_env=False)
        return {"code": response.status_code} | response.json()

    def figure(self, role: str, name: str) -> float:
        """The sum of a metric over its labels; 0 if it is not there."""
        lines = httpx.get(self.url[role] + "/metrics", timeout=60, trust_env=False).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}[ {{]", line))

    def stop(self) -> dict[str, dict[str, float]]:
        """Let all end in order; their figures."""
        if self.prefill is not None and self.prefill.process.poll() is None:
            self.prefill.stop()
            self.prefill.left(20)
            while (line := self.prefill_lines.get(timeout=20)[1]).kind != "stats":
                pass
            self.run.out.stats["prefill"] = line.stats
        for role in ("proxy", "decode"):
            self.run.workers[role].stop()
            self.run.until(lambda role=role: role in self.run.out.stats, 20)  # type: ignore[misc]
            self.run.workers[role].left(20)
        return self.run.out.stats

    def end(self) -> None:
        self.run.end()
        if self.prefill is not None:
            self.prefill.end()


@contextmanager
def serving(
    config: RunConfig, *, prefill: bool = True, decode_argv: Sequence[str] | None = None,
    on_line: Callable[[str, Line], None] = lambda role, line: None,
) -> Iterator[Serving]:  # fmt: skip
    folder = tempfile.mkdtemp(prefix="tidegate-pool-")
    made = Serving(config, folder, on_line)
    try:
        made.start(prefill=prefill, decode_argv=decode_argv)
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)
