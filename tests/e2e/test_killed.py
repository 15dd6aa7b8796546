"""A Prefill or a Decode that is killed before, during or after a read, again and again, while another one serves other requests: nobody
else is started again, every answer is right, and at the end nobody holds anything.

Each life of the one that is killed is born with the fault that makes its moment come for certain, and stays.
"""

from __future__ import annotations

import os
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
import torch
from gate_tools import small
from pair_tools import TEXT, slow
from prometheus_client.parser import text_string_to_metric_families
from serving_tools import JSON

from tidegate.engine.config import FaultSpec, RunConfig
from tidegate.engine.http.proxy import ProxyConfig
from tidegate.engine.model import Model, reference_generate
from tidegate.engine.pair import Worker, worker_argv
from tidegate.engine.soak.processes import Holding, holding
from tidegate.engine.soak.rest import grown, unrest
from tidegate.engine.worker_io import Line

LONG = bool(os.environ.get("TIDEGATE_LONG"))
TOKENS = 4


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

    def start(self, name: str, *faults: FaultSpec) -> None:
        role, old = role_of(name), self.ready.get(name)
        there: dict[str, Any] = {}
        if old is not None:
            there = {"prefill_port": old.http_port} if role == "prefill" else {"port": old.port, "decode_port": old.http_port}
        c: Any = msgspec.structs.replace(self.config, **{f"{role}_faults": faults} | there) if role != "proxy" else ProxyConfig(
            max_retries=3, retry_delay=0.05, scratch_folder=self.config.scratch_folder)  # fmt: skip
        self._lines[name] = queue.Queue()
        self.workers[name] = Worker(name, self._argv.get(name) or worker_argv(role), c, self._lines[name])
        while (line := self._lines[name].get(timeout=300)[1]).kind != "ready":
            assert line.kind != "error", line.text
        self.ready[name] = line

    def kill(self, name: str) -> None:
        self.workers[name].process.kill()
        self.workers.pop(name).end()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ready[name].http_port}"

    def _instance(self, method: str, name: str) -> None:
        body = msgspec.json.encode({"role": role_of(name), "url": self.url(name), "seconds": 3600})
        response = httpx.request(method, self.url("proxy") + "/v1/instances", content=body, headers=JSON, trust_env=False, timeout=60)
        assert response.status_code == 200, response.text

    def join(self, *names: str) -> None:
        for name in names:
            self._instance("POST", name)

    def leave(self, name: str) -> None:
        self._instance("DELETE", name)

    def ask(self, prompt: bytes) -> httpx.Response:
        body = msgspec.json.encode({"prompt": list(prompt), "max_tokens": TOKENS})
        return httpx.post(self.url("proxy") + "/v1/completions", content=body, headers=JSON, timeout=120, trust_env=False)

    def figures(self, name: str) -> dict[str, float]:
        text = httpx.get(self.url(name) + "/metrics", trust_env=False, timeout=60).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {" ".join((sample.name.removeprefix("tidegate_"), *sample.labels.values())): sample.value for sample in samples}

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
    end = time.monotonic() + 60
    while not good():
        assert time.monotonic() < end
        time.sleep(0.02)


def none(what: Callable[[], list[str]]) -> None:
    """Wait until there is none of it."""
    end = time.monotonic() + 60
    while found := what():
        assert time.monotonic() < end, found
        time.sleep(0.1)


def right(c: RunConfig, prompt: bytes) -> list[int]:
    torch.set_num_threads(1)
    return reference_generate(Model.random(c.model_config(), c.seed), tuple(prompt), c.chunk, TOKENS)[0]


class Moment(NamedTuple):
    """faults: of the life that is killed; at: the server, its figure, that is above 0 when the moment has come."""

    faults: tuple[FaultSpec, ...]
    at: tuple[str, str]


FIRST = {"layer": 1, "chunk": 1, "nth": 1}
COMPUTING, HELD, UNANSWERED = ("prefill", "prefill_run running"), ("prefill", "transfer held"), ("decode", "read done")
MOMENTS = {
    "decode": {
        "before a read": Moment((), COMPUTING),
        "during a read": Moment((slow("read", 3600.0, **FIRST),), HELD),
        "after a read, of which Prefill does not hear": Moment((FaultSpec("send", "lose", "READ_DONE"),), UNANSWERED),
    },
    "prefill": {
        "during a read": Moment((), HELD),
        "before a read": Moment((slow("attend", 3600.0, **FIRST),), COMPUTING),
        "after a read, of which Decode gets no answer": Moment((FaultSpec("send", "lose", "COMMITTED"),), UNANSWERED),
    },
}
"""By who is killed; in this order, for the survivor's fault, which meets the very first request, makes the first moment of each."""
SURVIVOR = {"prefill": slow("attend", 3.0, **FIRST), "decode": slow("read", 3.0, **FIRST)}


