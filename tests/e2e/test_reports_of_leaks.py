"""What users of other systems reported of requests that end early, tried on real servers, one after another on one deployment: nobody may
hold anything afterwards, and whoever asks next is served as if nothing had been.

Prompts tell the faults apart: each chunk's attention is a little slow, and so is the loading of a third chunk's first layer; of the rows of
a fourth chunk the first layer is not saved, and its read fails.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import httpx
import msgspec
import pytest
import torch
from gate_tools import small
from pair_tools import TEXT, slow
from serving_tools import JSON
from stand_tools import TOKENS, Stand, none, standing

from tidegate.engine.config import FaultSpec, Request
from tidegate.engine.model import reference_generate

CHUNK = 50
C = small(requests=(Request("longest", tuple(TEXT[:200])),), concurrency=2, deadline_seconds=60.0)
PREFILL = (slow("attend", 0.1, layer=1), slow("load", 0.3, layer=1, chunk=3), FaultSpec("save", "quiet", layer=1, chunk=4))
DECODE = (FaultSpec("read", "quiet", layer=1, chunk=4),)
MANY = 8


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with standing(C, {}) as s, ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: s.start(*one), [("proxy",), ("prefill", *PREFILL), ("decode", *DECODE), ("decode-2",)]))
        s.join("prefill", "decode")
        yield s


def prompts(chunks: int, first: int, count: int = 1) -> list[bytes]:
    """Of so many chunks, each another beginning."""
    return [TEXT[first + n :][: chunks * CHUNK - 5] for n in range(count)]


def tokens(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def together(s: Stand, asked: Sequence[bytes]) -> list[httpx.Response]:
    with ThreadPoolExecutor(len(asked)) as many:
        return list(many.map(s.ask, asked))


@cache
def right(prompt: bytes) -> list[int]:
    torch.set_num_threads(1)
    return reference_generate(C.load_model(), tuple(prompt), C.chunk, TOKENS)[0]


def served(s: Stand, *asked: bytes) -> None:
    """They are, at once, and then nobody holds anything."""
    assert [tokens(answer) for answer in together(s, asked)] == [right(prompt) for prompt in asked]
    none(s.held)
    none(s.more)


def leave(s: Stand, asked: Sequence[bytes], patience: float, between: float = 0.0) -> int:
    """How many clients left before they were answered: the first after `patience` seconds, each next one `between` later."""
    def one(number: int, prompt: bytes) -> bool:
        body = msgspec.json.encode({"prompt": list(prompt), "max_tokens": TOKENS})
        try:
            httpx.post(s.url("proxy") + "/v1/completions", content=body, headers=JSON, trust_env=False,
                       timeout=httpx.Timeout(60, read=patience + number * between))  # fmt: skip
        except httpx.ReadTimeout:
            return True
        return False

    with ThreadPoolExecutor(len(asked)) as many:
        return sum(many.map(one, range(len(asked)), asked))


def test_clients_that_leave_before_the_first_token_stop_the_prefill_that_works_and_those_that_wait(stand: Stand) -> None:
    """Reported of dynamo (13691, 14507: prefills of clients long gone keep the next one waiting; 4177: that one then fails) and sglang
    (28236: those in Prefill's queue stay there)."""
    before = stand.figures("prefill")["saved_bytes_total"]
    served(stand, *prompts(3, 0))
    whole = stand.figures("prefill")["saved_bytes_total"] - before
    asked = prompts(3, 10, 4)
    assert leave(stand, asked, 0.15) == len(asked)
    served(stand, *prompts(1, 5))
    assert stand.figures("prefill")["saved_bytes_total"] - before < (1 + len(asked)) * whole, "all were computed to their end"


def test_clients_that_leave_while_the_pool_loads(stand: Stand) -> None:
    """Reported of vllm-ascend (16662: the end of a load that nobody waits for is dropped, and the blocks of its request stay)."""
    (prompt,) = prompts(3, 0)
    assert leave(stand, [prompt] * 6, 0.25, between=0.08) > 0
    served(stand, prompt)


def test_clients_that_leave_when_prefill_gives_up_too(stand: Stand) -> None:
    """Reported of vllm (46283: where both sides end a request, neither tells the other that its blocks are free; 37837, 43226: whoever is
    told of the end of one that it does not know any more, dies)."""
    assert leave(stand, prompts(4, 20, 6), 0.2, between=0.15) > 0
    served(stand, *prompts(2, 3))


def test_more_failures_than_there_are_places_leave_all_of_them(stand: Stand) -> None:
    """Reported of sglang (9266: each failed transfer keeps its entry, until no request is taken) and LMCache (3187: once nothing could be
    had, nothing can)."""
    failed = together(stand, prompts(4, 30, MANY))
    assert all(answer.status_code == 500 for answer in failed), [answer.text for answer in failed]
    assert all("failed" in answer.json()["error"]["message"] for answer in failed)
    served(stand, *prompts(2, 7, C.concurrency))


def test_one_prompt_again_and_again_all_at_once(stand: Stand) -> None:
    """Reported of LMCache (2933: each hit on a known beginning keeps pages) and dynamo (1074: of many at once, some wait for ever)."""
    served(stand, *prompts(2, 9) * MANY)


def test_somebody_else_has_the_ports_of_a_decode_that_died(stand: Stand) -> None:
    """Reported of Mooncake (2039: others go on talking to whoever has the port now; 847: each waits for the dead in turn)."""
    old = stand.ready["decode"]
    stand.kill("decode")
    heard: list[bytes] = []
    with contextlib.ExitStack() as stack:
        for port in (old.port, old.http_port):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", port)))
            threading.Thread(target=_answers_nonsense, args=(listener, heard), daemon=True).start()
        stand.join("decode-2")
        stand.leave("decode")
        served(stand, *prompts(2, 11, 2))
    del stand.ready["decode"]  # it comes back, elsewhere
    stand.start("decode", *DECODE)
    stand.join("decode")
    stand.leave("decode-2")
    served(stand, *prompts(2, 13))
    stand.stop()


def _answers_nonsense(listener: socket.socket, heard: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        while True:
            one, _ = listener.accept()
            with one, contextlib.suppress(OSError):
                one.settimeout(1)
                heard.append(one.recv(1000))
                one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
