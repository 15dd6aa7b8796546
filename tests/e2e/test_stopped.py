"""Parts that stand still for a while, or end and come back, with requests under way; and what is taken of shared memory meanwhile."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from pair_tools import slow
from serving_tools import Serving, serving
from test_security import tree
from test_servers import SIZES, Server, ask, expect, remembered, until
from test_serving import LONGEST, right, small, tokens
from test_waiting import status, why

SHARED = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")
TAKES = """
import os
from tidegate.engine import control
real = control.each
def each(*rest):
    os.posix_fallocate(os.memfd_create("tidegate-more"), 0, 4096)
    real(*rest)
control.each = each
from tidegate.engine.decode_worker import main
main()
"""
SLOW_STEPS = (slow("attend", 0.05),)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def asked(s: Serving, *prompts: bytes) -> Iterator[list[httpx.Response]]:
    """Requests under way; all have their answers, in order, when it is over."""
    with ThreadPoolExecutor() as pool:
        answers: list[httpx.Response] = []
        under_way = [pool.submit(s.post, prompt=list(prompt)) for prompt in prompts]
        yield answers
        answers += [one.result() for one in under_way]


def test_a_prefill_that_stands_still_is_named_as_what_decode_waits_for_and_goes_on() -> None:
    c = small(wait_limit_seconds=0.5, resend_seconds=0.05, concurrency=2, prefill_faults=SLOW_STEPS)
    with serving(c) as s:
        assert s.prefill is not None
        with asked(s, LONGEST, LONGEST[:150]) as answers:
            until(lambda: any(wait.kind == "rows" for wait in status(s, "decode").waits))
            with stopped(s.prefill.process.pid):
                until(lambda: s.health("decode")["code"] == 503)
                health = s.health("decode")
                assert health["status"] == "waiting"
                told = why(s.url["proxy"])
                assert told.exit_code == 1
                assert re.search(r"has waited [\d.]+ s for rows of .*Prefill.*run \d+", told.output), told.output
                assert f"{s.url['prefill']}: does not answer (stopped, or hanging)" in told.output
                assert not answers
        assert [tokens(one) for one in answers] == [right(c, LONGEST), right(c, LONGEST[:150])]
        until(lambda: s.health("decode")["code"] == 200)
        figures = s.stop()
        assert figures["decode"]["blocks_free"] == c.decode_blocks
        assert figures["prefill"]["slots_free"] == figures["prefill"]["slots"]


def test_a_proxy_that_stands_still_holds_up_answers_and_nothing_else() -> None:
    c = small(concurrency=2, prefill_faults=SLOW_STEPS)
    with serving(c) as s:
        with asked(s, LONGEST, LONGEST[:150]) as answers:
            until(lambda: s.figure("prefill", "tidegate_prefill_run") == 2)
            with stopped(s.run.workers["proxy"].process.pid):
                until(lambda: s.health("decode")["active"] == 0)
                assert s.figure("decode", "tidegate_blocks_free") == c.decode_blocks
                assert not answers
        assert [tokens(one) for one in answers] == [right(c, LONGEST), right(c, LONGEST[:150])]
        s.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers whose shared memory is in `tmp_path`."""
    with ThreadPoolExecutor() as pool:
        servers: list[Server] = []

        def started(*verbs: tuple[str, ...]) -> list[Server]:
            made = list(pool.map(lambda options: Server(*options, env={"TIDEGATE_SHARED_MEMORY": str(tmp_path)}), verbs))
            servers.extend(made)
            return made

        try:
            yield started
        finally:
            for server in servers:
                server.__exit__()


def test_a_proxy_that_is_killed_and_comes_back_under_its_port_serves_again(start: Callable[..., list[Server]]) -> None:
    (proxy,) = start(("proxy", "--port", "0"))
    port = proxy.url.rpartition(":")[2]
    prefill, decode = start(*((verb, *SIZES, "--proxy", proxy.url) for verb in ("prefill", "decode")))

    def healthy() -> bool:
        return httpx.get(f"{proxy.url}/health", trust_env=False, timeout=60).status_code == 200

    until(healthy)
    with ThreadPoolExecutor() as pool:
        lost = [pool.submit(ask, proxy.url, max_tokens=48) for _ in range(2)]
        until(lambda: decode.figures().get("tidegate_request_completion scheduled", 0) >= 1)
        proxy.process.kill()
        proxy.process.wait()
        for one in lost:
            with pytest.raises(httpx.RemoteProtocolError, match="disconnected without sending a response"):
                one.result(timeout=120)
        until(lambda: not remembered(prefill) and not remembered(decode))
        figures = decode.figures()
        assert figures["tidegate_blocks_free"] == figures["tidegate_blocks"]

        (proxy,) = start(("proxy", "--port", port))
        until(healthy)
        assert ask(proxy.url).json()["choices"][0]["token_ids"] == expect(4)

        kept = pool.submit(ask, proxy.url, max_tokens=48)
        until(lambda: decode.figures().get("tidegate_request_completion scheduled", 0) == 1)
        proxy.process.send_signal(signal.SIGTERM)
        assert kept.result(timeout=120).json()["choices"][0]["token_ids"] == expect(48), "one that ends in order answers first"
        assert proxy.ended()[0] == 0
        (proxy,) = start(("proxy", "--port", port))
        until(healthy)
        assert ask(proxy.url).json()["choices"][0]["token_ids"] == expect(4)


def shared(s: Serving) -> dict[str, int]:
    """Shared memory that the processes of a deployment have, named or not: file -> bytes."""
    taken: dict[str, int] = {}
    assert s.prefill is not None
    for worker in (s.prefill, *s.run.workers.values()):
        for pid in tree(worker.process.pid):
            for fields in map(str.split, Path(f"/proc/{pid}/maps").read_text().splitlines()):
                if len(fields) > 5 and fields[5].startswith(SHARED):
                    taken.setdefault(f"{fields[3]}:{fields[4]}", 0)
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    name, found = os.readlink(fd), fd.stat()
                except FileNotFoundError:  # closed meanwhile
                    continue
                if name.startswith(SHARED):
                    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
                    taken[f"{device}:{found.st_ino}"] = found.st_blocks * 512
    folder = Path(s.config.scratch_folder)
    return taken | {str(path.relative_to(folder)): path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()}


def grown(decode_argv: list[str] | None = None) -> tuple[dict[str, int], dict[str, int]]:
    """Before the first request, and after some."""
    c = small(concurrency=2)
    with serving(c, decode_argv=decode_argv) as s:
        before = shared(s)
        with asked(s, LONGEST, LONGEST[:150], LONGEST[7:90], LONGEST) as answers:
            pass
        assert [tokens(one) for one in answers] == [right(c, one) for one in (LONGEST, LONGEST[:150], LONGEST[7:90], LONGEST)]
        return before, shared(s)


def test_nothing_is_taken_of_shared_memory_after_the_start_so_it_cannot_run_out_during_a_run() -> None:
    before, after = grown()
    assert sum(before.values()) > 100_000
    assert after == before


def test_planted_a_decode_that_takes_some_for_a_message_is_found() -> None:
    before, after = grown([sys.executable, "-c", TAKES])
    assert after.keys() > before.keys()
