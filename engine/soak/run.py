"""A soak from its first process to its last finding.

Rules: servers live through rounds; in a round clients ask and deeds are done, then everything comes to rest and is looked over: each
answer is compared, each process asked what it holds; the first finding ends the soak, with what the processes said; the same seed draws
the same questions, lives and deeds; at the end nothing is left, neither process nor file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from tidegate.engine.pool_folder import run_folder
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_copies import extent_layout
from tidegate.engine.soak import processes
from tidegate.engine.soak.deeds import Deed, Deeds, draw_deeds
from tidegate.engine.soak.fleet import ROLES, Fleet, Found
from tidegate.engine.soak.judge import Judge
from tidegate.engine.soak.kinds import KINDS, Life, Sizes, draw_life
from tidegate.engine.soak.report import Report
from tidegate.engine.soak.rest import grown, unrest
from tidegate.engine.soak.traffic import HUNG, LEFT, Answer, Question, Texts, ask

__all__ = ["soak"]

ROUNDS = (3, 8)
"""Of a life: between so many and so many; of the first, in which nothing goes wrong, one."""
QUESTIONS, SPREAD, LEAVE = (4, 16), 3.0, 0.2
PATIENCE = 60.0
"""Seconds: of a client beyond its request's deadline, and until everything is at rest; for a machine that has other things to do."""


