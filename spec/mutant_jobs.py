"""Judges many mutants, each in a process of its own.

Rules: a row that says killed is judged in the configuration and by the property that it names, for that it dies there is all that it
says; one that does not, and a mutant that has no such row, is looked for wherever its conjunct decides.  Configurations that differ in
nothing but what they check are asked once where that is.  A machine's module is one for a whole process, and a mutant changes it: so
mutants are judged side by side in processes, never in threads.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tidegate.spec.decisive import decisive, decisive_in_sessions
from tidegate.spec.mutants import Mutant, Verdict, again, judge
from tidegate.spec.mutate import Conjunct, conjuncts
from tidegate.spec.variant import Configuration, configurations
from tidegate.spec.world import World

__all__ = ["Known", "apart", "judge_all"]

SMALL = 20_000
"""With so many states at most, the real sessions are explored, too."""

Known = dict[str, tuple[str, str]]
"""Name of a mutant that the table calls killed -> the configuration and the property that its row names."""


def judge_all(
    mutants: Sequence[Mutant],
    models: Sequence[Configuration],
    known: Known,
    *,
    jobs: int = 2,
    told: Callable[[Verdict], object] = lambda verdict: None,
    looked: Callable[[Configuration, int], object] = lambda model, left: None,
) -> list[Verdict]:
    """A verdict for each mutant, in their order.  told: hears each as it comes; looked: hears of each configuration that was asked which
    conjuncts decide there, and how many are left.  Raises SpecError if TLC cannot say that."""
    found: dict[str, Verdict] = {}

    def heard(verdict: Verdict) -> None:
        found[verdict.mutant.name] = verdict
        told(verdict)

    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        where = {m.name: m for m in configurations()}
        placed = [m for m in mutants if known.get(m.name, ("", ""))[0] in where]
        for future in as_completed([pool.submit(again, m, where[known[m.name][0]], known[m.name][1]) for m in placed]):
            if future.result().kind == "killed":
                heard(future.result())
        rest = [m for m in mutants if m.name not in found]
        decides = _where_decisive(pool, rest, models, looked)
        for future in as_completed([pool.submit(judge, m, decides[m.name]) for m in rest]):
            heard(future.result())
    finally:
        pool.shutdown(cancel_futures=True)
    return [found[m.name] for m in mutants]


def apart(models: Sequence[Configuration]) -> dict[Configuration, list[Configuration]]:
    """Of those that differ only in what they check (properties, fairness, VIEW) the first, and all that it stands for."""
    found: dict[str, list[Configuration]] = {}
    for model in models:
        lines = (re.sub(r"\\\*.*", "", line).split() for line in model.without(model.properties).splitlines())
        reached = sorted(" ".join(words) for words in lines if words and words[0] not in ("SPECIFICATION", "VIEW"))
        found.setdefault("\n".join(reached), []).append(model)
    return {same[0]: same for same in found.values()}


def _where_decisive(
    pool: ProcessPoolExecutor, mutants: Sequence[Mutant], models: Sequence[Configuration], looked: Callable[[Configuration, int], object]
) -> dict[str, list[Configuration]]:
    """For each mutant, by name, the configurations in which its conjunct decides something, smallest first."""
    if not mutants:
        return {}
    python = dict(zip((m.name for m in mutants), pool.map(Mutant.python, mutants), strict=True))
    stand = apart(models)
    largest_first = sorted(stand, key=lambda model: -model.states)
    guards = {(m.machine, m.conjunct.guard) for m in mutants}  # one says what decides only if it knows all of its conjuncts
    sources = sorted({m.source for m in mutants})
    machines = [(source, [c for c in conjuncts(source) if (c.machine, c.guard) in guards]) for source in sources]
    asked = {pool.submit(_decide, model, mutants, machines, python): model for model in largest_first}
    found: dict[str, set[str]] = {m.name: set() for m in mutants}
    for left, future in zip(reversed(range(len(asked))), as_completed(asked), strict=True):
        for name in future.result():
            found[name] |= {model.name for model in stand[asked[future]]}
        looked(asked[future], left)
    return {name: [model for model in models if model.name in names] for name, names in found.items()}


def _decide(
    model: Configuration, mutants: Sequence[Mutant], machines: Sequence[tuple[Path, Sequence[Conjunct]]], python: dict[str, str]
) -> set[str]:
    """Names of the mutants whose conjunct decides something in what a configuration reaches: in the model, or in the sessions."""
    said = decisive(model, machines)
    if model.states <= SMALL:
        said |= decisive_in_sessions(World(model.bounds), [(m.conjunct, m.module, python[m.name]) for m in mutants])
    return {m.name for m in mutants if m.conjunct in said}
