"""A Prefill or a Decode that is killed before, during or after a read, again and again, while another one serves other requests: nobody
else is started again, every answer is right, and at the end nobody holds anything.

Each life of the one that is killed is born with the fault that makes its moment come for certain, and stays.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import httpx
import pytest
import torch
from gate_tools import small
from pair_tools import TEXT, slow
from stand_tools import TOKENS, Stand, none, role_of, standing, until

from tidegate.engine.config import FaultSpec, RunConfig
from tidegate.engine.model import Model, reference_generate

LONG = bool(os.environ.get("TIDEGATE_LONG"))


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
