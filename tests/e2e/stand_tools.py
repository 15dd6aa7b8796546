"""Servers of one deployment that a test kills and starts again, one by one."""

from __future__ import annotations

import queue
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from serving_tools import JSON

from tidegate.engine.config import FaultSpec, RunConfig
from tidegate.engine.http.proxy import ProxyConfig
from tidegate.engine.pair import Worker, worker_argv
from tidegate.engine.soak.processes import Holding, holding
from tidegate.engine.soak.rest import grown, unrest
from tidegate.engine.worker_io import Line

__all__ = ["TOKENS", "Stand", "none", "role_of", "standing", "until"]

TOKENS = 4
PATIENCE = 60.0
"""Seconds in which what must come about has."""


def role_of(name: str) -> str:
    return name.split("-")[0]


class Stand:
    """Servers by name ("prefill", "decode-2"), each of which returns to its address when it is started again; none is in the proxy unless
    it has joined."""

    def __init__(self, c: RunConfig, folder: str, argv: dict[str, Sequence[str]]) -> None:
        self.config = msgspec.structs.replace(
            c, pool_folder=str(Path(folder) / "pool"), scratch_folder=folder, requests=(), max_prompt=c.max_tokens,
            num_blocks=c.prefill_blocks,
        )  # fmt: skip
        self.folder, self._argv, self._lines = Path(folder), argv, dict[str, Any]()
        self.workers: dict[str, Worker] = {}
        self.ready: dict[str, Line] = {}
        self.first: dict[str, Holding] = {}

    def start(self, name: str, *faults: FaultSpec, argv: Sequence[str] = ()) -> None:
        """argv: the command of this life alone."""
        role, old = role_of(name), self.ready.get(name)
        there: dict[str, Any] = {}
        if old is not None:
            there = {"prefill_port": old.http_port} if role == "prefill" else {"port": old.port, "decode_port": old.http_port}
        c: Any = msgspec.structs.replace(self.config, **{f"{role}_faults": faults} | there) if role != "proxy" else ProxyConfig(
            max_retries=3, retry_delay=0.05, scratch_folder=self.config.scratch_folder, faults=faults)  # fmt: skip
        self._lines[name] = queue.Queue()
        self.workers[name] = Worker(name, argv or self._argv.get(name) or worker_argv(role), c, self._lines[name])
        while (line := self._lines[name].get(timeout=300)[1]).kind != "ready":
            assert line.kind != "error", line.text
        self.ready[name] = line

    def kill(self, name: str) -> None:
        self.workers[name].process.kill()
        self.workers.pop(name).end()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ready[name].http_port}"

    def _instance(self, method: str, name: str, proxy: str) -> None:
        body = msgspec.json.encode({"role": role_of(name), "url": self.url(name), "seconds": 3600})
        response = httpx.request(method, self.url(proxy) + "/v1/instances", content=body, headers=JSON, trust_env=False, timeout=60)
        assert response.status_code == 200, response.text

    def join(self, *names: str, proxy: str = "proxy") -> None:
        for name in names:
            self._instance("POST", name, proxy)

    def leave(self, name: str, proxy: str = "proxy") -> None:
        self._instance("DELETE", name, proxy)

    def ask(self, prompt: bytes, proxy: str = "proxy") -> httpx.Response:
        body = msgspec.json.encode({"prompt": list(prompt), "max_tokens": TOKENS})
        return httpx.post(self.url(proxy) + "/v1/completions", content=body, headers=JSON, timeout=120, trust_env=False)

    def figures(self, name: str) -> dict[str, float]:
        text = httpx.get(self.url(name) + "/metrics", trust_env=False, timeout=60).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {" ".join((sample.name.removeprefix("tidegate_"), *sample.labels.values())): sample.value for sample in samples}

    def said(self, name: str) -> list[str]:
        """The texts of the lines that it has written since this was asked last."""
        lines = [self._lines[name].get_nowait()[1] for _ in range(self._lines[name].qsize())]
        return [line.text for line in lines if line is not None]

    def held(self) -> list[str]:
        """What anybody still holds of any request."""
        return [held for name in self.workers for held in unrest(role_of(name), self.figures(name))]

    def more(self) -> list[str]:
        """What anybody has that he had not when this was asked first."""
        found = []
        for name, worker in self.workers.items():
            now = holding(worker.process.pid)
            found += grown(role_of(name), self.first.setdefault(f"{name} {worker.process.pid}", now), now)
        return found

    def stop(self) -> None:
        for role in ("proxy", "prefill", "decode"):
            for name in [name for name in self.workers if role_of(name) == role]:
                self.workers[name].stop()
                self.workers[name].left(120)
        assert [path.name for path in self.folder.iterdir() if path.suffix != ".server"] == []  # notes go with the folder

    def end(self) -> None:
        for worker in self.workers.values():
            worker.end()


@contextmanager
def standing(c: RunConfig, argv: dict[str, Sequence[str]]) -> Iterator[Stand]:
    folder = tempfile.mkdtemp(prefix="tidegate-pool-")
    made = Stand(c, folder, argv)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


def until(good: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not good():
        assert time.monotonic() < end
        time.sleep(0.02)


def none(what: Callable[[], list[str]]) -> None:
    """Wait until there is none of it."""
    end = time.monotonic() + PATIENCE
    while found := what():
        assert time.monotonic() < end, found
        time.sleep(0.1)
