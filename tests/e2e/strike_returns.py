"""Kills at random moments in a deployment that goes on: whoever is killed is started again at its address, and nobody else is.

Rules: a seed draws who is killed, at which step of its machines or when from outside, and what is asked; two proxies share the one that
survives: behind the one stands the victim, behind the other another of its role, so what is asked there concerns nobody who died.  A
request of the victim's is answered right, or with an error that names what died; one of the other's is answered right; after each return
the victim serves, and nobody holds anything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import httpx
import msgspec
import torch
from gate_tools import small
from pair_tools import TEXT
from stand_tools import TOKENS, Stand, none, standing
from strike import ANY, Strike, argv

from tidegate.engine.config import RunConfig
from tidegate.engine.model import Model, reference_generate

__all__ = ["returns", "wrong"]

DIED = {"prefill": "Prefill", "decode": "Decode"}
"""What the error of a request names whose server died."""
OURS, THEIRS = "proxy", "proxy-2"
Asked = list[tuple[str, bytes, Future[httpx.Response]]]


@cache
def _model(read_lease: float) -> tuple[RunConfig, Any]:
    c = small(deadline_seconds=60.0, read_lease=read_lease)
    torch.set_num_threads(1)
    return c, Model.random(c.model_config(), c.seed)


@cache
def right(read_lease: float, prompt: bytes) -> list[int]:
    c, model = _model(read_lease)
    return reference_generate(model, tuple(prompt), c.chunk, TOKENS)[0]


def returns(
    seed: int, lives: int, *, victim: str = "", commands: dict[str, Sequence[str]] | None = None, patience: float = 60.0,
    told: Callable[[str], None] = lambda text: None,
) -> list[str]:  # fmt: skip
    """What is wrong after `lives` kills and returns of one server; nothing, if all is well.

    victim: its role, if not drawn; commands: by server, where a bug is planted; patience: a request's deadline in seconds.
    """
    draw = random.Random(f"{seed}/returns")
    drawn, lease = draw.choice(("prefill", "decode")), draw.choice((0.0, 0.0, 120.0))
    victim, c = victim or drawn, msgspec.structs.replace(_model(lease)[0], deadline_seconds=patience)
    survivor, other = "decode" if victim == "prefill" else "prefill", f"{victim}-2"
    found: list[str] = []
    with ThreadPoolExecutor(16) as pool, standing(c, commands or {}) as s:
        list(pool.map(s.start, (OURS, THEIRS, survivor, other)))
        s.join(survivor, other, proxy=THEIRS)
        for life in range(lives):
            step = life % 2 == 0  # by itself at a step, or from outside
            nth, seconds = int(draw.lognormvariate(5.0, 1.5)) + 1, draw.uniform(0.0, 2.0)
            how = f"seed {seed}, life {life}: {victim} killed " + (f"at step {nth}" if step else f"after {seconds:.2f} s")
            notes = s.folder / f"life-{life}.jsonl"
            kill = [Strike(ANY, draw.choice(("before", "after")), "kill", nth)]
            s.start(victim, argv=argv(victim, kill, notes) if step else ())
            if life == 0:
                s.join(survivor, victim)
            elif not step:
                found += _served(s, lease, how)
            found += _struck(s, pool, draw, victim, lease, seconds=None if step else seconds, how=how)
            told(f"{how}: {len(found)} found")
            if found:
                return found
            for path in s.folder.glob(f"{notes.stem}.*"):
                path.unlink()
        s.start(victim)
        if not (found := _served(s, lease, f"seed {seed}, at the end: {victim} back")):
            s.stop()
    return found


def _served(s: Stand, lease: float, how: str) -> list[str]:
    """A server that came back serves, and whatever anybody held for the dead is given back."""
    prompt = TEXT[:70]
    if why := wrong(s.ask(prompt, OURS), right(lease, prompt), ""):
        return [f"{how}: a request after its return: {why}"]
    try:
        none(s.held)
        none(s.more)
    except AssertionError as held:
        return [f"{how}: everybody is answered, and this is still held: {held}"]
    return []


def _struck(
    s: Stand, pool: ThreadPoolExecutor, draw: random.Random, victim: str, lease: float, *, seconds: float | None, how: str
) -> list[str]:  # fmt: skip
    """Ask both until the victim is dead; what is wrong with the answers."""
    asked: Asked = []
    process, began = s.workers[victim].process, time.monotonic()

    def ask(proxy: str) -> None:
        prompt = TEXT[(first := draw.randrange(60)) : first + draw.choice((1, 16, 33, 70, 120))]
        asked.append((proxy, prompt, pool.submit(s.ask, prompt, proxy)))

    at_last = 20.0 if seconds is None else seconds  # its step may be one that it does not come to
    while process.poll() is None:
        if sum(not answer.done() for _, _, answer in asked) < 6:
            ask(THEIRS if len(asked) % 3 == 2 else OURS)
        if time.monotonic() - began > at_last:
            process.kill()
            process.wait()
        time.sleep(0.02)
    s.kill(victim)
    found = []
    for proxy, prompt, answer in asked:
        why = wrong(answer.result(), right(lease, prompt), victim if proxy == OURS else "")
        if why:
            found.append(f"{how}: {'its own request' if proxy == OURS else 'a request of others'}: {why}")
    return found


def wrong(answer: httpx.Response, due: list[int], died: str) -> str:
    """died: whose death may have cost the answer, if any."""
    if answer.status_code != 200:
        message = str(answer.json()["error"]["message"])
        return "" if died and DIED[died] in message else f"{answer.status_code} {message}"
    tokens = answer.json()["choices"][0]["token_ids"]
    return "" if tokens == due else f"WRONG {tokens}, due are {due}"
