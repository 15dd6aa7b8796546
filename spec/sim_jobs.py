"""A simulation on several cores: one seed each.

Rules: job i simulates seed + i, and is the run that `tidegate sim --seed` makes of that seed alone, so a failure is repeated
without the others; the first failure ends the rest at their next World.
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from tidegate.spec.sim import Outcome, simulate

__all__ = ["Total", "peak_mib", "simulate_jobs"]

_shared: list[Any] = []  # in a worker: steps of each job so far, and whether to stop


@dataclass(frozen=True)
class Total:
    """outcomes: of seed, seed + 1, ...; peak: the most memory that one job held, in MiB."""

    outcomes: tuple[Outcome, ...]
    peak: float

    @property
    def steps(self) -> int:
        return sum(o.steps for o in self.outcomes)

    @property
    def worlds(self) -> int:
        return sum(o.worlds for o in self.outcomes)

    @property
    def operations(self) -> dict[str, int]:
        names = sorted({op for o in self.outcomes for op in o.operations})
        return {op: sum(o.operations.get(op, 0) for o in self.outcomes) for op in names}

    @property
    def wrong(self) -> str:
        """What the failing jobs say; empty if none failed."""
        return "\n".join(o.wrong for o in self.outcomes if o.wrong)


@dataclass
class _Job:
    number: int
    steps: int
    seed: int
    faults: Collection[str] = field(default_factory=tuple)


def peak_mib() -> float:
    """The most memory that this process held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _begin(*shared: Any) -> None:
    _shared[:] = shared


def _run(job: _Job) -> tuple[Outcome, float]:
    done, stop = _shared

    def told(out: Outcome) -> bool:
        done[job.number] = out.steps
        return bool(stop.is_set())

    out = simulate(job.steps, job.seed, faults=job.faults, told=told)
    if out.wrong:
        stop.set()
    return out, peak_mib()


def simulate_jobs(
    steps: int, seed: int, jobs: int, *, faults: Collection[str], told: Callable[[int], object] = lambda steps: None
) -> Total:
    """At least `steps` steps over `jobs` processes, an equal share each; told: hears how many are done, twice a second."""
    context = multiprocessing.get_context("spawn")
    done, stop = context.Array("q", jobs), context.Event()
    work = [_Job(i, -(-steps // jobs), seed + i, faults) for i in range(jobs)]
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(done, stop)) as pool:
        futures = [pool.submit(_run, job) for job in work]
        try:
            while wait(futures, timeout=0.5).not_done:
                told(sum(done[:]))
        except BaseException:
            stop.set()
            raise
        found = [future.result() for future in futures]
    return Total(tuple(out for out, _ in found), max(peak for _, peak in found))