def killed(role: str, *names: str, argv: dict[str, Sequence[str]] | None = None, **changes: Any) -> list[str]:
    """What is wrong with the answers, by moment: of the request that each struck, of another one, and of one of whoever came back."""
    c = small(**({"deadline_seconds": 60.0} | changes))
    survivor, another = "decode" if role == "prefill" else "prefill", f"{role}-2"
    asked: list[tuple[str, bytes, Future[httpx.Response]]] = []
    with ThreadPoolExecutor(4) as pool, standing(c, argv or {}) as s:

        def ask(what: str) -> Future[httpx.Response]:
            prompt = TEXT[len(asked) : len(asked) + 70]
            asked.append((what, prompt, pool.submit(s.ask, prompt)))
            return asked[-1][2]

        moments = [(name, MOMENTS[role][name]) for name in names]
        beside = (slow("attend", 0.1),) if role == "prefill" else ()  # or it has answered too soon
        list(pool.map(lambda one: s.start(*one), [
            ("proxy",), (survivor, SURVIVOR[survivor]), (another, *beside), (role, *moments[0][1].faults),
        ]))  # fmt: skip
        s.join(survivor, role)
        for number, (name, moment) in enumerate(moments, 1):
            struck = ask(f"{name}: who was served")
            come(s, moment, struck)
            s.join(another)
            beside_it = ask(f"{name}: another")
            under_way(s, [struck, beside_it])
            s.kill(role)
            wait([struck, beside_it])
            if argv:  # that shows a planted bug
                break
            s.start(role, *(moments[number][1].faults if number < len(moments) else ()))
            s.leave(another)
            none(s.held)
            none(s.more)
        else:
            wait([ask("whoever came back")])
            assert not [life for life in (role, survivor) if not moved(s.figures(life))]
            none(s.held)
            s.stop()
    return [f"{what}: {said}" for what, prompt, answer in asked if (said := wrong(answer.result(), right(c, prompt)))]


def come(s: Stand, moment: Moment, struck: Future[httpx.Response]) -> None:
    server, figure = moment.at
    until(lambda: s.figures(server).get(figure, 0) > 0 or struck.done())
    assert not struck.done(), f"the moment did not come: {struck.result().text}"


def under_way(s: Stand, asked: Sequence[Future[httpx.Response]]) -> None:
    """Until Prefills have all of them, or have answered one; what is slow is not slow for ever."""
    prefills = [name for name in s.workers if role_of(name) == "prefill"]
    until(lambda: sum(s.figures(name)["prefill_calls"] for name in prefills) == len(asked) or any(one.done() for one in asked))


def moved(figures: dict[str, float]) -> bool:
    """Has it given, or read, any bytes?"""
    return any(count > 0 for name, count in figures.items() if name.startswith(("saved_bytes_total", "pulled_bytes_total")))


def wrong(answer: httpx.Response, due: list[int]) -> str:
    if answer.status_code != 200:
        return f"{answer.status_code} {answer.json()['error']['message']}"
    tokens = answer.json()["choices"][0]["token_ids"]
    return "" if tokens == due else f"WRONG {tokens}, due are {due}"


SIZES = [{}] + ([{"p_tp": 2, "d_tp": 2}, {"read_lease": 120.0}, {"shared_buffers": None, "independent_layers": "all"}] if LONG else [])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("role", list(MOMENTS))
def test_one_is_killed_at_every_moment_and_all_others_go_on(role: str, sizes: dict[str, Any]) -> None:
    assert killed(role, *MOMENTS[role], **sizes) == []


UNFENCED = """
from tidegate.engine import prefill_worker, returning
returning.is_dead = lambda life: False
prefill_worker.main()
"""
"""Prefill waits for the reads of the dead."""
BLIND = """
from tidegate.engine import decode_worker, parting
parting.Partings.look = lambda self: None
decode_worker.main()
"""
"""Decode waits for what the dead has to say."""


@pytest.mark.skipif(not LONG, reason="the short run shows that it goes on")
@pytest.mark.parametrize(("role", "survivor", "code", "who"), [
    ("decode", "prefill", UNFENCED, ["who was served", "another"]), ("prefill", "decode", BLIND, ["who was served"]),
])  # fmt: skip
def test_planted_the_survivor_waits_for_the_dead(role: str, survivor: str, code: str, who: list[str]) -> None:
    wrong = killed(role, "during a read", argv={survivor: [sys.executable, "-c", code]}, deadline_seconds=10.0)
    assert [line for line in wrong if "504 not complete after 10 s" in line] == wrong
    assert [line.split(": ")[1] for line in wrong] == who
