"""`tidegate proxy`, `prefill` and `decode` as a user starts them: found through the proxy, asked, measured, and ended by a signal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidegate.engine.model import Model, ModelConfig, reference_generate

SIZES = ("--layers", "4", "--max-prompt", "256", "--new-tokens", "48", "--concurrency", "2")
TIDEGATE = (sys.executable, "-c", "from tidegate.engine.cli import main; main()")
PROMPT = "When the tide falls the gate swings out."


class Server:
    """One verb in a process of its own; url: what it said it is ready at."""

    def __init__(self, verb: str, *options: str, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [*TIDEGATE, verb, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | env,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        found = re.search(r"http://[0-9.:]+", self.ready)
        self.url = found[0] if found else ""

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ended(self) -> tuple[int, str]:
        """Exit code and log of a server that has been told to stop."""
        log = self.process.communicate(timeout=120)[1]
        return self.process.returncode, log

    def figures(self) -> dict[str, float]:
        """Metric, with its labels, by name."""
        text = httpx.get(f"{self.url}/metrics", trust_env=False, timeout=60).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {" ".join((sample.name, *sample.labels.values())): sample.value for sample in samples}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    shared = tmp_path_factory.mktemp("shm")
    with ExitStack() as servers:
        def started(verb: str, *options: str) -> Server:
            sizes = SIZES if verb != "proxy" else ()
            return servers.enter_context(Server(verb, *sizes, *options, env={"TIDEGATE_SHARED_MEMORY": str(shared)}))
        yield started
        servers.close()
    assert list(shared.iterdir()) == []


def ask(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 4} | body, timeout=120, trust_env=False)


def expect(count: int) -> list[int]:
    model = Model.random(ModelConfig.from_dict({"num_hidden_layers": 4, "dtype": "bfloat16"}), 0)
    return reference_generate(model, tuple(PROMPT.encode()), 512, count)[0]


def until(good: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not good():
        assert time.monotonic() < end
        time.sleep(0.05)


def remembered(server: Server) -> dict[str, float]:
    """Machines that it keeps, by machine and phase, but those of the slots, which stay."""
    machines = ("prefill_run", "transfer", "pool_object", "request_completion", "failure_invalidation", "read")
    return {name: count for name, count in server.figures().items() if name.split()[0].removeprefix("tidegate_") in machines}


def test_servers_join_a_proxy_serve_say_what_they_do_and_end_what_they_have(start: Callable[..., Server], tmp_path: Path) -> None:
    proxy = start("proxy", "--port", "0")
    assert httpx.get(f"{proxy.url}/health", trust_env=False).json()["status"] == "unavailable"
    nobody = ask(proxy.url)
    assert (nobody.status_code, "there is none" in nobody.text) == (503, True)

    joining = ("--proxy", proxy.url, "--trace", str(tmp_path / "trace"))
    with ThreadPoolExecutor() as pool:
        prefill, decode = pool.map(lambda verb: start(verb, *joining), ("prefill", "decode"))
        until(lambda: httpx.get(f"{proxy.url}/health", trust_env=False).status_code == 200)
        assert ask(proxy.url).json()["choices"][0]["token_ids"] == expect(4)

        of_prefill, of_decode = prefill.figures(), decode.figures()
        assert of_prefill["tidegate_physical_buffer free"] == 4
        assert of_prefill["tidegate_saved_bytes_total"] > 0
        assert of_decode["tidegate_pulled_bytes_total main"] > of_decode["tidegate_pulled_bytes_total index"] > 0
        assert of_decode["tidegate_blocks_free"] == of_decode["tidegate_blocks"]
        assert proxy.figures()["tidegate_requests_total"] == 2

        assert [answer.status_code for answer in pool.map(lambda _: ask(proxy.url), range(6))] == [200] * 6
        until(lambda: not remembered(prefill) and not remembered(decode))
        assert proxy.figures()["tidegate_requests_open"] == 0

        long = pool.submit(ask, proxy.url, max_tokens=48)
        until(lambda: decode.figures().get("tidegate_request_completion scheduled", 0) == 1)
        for server in (decode, prefill):
            server.process.send_signal(signal.SIGTERM)
        assert long.result(timeout=120).json()["choices"][0]["token_ids"] == expect(48)
        for server in (decode, prefill):
            code, log = server.ended()
            assert code == 0, log
            assert "ending what is under way" in log
    gone = httpx.get(f"{proxy.url}/health", trust_env=False).json()
    assert (gone["prefill"], gone["decode"]) == ({}, {})
    proxy.process.send_signal(signal.SIGTERM)
    assert proxy.ended()[0] == 0


@pytest.fixture
def taken() -> Iterator[str]:
    """A port that somebody has."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield str(held.getsockname()[1])


@pytest.mark.parametrize(("verb", "options", "said"), [
    ("prefill", ("--max-prompt", "0"), "--max-prompt is 0: a prompt has at least 1 token"),
    ("decode", ("--proxy", "localhost:8000"), "--proxy is 'localhost:8000': give http://HOST:PORT"),
    ("proxy", ("--drain", "-1"), "--drain is -1.0 s: 0"),
    ("proxy", ("--port", "TAKEN"), "cannot be bound"),
    ("prefill", ("--model", "/nowhere"), "/nowhere"),
])  # fmt: skip
def test_what_cannot_be_served_is_said_before_anything_is(verb: str, options: tuple[str, ...], said: str, taken: str) -> None:
    argv = [*TIDEGATE, verb, *(taken if option == "TAKEN" else option for option in options)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, said in done.stderr, done.stdout) == (2, True, ""), done.stderr
