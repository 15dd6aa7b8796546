"""`tidegate check --mutants`: every conjunct of every guard, dropped once.

Rules: a dropped conjunct counts as load-bearing only if TLC names a property of the system model that breaks *and* its shortest
counterexample, replayed as a schedule through the real sessions over the regenerated machine, does harm there (wrong bytes, a
hang, a leak, two verdicts), while the machines as they are refuse that very schedule.  A conjunct that no configuration misses
is defence in depth only if each configuration reaches exactly as many states by as many steps as with it: then the reachable
graph is unchanged.  Anything else is an open question, and fails the check.  The committed result is tla/mutants.toml.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tidegate.spec import gen, tlc
from tidegate.spec.bounds import Bounds
from tidegate.spec.emit import snake
from tidegate.spec.errors import SpecError
from tidegate.spec.models import Model, read_manifest
from tidegate.spec.mutate import Conjunct, conjuncts, drop
from tidegate.spec.paths import root
from tidegate.spec.schedule import Replay, labels_of, replay
from tidegate.spec.tlc_output import Result

__all__ = ["CONFIGURATIONS", "Mutant", "Verdict", "all_mutants", "baseline", "judge", "run_all"]

CONFIGURATIONS = (
    "retry", "pool", "abort-chunks", "messages", "failures", "live-blocks", "live-chunks", "independent", "plain", "lease",
    "requests", "strays",
)  # fmt: skip
"""Where a mutant is looked for, the cheapest first."""

_patching = threading.Lock()


@dataclass(frozen=True)
class Mutant:
    """A machine without one conjunct."""

    conjunct: Conjunct
    source: Path

    @property
    def name(self) -> str:
        return f"{self.conjunct.machine}.{self.conjunct.guard}#{self.conjunct.number}"


@dataclass
class Verdict:
    """kind: killed (TLC and the replay agree), defence (the system's graph is unchanged) or open.

    configuration, violated, steps: TLC's counterexample; effect: what the replay did; unharmed: what the real machines said.
    """

    mutant: Mutant
    kind: str
    configuration: str = ""
    violated: str = ""
    steps: int = 0
    effect: str = ""
    unharmed: str = ""

    @property
    def fine(self) -> bool:
        return self.kind != "open"


def all_mutants(machine: str = "") -> list[Mutant]:
    """Every guard conjunct of every machine (or of one), in source order."""
    folder = root() / "tla" / "machines"
    sources = [s for s in sorted(folder.glob("*.tla")) if machine in ("", s.stem)]
    if not sources:
        raise SpecError(f"no machine named {machine}: there are {', '.join(s.stem for s in sorted(folder.glob('*.tla')))}")
    return [Mutant(conjunct, source) for source in sources for conjunct in conjuncts(source)]


def configurations(names: Sequence[str] = CONFIGURATIONS) -> list[Model]:
    known = {m.name: m for m in read_manifest(root() / "tla" / "models" / "manifest.toml", root() / "tla")}
    return [known[name] for name in names]


def _run(model: Model, mutant: Mutant | None, module: str = "") -> Result:
    """TLC on a configuration in a folder of its own, where the mutant's machine takes the real one's place."""
    with tempfile.TemporaryDirectory(prefix="tidegate-mutant-") as folder:
        top = root() / "tla"
        for source in [*top.glob("machines/*.tla"), *top.glob("system/*.tla"), *top.glob("graphs/*.tla")]:
            shutil.copy(source, folder)
        if mutant:
            (Path(folder) / mutant.source.name).write_text(drop(mutant.source.read_text(), mutant.conjunct))
        return tlc.run_tlc(Path(folder) / (module or model.module.name), model.config, jvm=tlc.LIGHT)


def baseline(models: Iterable[Model], jobs: int = 2) -> dict[str, tuple[int, int]]:
    """(distinct, generated) of each configuration with the machines as they are."""
    with ThreadPoolExecutor(jobs) as pool:
        results = {m.name: pool.submit(_run, m, None) for m in models}
        return {name: (r.result().distinct, r.result().generated) for name, r in results.items()}


def judge(mutant: Mutant, models: Sequence[Model], base: dict[str, tuple[int, int]]) -> Verdict:
    """Find a configuration that misses the conjunct, and replay what TLC found; or decide that none can."""
    harmless: Verdict | None = None
    changed = []
    for model in models:
        try:
            result = _run(model, mutant)
        except SpecError as error:  # TLC left the machine's domain: a guard that keeps an operator total
            harmless = harmless or Verdict(mutant, "open", model.name, "evaluation", effect=str(error).splitlines()[-1])
            continue
        if result.verdict == "pass":
            if (result.distinct, result.generated) != base[model.name]:
                changed.append(model.name)
            continue
        verdict = _replayed(mutant, model, result)
        if verdict.kind == "killed":
            return verdict
        harmless = harmless or verdict
    if harmless:
        return harmless
    if changed:
        return Verdict(mutant, "open", ", ".join(changed), effect="the graph changes, yet no property breaks")
    return _local(mutant) or Verdict(mutant, "defence", effect=f"reachable graph unchanged in {len(models)} configurations")


def _local(mutant: Mutant) -> Verdict | None:
    """Does the machine alone, driven by every event, miss the conjunct?"""
    name = f"{mutant.conjunct.machine}Graph"
    model = configurations([name])[0]
    result = _run(model, mutant)
    if result.verdict == "pass":
        return None
    effect = f"reachable graph of the system unchanged; alone the machine violates {result.violated}"
    return Verdict(mutant, "defence", name, result.violated or "", len(result.trace) - 1, effect)


def _replayed(mutant: Mutant, model: Model, result: Result) -> Verdict:
    labels = labels_of(result)
    bounds = Bounds.from_cfg(model.config)
    module = importlib.import_module(f"tidegate.protocol.machines.{snake(mutant.conjunct.machine)}")
    source = gen.compile_text(mutant.conjunct.machine, drop(mutant.source.read_text(), mutant.conjunct))
    with _patching:
        real = replay(bounds, labels)
        with gen.installed(module, source):
            wrong = replay(bounds, labels)
    harmed = bool(wrong.wrong) and not real.wrong
    return Verdict(mutant, "killed" if harmed else "open", model.name, result.violated or result.verdict, len(labels),
                   _effect(wrong), _effect(real))  # fmt: skip


def _effect(outcome: Replay) -> str:
    if outcome.wrong:
        return outcome.wrong[0]
    return f"refused at step {outcome.refused_at}: {outcome.refusal}" if outcome.refused_at else "no harm"


def run_all(
    mutants: Sequence[Mutant],
    *,
    jobs: int = 2,
    names: Sequence[str] = CONFIGURATIONS,
    told: Callable[[Verdict], None] = lambda v: None,
) -> list[Verdict]:
    """Judge all, `jobs` TLCs at a time; `told` hears each verdict as it comes."""
    models = configurations(names)
    base = baseline(models, jobs)

    def one(mutant: Mutant) -> Verdict:
        verdict = judge(mutant, models, base)
        told(verdict)
        return verdict

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, mutants))
