"""Seeded simulation: nothing is lost, torn, leaked or left waiting; planted bugs are found; a seed is a run."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import Effect
from tidegate.protocol.machines import transfer as TR
from tidegate.protocol.messages import ReadFailed, TransferId
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec.bounds import FAULTS, Bounds
from tidegate.spec.sim import Outcome, simulate
from tidegate.spec.sim_jobs import simulate_jobs
from tidegate.spec.world import World

STEPS = 10_000_000 if os.environ.get("TIDEGATE_LONG") else 200_000
OPERATIONS = {
    "Abort", "Admit", "Claim", "CrashDecode", "CrashPrefill", "Deliver", "Evict", "Finish", "Forget", "Forward", "ForwardEnd",
    "GiveWay", "Heed", "Join", "Landed", "LayerDone", "LoadEnd", "Lose", "Miss", "OrphanEnd", "Owned", "PeerFenced", "PeerGone", "PeerLost",
    "PrefillGone", "ReadEnd", "Registered", "ResendFailed", "ResendReady", "ResendReport", "Retire", "Revoke", "SaveEnd",
    "Schedule", "Stop", "Write",
}  # fmt: skip


@pytest.mark.timeout(3600)  # the long form takes minutes
def test_every_fault_and_nothing_goes_wrong() -> None:
    out = simulate(STEPS, seed=2026)
    assert not out.wrong, out.wrong
    assert set(out.operations) == OPERATIONS


def test_a_seed_is_a_run_whatever_the_hash_seed() -> None:
    code = "from tidegate.spec.sim import simulate; print(simulate(4000, 5).digest)"
    digests = {
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True,
                       check=True).stdout for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


def test_each_job_is_the_run_of_its_seed() -> None:
    total = simulate_jobs(6_000, seed=5, jobs=2, faults=FAULTS)
    alone = [simulate(3_000, seed) for seed in (5, 6)]
    assert [o.digest for o in total.outcomes] == [o.digest for o in alone]
    assert (total.steps, total.wrong) == (sum(o.steps for o in alone), "")


def test_memory_stays_flat() -> None:
    """A World that is over leaves nothing behind: later Worlds need no more than earlier ones."""
    sizes: list[int] = []

    def told(out: Outcome) -> None:
        if out.worlds % 60 == 0:
            gc.collect()
            sizes.append(len(gc.get_objects()))

    simulate(60_000, seed=11, told=told)
    assert len(sizes) >= 4
    assert max(sizes[1:]) < sizes[0] + 2_000


def test_only_the_chosen_faults_strike() -> None:
    out = simulate(5_000, seed=1, faults=("loss", "abort"))
    assert not out.wrong, out.wrong
    assert "Lose" in out.operations
    assert not {"Evict", "Landed", "Miss", "Revoke"} & set(out.operations)


class ForgetsLanding(DecodeSession):
    """Gives blocks back although a copy of unknown fate may still land."""

    def read_end(self, transfer: TransferId, how: str, reason: str = "") -> list[Effect]:
        return super().read_end(transfer, "quiet" if how == "unknown" else how, reason)


class BelievesAtOnce(DecodeSession):
    """Takes its own read for good without asking Prefill."""

    def read_end(self, transfer: TransferId, how: str, reason: str = "") -> list[Effect]:
        effects = super().read_end(transfer, how, reason)
        if how == "ok":
            self._on_committed(transfer, effects)
        return effects


class LoadsNothing(PrefillSession):
    """Computes a later chunk without what the earlier ones left in the pool."""

    def needed(self, step: TransferId) -> tuple[tuple[int, int], ...]:
        return ()


class OneFailureReleasesAll(PrefillSession):
    """A report about one transfer takes the others for ended, too."""

    def _on_report(self, report: Any, effects: list[Effect]) -> None:
        super()._on_report(report, effects)
        for transfer, state in list(self.transfers.items()):
            if isinstance(report, ReadFailed) and TR.CanFail(state):
                self._end_transfer(transfer, TR.Fail(state), "", effects, tell=False)


class KeepsReadies(DecodeSession):
    """What READY said stays when the attempt is forgotten."""

    def _on_retired(self, message: Any) -> None:
        readies = dict(self.readies)
        super()._on_retired(message)
        self.readies |= readies


class ForgetsInTheMiddle(PrefillSession):
    """A run is forgotten as soon as Decode has retired it."""

    def held_by(self, run: int) -> frozenset[TransferId]:
        return frozenset()


BUGS = [ForgetsLanding, BelievesAtOnce, LoadsNothing, OneFailureReleasesAll, KeepsReadies, ForgetsInTheMiddle]


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found_and_the_report_repeats_them(bug: type) -> None:
    role = "prefill" if issubclass(bug, PrefillSession) else "decode"

    def world(bounds: Bounds) -> World:
        return World(bounds, **{role: bug})

    out = simulate(200_000, seed=3, world=world)
    assert out.wrong
    assert f"tidegate sim --seed 3 --steps {out.steps}" in out.wrong
    assert simulate(out.steps, seed=3, world=world).wrong == out.wrong


class TakesBackWithoutAFence(PrefillSession):
    """What a dead Decode may still read is given up as soon as it is known to be gone."""

    def can_lose(self, incarnation: int, *, lease: bool) -> bool:
        return super().can_lose(incarnation, lease=True)

    def peer_lost(self, incarnation: int, *, lease: bool) -> list[Effect]:
        return super().peer_lost(incarnation, lease=True)


class HearsTheSuccessor(PrefillSession):
    """Takes what another life of Decode refuses for the end of its predecessor's read."""

    def _on_report(self, report: Any, effects: list[Effect]) -> None:
        if (start := self.starts.get(report.transfer.run)) is not None:
            report = msgspec.structs.replace(report, reader=start.incarnation)
        super()._on_report(report, effects)


def mortal(rng: random.Random) -> Bounds:
    """Decode dies again and again, and everything goes through one slot."""
    return Bounds(layers=1, shared=frozenset({1}), chunks=1, runs=12, attempts=6, blocks=3, retiring=True, crash_decode=4,
                  loss=rng.choice((0, 3)), dup=rng.choice((0, 3)), prompts=(1,) * 6)  # fmt: skip


@pytest.mark.parametrize("bug", [TakesBackWithoutAFence, HearsTheSuccessor])
def test_planted_a_slot_is_taken_back_from_a_dead_decode_that_still_reads(bug: type[PrefillSession]) -> None:
    assert not simulate(20_000, seed=4, sizes=mortal).wrong
    out = simulate(200_000, seed=4, sizes=mortal, world=lambda bounds: World(bounds, prefill=bug))
    assert "while the copy of a dead Decode reads" in out.wrong