def soak(
    minutes: float, faults: Sequence[str], seed: int, *, argv: Mapping[str, Sequence[str]] | None = None,
    told: Callable[[str], None] = lambda text: None, rounds: int = 0, first: int = 0,
    patience: float = PATIENCE, traces: Path | None = None,
) -> Report:  # fmt: skip
    """Run one.  minutes: after which no round begins; rounds: at most so many, 0 for any number; first: the life to begin with, of which
    0 has no faults; argv: other commands for workers, by role (tests plant bugs so); told: of progress; patience: seconds until a
    client that has no answer, or whatever is still held, is a finding; traces: each life is recorded in a folder of its own there.
    OSError where the system does not allow what a fault needs.
    """
    with _folder() as folder:
        return asyncio.run(_Soak(folder, faults, seed, argv or {}, told, patience, traces).run(60 * minutes, rounds, first))


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Shared memory of this soak alone: whatever it or its processes leave is found there."""
    folder, lock = run_folder()
    before = os.environ.get("TIDEGATE_SHARED_MEMORY")
    os.environ["TIDEGATE_SHARED_MEMORY"] = str(folder)
    try:
        yield folder
    finally:
        if before is None:
            del os.environ["TIDEGATE_SHARED_MEMORY"]
        else:
            os.environ["TIDEGATE_SHARED_MEMORY"] = before
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


class _Soak:
    def __init__(
        self, folder: Path, faults: Sequence[str], seed: int, argv: Mapping[str, Sequence[str]], told: Callable[[str], None],
        patience: float, traces: Path | None,
    ) -> None:  # fmt: skip
        self._traces = traces
        self._folder, self._faults, self._seed, self._told = folder, tuple(faults), seed, told
        self._patience = patience
        self._sizes, self._fleet = Sizes(), Fleet(argv)
        self._texts = Texts(seed, self._sizes)
        config = self._life(0).config
        self._judge = Judge(config)
        self._pool = LocalPool(extent_layout(config.slot_layout()), config.pool_objects, folder=folder / "pool")
        self._deeds = Deeds(self._fleet, self._pool, spare=self._sizes.pool_blocks * 2 // 3)
        self._first: dict[int, processes.Holding] = {}
        self._report = Report()

    def _life(self, number: int) -> Life:
        trace = "" if self._traces is None else str(self._traces / f"life-{number}")
        return draw_life(
            self._seed, number, self._faults, self._sizes, pool_folder=str(self._folder / "pool"), scratch_folder=str(self._folder),
            trace=trace, **self._fleet.ports_of,
        )  # fmt: skip

    async def run(self, seconds: float, rounds: int, first: int) -> Report:
        report, began = self._report, time.monotonic()
        try:
            while time.monotonic() - began < seconds and not (0 < rounds <= report.rounds or report.found):
                await self._live(self._life(first + report.lives), began + seconds, rounds)
            self._pool.close()
            if not report.found and (left := self._left()):
                report.found.append(f"files are left in shared memory: {', '.join(left)}")
        except Found as found:
            report.found.append(str(found))
        finally:
            if report.found:
                report.said = {role: self._fleet.said(role) for role in self._fleet.workers}
            self._fleet.end()
            self._pool.close()
        if there := sorted(filter(processes.alive, self._fleet.pids)):
            report.found.append(f"processes are left: {there}")
        report.equal, report.failed, report.left = self._judge.counts
        if not report.found and not report.equal:
            report.found.append("no answer was compared, which shows nothing: give more --minutes, or fewer faults")
        report.logits_equal, report.seconds = self._judge.logits_equal, time.monotonic() - began
        return report

    def _left(self) -> list[str]:
        """Names of what is in the folder; but for the servers' notes, which go with the folder of a run, as this one will."""
        return sorted(path.name for path in self._folder.iterdir() if path.suffix != ".server")

    # ---- a life ---------------------------------------------------------------------------------------------------

    async def _live(self, life: Life, until: float, rounds: int) -> None:
        report, draw = self._report, random.Random(f"{self._seed}/rounds/{life.number}")
        c = life.config
        self._told(f"life {life.number}: chunks of {c.chunk}, {c.shared_buffers or 'no'} shared buffers, {c.concurrency} at once; faults "
                   f"{', '.join(life.faults) or 'none'}")  # fmt: skip
        if c.trace:
            Path(c.trace).mkdir(parents=True)
        await self._fleet.start(life)
        report.lives += 1
        for _ in range(draw.randint(*ROUNDS) if life.number else 1):
            await self._round(life, draw)
            report.rounds += 1
            if time.monotonic() > until or 0 < rounds <= report.rounds or report.found:
                break
        if report.found:
            return
        await self._fleet.stop()
        self._check_end()

    def _check_end(self) -> None:
        stats = self._fleet.stats
        p, d = stats["prefill"], stats["decode"]
        self._report.injected += int(sum(one["injected"] for one in stats.values()))
        due = {"layer buffers": (p["slots_free"], p["slots"]), "blocks of Prefill": (p["blocks_free"], p["blocks"]),
               "hot buffers": (d["places_free"], d["places"]), "blocks of Decode": (d["blocks_free"], d["blocks"])}  # fmt: skip
        for name, (free, all_) in due.items():
            if free != all_:
                raise Found(f"{free:g} of {all_:g} {name} were free at the orderly end")

    # ---- a round --------------------------------------------------------------------------------------------------

    async def _round(self, life: Life, draw: random.Random) -> None:
        report = self._report
        deeds = draw_deeds(draw, self._faults) if life.number else []
        leave = LEAVE if "abort" in self._faults else 0.0
        questions = self._texts.questions(report.rounds, count=draw.randint(*QUESTIONS), spread=SPREAD, leave=leave)
        before = self._judge.counts
        answers = await self._asked(life, deeds, questions)
        excused = life.costs or any(KINDS[deed.kind].costs for deed in deeds)
        report.asked += len(answers)
        for answer in answers:
            if why := self._judge.wrong(answer, self._fleet.told, excused=excused):
                report.found.append(why)
        self._fleet.told.clear()
        report.reasons = dict(Counter(report.reasons) + Counter(_kind(answer) for answer in answers if answer.status != 200))
        report.deeds = dict(Counter(report.deeds) + Counter(deed.kind for deed in deeds))
        equal, failed, left = (now - then for now, then in zip(self._judge.counts, before, strict=True))
        self._told(f"round {report.rounds}: {len(answers)} asked, {equal} equal, {failed} failed, {left} left"
                   f"{'; ' if deeds else ''}{', '.join(map(str, deeds))}")  # fmt: skip
        if not report.found:
            await self._rest(life)

    async def _asked(self, life: Life, deeds: list[Deed], questions: list[Question]) -> list[Answer]:
        """Ask and do, side by side; Found if a process ends meanwhile."""
        c, prompts = life.config, sum(len(question.prompts) for question in questions)
        turns = 1 + prompts // c.concurrency if "silence" in life.faults else 1  # each before may have the memory until its own deadline
        limit = turns * c.deadline_seconds + self._patience
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._fleet.url("proxy"), limits=limits, timeout=None, trust_env=False) as client:
            doing = asyncio.create_task(self._deeds.carry_out(life, deeds))
            kill = any(deed.kind == "kill" for deed in deeds)  # some ask those that are killed, some those that are there then
            tasks = [
                asyncio.create_task(ask(client, question, limit, after=doing if kill and number % 2 else None))
                for number, question in enumerate(questions)
            ]
            tasks_and_deeds = [*tasks, doing]
            try:
                await self._fleet.until(lambda: all(task.done() for task in tasks_and_deeds), 3 * limit, "a round did not end")
            finally:
                for task in tasks_and_deeds:
                    task.cancel()
                await asyncio.gather(*tasks_and_deeds, return_exceptions=True)
        doing.result()
        return [task.result() for task in tasks]

    # ---- rest -----------------------------------------------------------------------------------------------------

    async def _rest(self, life: Life) -> None:
        """Wait until nobody holds anything; Found, with what is held, if that does not come."""
        lost = life.config.deadline_seconds if "silence" in life.faults else 0.0
        end = time.monotonic() + lost + self._patience
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
            while held := await self._held(client):
                if time.monotonic() > end:
                    raise Found(f"everybody is answered, and this is still held: {'; '.join(held)}")
                await asyncio.sleep(0.1)
                self._fleet.listen()
        for role in ROLES:
            now = processes.holding(self._fleet.pid(role))
            if more := grown(role, self._first.setdefault(self._fleet.pid(role), now), now):
                raise Found(f"after round {self._report.rounds} a process has more than at its first rest: {'; '.join(more)}")

    async def _held(self, client: httpx.AsyncClient) -> list[str]:
        found = []
        for role in ROLES:
            try:
                found += unrest(role, await self._fleet.figures(client, role), prefills=1)
            except httpx.HTTPError as error:
                found.append(f"{role}: its figures cannot be had ({type(error).__name__} {error})")
        pool = self._pool.stats()
        if pool["holds"] or pool["free"] + pool["objects"] != pool["extents"]:
            found.append(f"pool: {pool['holds']} holds, {pool['objects']} objects and {pool['free']} free of {pool['extents']} extents")
        return found


def _kind(answer: Answer) -> str:
    """The reason without what is of this request alone."""
    words = [word for word in answer.reason.split() if not any(letter.isdigit() for letter in word)]
    special = {0: "the connection to the proxy broke", HUNG: "no answer", LEFT: "the client left"}
    return special.get(answer.status, f"{answer.status}: {' '.join(words)}"[:120])
