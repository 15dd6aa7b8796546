"""`tidegate decode --d-dp` beside Prefills that come and go: a process for each rank, which are found, asked, and ended together."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import torch
from test_servers import SIZES, Server, ask, expect, until
from typer.testing import CliRunner

from tidegate.engine.cli import app
from tidegate.engine.folders import sweep


def free_ports(count: int) -> int:
    """The first of so many that nobody has."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            base = int(first.getsockname()[1])
            try:
                for port in range(base + 1, base + count):
                    with socket.socket() as other:
                        other.bind(("127.0.0.1", port))
            except OSError:
                continue
            return base


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def well(proxy: Server, role: str) -> int:
    return sum(httpx.get(f"{proxy.url}/health", trust_env=False, timeout=60).json()[role].values())


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Who is killed leaves its folder to the next that starts, which sweeps: its leader does, if the last of it is gone by then."""
    yield {"TIDEGATE_SHARED_MEMORY": str(tmp_path)}
    monkeypatch.setenv("TIDEGATE_SHARED_MEMORY", str(tmp_path))
    sweep()
    assert not [*tmp_path.glob("tidegate-*")], "a server has left memory behind"


def ready_lines(decode: Server, ranks: int) -> list[str]:
    assert decode.process.stdout is not None
    return [decode.ready, *(decode.process.stdout.readline() for _ in range(ranks - 1))]


def test_ranks_serve_with_any_prefill_while_one_leaves_and_end_with_the_one_that_fails(env: dict[str, str]) -> None:
    port = free_ports(2)
    torch.set_num_threads(1)
    with ExitStack() as servers, ThreadPoolExecutor() as pool:
        proxy = servers.enter_context(Server("proxy", "--port", "0", env=env))
        joining = (*SIZES, "--proxy", proxy.url)
        starts = [("prefill", joining), ("prefill", joining), ("decode", (*joining, "--d-dp", "2", "--port", str(port)))]
        staying, leaving, decode = map(servers.enter_context, pool.map(lambda one: Server(one[0], *one[1], env=env), starts))
        told = [re.search(r"at (http://\S+), control plane at port (\d+)", line) for line in ready_lines(decode, 2)]
        assert sorted(int(found[2]) for found in told if found) == [port, port + 1]
        until(lambda: (well(proxy, "prefill"), well(proxy, "decode")) == (2, 2))

        asked = [pool.submit(ask, proxy.url, max_tokens=12) for _ in range(4)]
        leaving.process.send_signal(signal.SIGTERM)
        asked += [pool.submit(ask, proxy.url, max_tokens=12) for _ in range(2)]
        assert [one.result().json()["choices"][0]["token_ids"] for one in asked] == [expect(12)] * 6
        assert leaving.ended()[0] == 0
        for url in (found[1] for found in told if found):
            figures = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text
            assert float(re.findall(r'tidegate_pulled_bytes_total\{kind="main"\} (\S+)', figures)[0]) > 0, "each rank was asked"

        first, second = (os.pidfd_open(rank) for rank in children(decode.process.pid))
        signal.pidfd_send_signal(first, signal.SIGKILL)
        code, log = decode.ended()
        assert (code, "SIGTERM: ending what is under way" in log) == (4, True), log
        assert select.select([second], [], [], 0)[0], "a rank lives on without its leader"
        for rank in (first, second):
            os.close(rank)
        staying.process.send_signal(signal.SIGTERM)
        assert staying.ended()[0] == 0


def test_ranks_whose_leader_is_killed_end_by_themselves(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Server("decode", *SIZES, "--d-dp", "2", env=env) as decode:
        ready_lines(decode, 2)
        ranks = [os.pidfd_open(rank) for rank in children(decode.process.pid)]
        decode.process.kill()
        for rank in ranks:
            assert select.select([rank], [], [], 60)[0], "a rank lives on without its leader"
            os.close(rank)
    monkeypatch.setenv("TIDEGATE_SHARED_MEMORY", env["TIDEGATE_SHARED_MEMORY"])
    assert sweep() == 1, "the leader's own folder, for the next start"


@pytest.mark.parametrize(("options", "said"), [
    (("--d-dp", "2", "--dp-rank", "2"), "--dp-rank is 2: of 2 DP ranks the last is 1"),
    (("--d-dp", "0"), "--d-dp is 0"),
    (("--d-dp", "3", "--http-port", "65534"), "decode port is 65534: 3 servers come to 65536"),
    (("--d-dp", "2", "--port", "65535"), "port is 65535: 2 servers come to 65536"),
])  # fmt: skip
def test_ranks_that_cannot_be_are_refused_before_any_is_started(options: tuple[str, ...], said: str) -> None:
    refused = CliRunner().invoke(app, ["decode", *SIZES, *options])
    assert (refused.exit_code, said in refused.output) == (2, True), refused.output
