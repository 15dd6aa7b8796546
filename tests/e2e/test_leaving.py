"""A client that leaves, at every stage of its request: nobody keeps anything of it, and who came with it gets its own tokens.

Each stage is one in which the request must stay until the test has seen it there: a copy or a computation that takes a while, a place or
memory that another has.  Where it is, the servers say themselves (/metrics, /status).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from gate_tools import small
from pair_tools import MODEL, TEXT, slow
from stand_tools import Stand, none, standing
from test_killed import right

from tidegate.engine.config import FaultSpec, RunConfig
from tidegate.engine.waiting import Status

LONG = bool(os.environ.get("TIDEGATE_LONG"))
LEAVES, BESIDE = TEXT[:70], TEXT[20:90]
HALF = slow("attend", 0.5)
GONE = "the client has gone"


class Stage(NamedTuple):
    """faults: of each worker; at: the server and what it says when the client's request, and nobody else's, has come there: a figure
    above 0, or the kind of a wait; taken: has another the place that it waits for? tokens: that the client asks for; changes: of the
    configuration."""

    at: tuple[str, str]
    prefill: tuple[FaultSpec, ...] = ()
    decode: tuple[FaultSpec, ...] = ()
    proxy: tuple[FaultSpec, ...] = ()
    taken: bool = False
    tokens: int = 4
    changes: tuple[tuple[str, object], ...] = ()


FIRST = {"layer": 1, "nth": 1}
STAGES = {
    "its START is under way": Stage(
        ("decode", "request_completion advertised"), proxy=(FaultSpec("send", what="START", delay=2.0, nth=1),),
    ),
    "Decode has no memory for it": Stage(("decode", "memory"), prefill=(HALF,), taken=True, changes=(("concurrency", 1),)),
    "Prefill has no blocks for it": Stage(("prefill", "blocks"), prefill=(HALF,), taken=True, changes=(("num_blocks", 5),)),
    "Prefill computes": Stage(("prefill", "prefill_run running"), prefill=(slow("attend", 2.0, chunk=1, **FIRST),)),
    "Decode reads": Stage(("decode", "read reading"), decode=(slow("read", 2.0, chunk=1, **FIRST),)),
    "Prefill saves": Stage(("prefill", "physical_buffer draining"), prefill=(slow("save", 2.0, chunk=1, **FIRST),)),
    "Prefill loads": Stage(("prefill", "physical_buffer loading"), prefill=(slow("load", 2.0, chunk=2, **FIRST),)),
    "Decode generates": Stage(("decode", "request_completion scheduled"), tokens=1500),
}
SHORT = ("Prefill has no blocks for it",)


def leave(s: Stand, prompt: bytes, tokens: int, there: Callable[[], bool]) -> None:
    """A client that asks by way of the proxy, and closes its connection when its request is `there`."""
    url = urlsplit(s.url("proxy"))
    body = msgspec.json.encode({"prompt": list(prompt), "max_tokens": tokens})
    with socket.create_connection((url.hostname, url.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                       % (len(body), body))  # fmt: skip
        client.settimeout(0.01)
        end = time.monotonic() + 60
        while not there():
            assert time.monotonic() < end, "the request does not come there"
            try:
                raise AssertionError(f"it was answered first: {client.recv(300)!r}")
            except TimeoutError:
                pass


def says(s: Stand, role: str, what: str) -> bool:
    """Does the server say that a request is there?"""
    if " " in what:
        return s.figures(role).get(what, 0) > 0
    status = msgspec.json.decode(httpx.get(f"{s.url(role)}/status", trust_env=False, timeout=60).content, type=Status)
    return any(wait.kind == what for wait in status.waits)


def unheard(s: Stand, heard: list[str]) -> list[str]:
    """Has Decode not given the request up?  Then it has gone on with it.  heard: what it has said so far."""
    heard += s.said("decode")
    return [] if GONE in heard else [f"nobody is told that {GONE}: {heard}"]


def left(stage: Stage, **argv: list[str]) -> list[str]:
    """What is wrong with others when a client has left at that stage; AssertionError for what is held of it a minute later."""
    c = small(**{"new_tokens": stage.tokens, "model": MODEL | {"dtype": "float32", "max_position_embeddings": 4096},
                 "deadline_seconds": 600.0, "max_prompt": 70, "requests": ()} | dict(stage.changes))  # fmt: skip
    with ThreadPoolExecutor(1) as pool, standing(c, argv) as s:
        for role in ("proxy", "prefill", "decode"):
            s.start(role, *getattr(stage, role))
        s.join("prefill", "decode")
        beside = pool.submit(s.ask, BESIDE) if stage.taken else None
        if beside is not None:
            while not says(s, "prefill", "prefill_run running"):
                time.sleep(0.02)
        leave(s, LEAVES, stage.tokens, lambda: says(s, *stage.at))
        beside = beside or pool.submit(s.ask, BESIDE)
        wrong = wrong_answer(c, "beside it", beside.result(120), BESIDE)
        none(s.held)
        none(partial(unheard, s, []))
        wrong += wrong_answer(c, "after it", s.ask(LEAVES), LEAVES)
        none(s.held)
        s.stop()
    return wrong


def wrong_answer(c: RunConfig, who: str, answer: httpx.Response, prompt: bytes) -> list[str]:
    if answer.status_code != 200:
        return [f"{who}: {answer.status_code}, {answer.text}"]
    tokens, due = answer.json()["choices"][0]["token_ids"], right(c, prompt)
    return [] if tokens == due else [f"{who}: {tokens} where {due} is right"]


@pytest.mark.parametrize("name", STAGES if LONG else SHORT)
def test_a_client_leaves_and_takes_nothing_along(name: str) -> None:
    assert left(STAGES[name]) == []


DEAF = """
from tidegate.engine.admission import Admission
Admission._cancel = lambda self, ask: None
"""
KEEPS = """
from tidegate.engine.decode_core import DecodeCore
DecodeCore._reclaim = lambda self, attempt: None
"""


PLANTED = {"deaf": (DEAF, f"nobody is told that {GONE}"), "keeps": (KEEPS, "blocks are taken")}


@pytest.mark.parametrize("name", PLANTED if LONG else ())
def test_planted_a_decode_that_does_not_hear_of_it_or_keeps_its_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted, seen = PLANTED[name]
    monkeypatch.setattr("stand_tools.PATIENCE", 5.0)
    run = f"{planted}\nfrom tidegate.engine import decode_worker\ndecode_worker.main()"
    try:
        found = left(STAGES["Decode reads"], decode=[sys.executable, "-c", run])
    except AssertionError as error:
        found = [str(error)]
    assert seen in str(found)
