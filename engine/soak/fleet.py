"""The processes of a soak: proxy, Prefill and Decode at addresses that stay, however often one of them dies and returns.

Rules: a process that ends unasked is a finding, and so is one that does not end when it is asked, ends with another code than 0, or
leaves a child behind; what each says on its standard error is kept to its end, and shown with a finding.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tidegate.engine.http.proxy import ProxyConfig
from tidegate.engine.pair import STOPS, PairError, Worker, worker_argv
from tidegate.engine.soak import processes
from tidegate.engine.soak.kinds import Life
from tidegate.engine.worker_io import Line

__all__ = ["ROLES", "Fleet", "Found"]

ROLES = STOPS
START_SECONDS, END_SECONDS = 180.0, 60.0
PORTS = range(20_000, 32_000)
"""Below those that the system gives to connections: a dead server's port must be there when it returns."""


class Found(Exception):
    """Something that must not be, in words."""


def _free_port(draw: random.Random, taken: Sequence[int]) -> int:
    for _ in range(200):
        port = draw.choice(PORTS)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            if port not in taken:
                return port
    raise Found("no free port was found between 20000 and 32000 in 200 tries")


class Fleet:
    """argv: another command for a worker, by role.  told: what Decode said of each prompt (debug lines), by request id; stats: what each
    role said at its last orderly end; pids: of all that are or were alive, children included.
    """

    def __init__(self, argv: Mapping[str, Sequence[str]]) -> None:
        self._argv, self._draw = argv, random.Random()
        self.ports: dict[str, int] = {}
        for name in (*ROLES, "control"):
            self.ports[name] = _free_port(self._draw, list(self.ports.values()))
        self.workers: dict[str, Worker] = {}
        self._lines: dict[str, queue.Queue[tuple[str, Line | None]]] = {}
        self._ready: dict[str, bool] = {}
        self.told: dict[str, Line] = {}
        self.stats: dict[str, dict[str, float]] = {}
        self.pids: set[int] = set()
        self._pids_of: dict[str, set[int]] = {}

    def url(self, role: str) -> str:
        return f"http://127.0.0.1:{self.ports[role]}"

    @property
    def ports_of(self) -> dict[str, int]:
        """As fields of RunConfig."""
        return {"port": self.ports["control"], "prefill_port": self.ports["prefill"], "decode_port": self.ports["decode"]}

    # ---- starting and ending --------------------------------------------------------------------------------------

    async def start(self, life: Life, roles: Sequence[str] = ROLES) -> None:
        """Start `roles`, together; returns when all are ready."""
        for role in roles:
            self._lines[role], self._ready[role] = queue.Queue(), False
            config = self._proxy_config(life) if role == "proxy" else life.config
            self.workers[role] = Worker(role, self._argv.get(role) or worker_argv(role), config, self._lines[role])  # type: ignore[arg-type]
        await self.until(lambda: all(self._ready[role] for role in roles), START_SECONDS, f"{', '.join(roles)} did not start")
        for role in roles:
            self._pids_of[role] = {self.pid(role), *processes.children(self.pid(role))}
            self.pids |= self._pids_of[role]

    def _proxy_config(self, life: Life) -> ProxyConfig:
        c = life.config
        return ProxyConfig(
            prefillers=(self.url("prefill"),), decoders=(self.url("decode"),), port=self.ports["proxy"], max_retries=c.max_retries,
            retry_delay=c.retry_delay, faults=c.proxy_faults, scratch_folder=c.scratch_folder,
        )  # fmt: skip

    def pid(self, role: str) -> int:
        return self.workers[role].process.pid

    def kill(self, role: str) -> None:
        """As the system does when memory runs out.  Found if a child of it outlives it."""
        self.signal(role, signal.SIGKILL)
        self._buried(role)

    def signal(self, role: str, number: int) -> None:
        os.kill(self.pid(role), number)

    async def stop(self) -> None:
        """Have all end in order; Found if one does not."""
        for role in [role for role in ROLES if role in self.workers]:
            self.workers[role].stop()
            await self.until(lambda role=role: role in self.stats, END_SECONDS, f"the {role} did not stop")  # type: ignore[misc]
        for role in [role for role in ROLES if role in self.workers]:
            try:
                await asyncio.to_thread(self.workers[role].left, END_SECONDS)
            except PairError as error:
                raise Found(str(error)) from None
            self._buried(role)

    def end(self) -> None:
        """Make sure that everything is gone."""
        for worker in self.workers.values():
            worker.end()

    def _buried(self, role: str) -> None:
        self.workers.pop(role).end()
        if there := processes.outliving(self._pids_of[role], END_SECONDS):
            raise Found(f"the {role} has ended, and its processes {there} have not")

    # ---- what they say --------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take in what was said; Found for an error, and for an end that nobody asked for."""
        for role, lines in self._lines.items():
            while role in self.workers and not lines.empty():
                line = lines.get()[1]
                if line is None:
                    if role not in self.stats:
                        raise Found(f"the {role} ended by itself with code {self.workers[role].process.wait()}")
                elif line.kind == "error":
                    raise Found(f"the {role} failed: {line.text}")
                elif line.kind == "ready":
                    self._ready[role] = True
                    self.stats.pop(role, None)
                elif line.kind == "stats":
                    self.stats[role] = line.stats
                elif line.kind == "debug":
                    self.told[line.request] = line

    async def until(self, good: Callable[[], bool], seconds: float, what: str) -> None:
        """Listen until `good`; Found with `what` after `seconds`."""
        end = time.monotonic() + seconds
        while not good():
            if time.monotonic() > end:
                raise Found(f"{what} in {seconds:g} s")
            await asyncio.sleep(0.02)
            self.listen()

    def said(self, role: str, count: int = 12) -> list[str]:
        """Its last lines on standard error."""
        return self.workers[role].said().splitlines()[-count:]

    async def figures(self, client: httpx.AsyncClient, role: str) -> dict[str, float]:
        """Metric, with the values of its labels, by name, without tidegate_; httpx.HTTPError if it cannot be had."""
        response = (await client.get(f"{self.url(role)}/metrics")).raise_for_status()
        samples = [sample for family in text_string_to_metric_families(response.text) for sample in family.samples]
        return {" ".join((sample.name.removeprefix("tidegate_"), *sample.labels.values())): sample.value for sample in samples}
