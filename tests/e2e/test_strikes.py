"""Kills, stops, cuts, lost and doubled messages before and after edges of the machines, and at random steps: a sample; all of it is
`strike_runs`, which `make test-long` runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

import httpx
import pytest
from edge_tools import SHAPES
from strike import ANY, Strike
from strike_returns import returns, wrong
from strike_runs import one_run, random_strikes, role_of, schedule

SEED = int(os.environ.get("TIDEGATE_SEED") or 2026)
"""Of the sample: what it strikes at is the same each time, when it strikes is not."""

LONG = pytest.mark.skipif(not os.environ.get("TIDEGATE_LONG"), reason="test_killed shows it at chosen moments")


def both(*strikes: Strike) -> dict[str, list[Strike]]:
    return {role: [s for s in strikes if role_of(s) == role] for role in ("prefill", "decode")}


def test_the_schedule_has_every_fault_before_and_after_every_edge() -> None:
    every = schedule()
    edges = {s.edge for s in every}
    assert len(edges) > 150
    assert len(every) == len(set(every)) == 8 * len(edges)
    assert {role_of(s) for s in every} == {"prefill", "decode"}


def test_a_sample_at_edges() -> None:
    """One kill, and what a run survives beside it."""
    draw = Random(SEED)
    every = schedule()
    kill = draw.choice([s for s in every if s.fault == "kill"])
    sample, run = [kill, *draw.sample([s for s in every if s.fault != "kill"], 12)], draw.randrange(len(SHAPES))
    happened, wrong = one_run(both(*sample), run)
    assert not wrong, f"TIDEGATE_SEED={SEED}: run {run} with {'; '.join(map(str, happened))}: {wrong}"


def test_a_sample_at_random_steps() -> None:
    """Nobody is killed, so everybody has to come to rest."""
    draw = Random(SEED + 1)
    strikes, run = random_strikes(draw, kill=False), draw.randrange(1000)
    happened, wrong = one_run(strikes, run)
    assert not wrong, f"TIDEGATE_SEED={SEED}: run {run} with {'; '.join(map(str, happened))}: {wrong}"
    assert happened


@pytest.mark.parametrize("role", ["prefill", "decode"] if os.environ.get("TIDEGATE_LONG") else ["decode"])
def test_planted_a_worker_that_ends_by_itself_is_found(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, and nobody says that it was to be: the verdict is not excused."""
    monkeypatch.setattr("strike_runs.struck", lambda path: [])
    _, wrong = one_run({role: [Strike(ANY, "after", "kill", 40)]}, 0)
    assert f"the run failed: the {role} worker was killed by SIGKILL" in wrong


def test_planted_what_a_run_leaves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = __import__("strike_runs")._verdict

    def leaves(*arguments: object) -> str:
        (Path(os.environ["TIDEGATE_SHARED_MEMORY"]) / "tidegate-left").touch()
        return str(real(*arguments))

    monkeypatch.setattr("strike_runs._verdict", leaves)
    _, wrong = one_run({"prefill": [Strike(ANY, "before", "kill", 5)]}, 0)
    assert wrong == "files are left: tidegate-left"


def answer(status: int, body: dict[str, object]) -> httpx.Response:
    return httpx.Response(status, json=body)


def test_planted_what_an_answer_may_not_be_when_somebody_died() -> None:
    """An error that does not say who died, one to somebody whose server lives, and other tokens."""
    died = answer(503, {"error": {"message": "no Decode served the request in 4 tries; the last: ConnectError"}})
    tokens = answer(200, {"choices": [{"token_ids": [1, 2]}]})
    assert wrong(died, [1, 2], "decode") == wrong(tokens, [1, 2], "decode") == wrong(tokens, [1, 2], "") == ""
    assert wrong(died, [1, 2], "prefill") == wrong(died, [1, 2], "") != ""
    assert wrong(tokens, [1, 3], "decode") == "WRONG [1, 2], due are [1, 3]"


@LONG
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_whoever_is_killed_returns_and_nobody_else_is_started_again(victim: str, seed: int) -> None:
    assert returns(seed, 4, victim=victim) == []


@LONG
def test_planted_a_survivor_that_waits_for_the_dead_is_found() -> None:
    """Its gates stay shut."""
    unfenced = "from tidegate.engine import prefill_worker, returning\nreturning.is_dead = lambda life: False\nprefill_worker.main()"
    found = returns(SEED, 4, victim="decode", commands={"prefill": [sys.executable, "-c", unfenced]}, patience=5.0)
    assert any("504 not complete after 5 s" in one or "still held" in one for one in found), found
