"""`tidegate check --mutants`: every conjunct of every guard, dropped once.

Rules: a dropped conjunct counts as load-bearing only if TLC names a property of the system model that breaks *and* its
counterexample, replayed as a schedule through the real sessions over the regenerated machine, does harm there (wrong bytes, a
hang, a leak, two verdicts), while the machines as they are refuse that schedule or take it without harm.  If a counterexample
does no harm, its property is set aside and TLC looks for the next.  A conjunct that survives is defence in depth for one of
two reasons, each decided by a machine:
  idle     it decides nowhere: neither TLC, in any configuration, nor the sessions meet a state where it alone is false, so
           the graph is unchanged;
  same     it decides, but the graph is unchanged: the sessions with and without it go through the same states (`lockstep`).
Anything else is open, and fails the check.  The committed result is tla/mutants.toml.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tidegate.spec import gen
from tidegate.spec.bounds import Bounds
from tidegate.spec.emit import snake
from tidegate.spec.errors import SpecError
from tidegate.spec.lockstep import lockstep
from tidegate.spec.mutate import Conjunct, conjuncts, drop
from tidegate.spec.paths import root
from tidegate.spec.schedule import Replay, labels_of, replay
from tidegate.spec.tlc_output import Result
from tidegate.spec.variant import Configuration, configurations

__all__ = ["DEFENCE", "Mutant", "Verdict", "again", "all_mutants", "judge"]

DEFENCE = ("idle", "same")

ORDERLY = ("ClaimOnce",)


@dataclass(frozen=True)
class Mutant:
    """A machine without one conjunct."""

    conjunct: Conjunct
    source: Path

    @property
    def machine(self) -> str:
        return self.conjunct.machine

    @property
    def name(self) -> str:
        return f"{self.machine}.{self.conjunct.guard}#{self.conjunct.number}"

    @property
    def text(self) -> str:
        """The conjunct, on one line."""
        return " ".join(self.conjunct.text.split())

    @property
    def changed(self) -> dict[str, str]:
        """The module's name and its source without the conjunct."""
        return {self.machine: drop(self.source.read_text(), self.conjunct)}

    @property
    def module(self) -> ModuleType:
        """The generated module, as everybody imports it."""
        return importlib.import_module(f"tidegate.protocol.machines.{snake(self.machine)}")

    def python(self) -> str:
        """What `tidegate gen` would make of the mutated machine."""
        return gen.compile_text(self.machine, self.changed[self.machine])


@dataclass
class Verdict:
    """kind: killed, one of DEFENCE, or open.  configuration, violated, steps: TLC's counterexample; effect: what the replay
    did, or the reason of a defence; real: what the machines as they are make of that schedule; alone: the property of the
    machine's own graph module that breaks, for those that no configuration of the system misses."""

    mutant: Mutant
    kind: str
    configuration: str = ""
    violated: str = ""
    steps: int = 0
    effect: str = ""
    real: str = ""
    alone: str = ""

    @property
    def fine(self) -> bool:
        return self.kind != "open"


def all_mutants(machine: str = "") -> list[Mutant]:
    """Every guard conjunct of every machine (or of one), in source order. Raises SpecError for an unknown machine."""
    every = sorted((root() / "tla" / "machines").glob("*.tla"))
    sources = [s for s in every if machine in ("", s.stem)]
    if not sources:
        raise SpecError(f"no machine named {machine}: there are {', '.join(s.stem for s in every)}")
    return [Mutant(conjunct, source) for source in sources for conjunct in conjuncts(source)]


def judge(mutant: Mutant, models: Sequence[Configuration]) -> Verdict:
    """Look for harm where the conjunct decides (`models`, smallest first); else say why none can come.  Changes its machine's module
    while it works."""
    if not models:
        return Verdict(mutant, "idle", effect="decides nowhere: the reachable graph is unchanged", alone=_alone(mutant))
    opened: Verdict | None = None
    pairs, python = 0, mutant.python()
    compared: set[Bounds] = set()
    for model in models:
        difference = ""
        if opened is None:
            if model.bounds in compared:
                continue
            outcome = lockstep(model.bounds, mutant.module, mutant.conjunct.guard, python)
            pairs, difference = pairs + outcome.pairs, outcome.difference
            if outcome.same and not difference:
                compared.add(model.bounds)
                continue  # nobody can tell the two apart there
        verdict = _hunt(mutant, model, python)
        if verdict.kind == "killed":
            return verdict
        opened = opened or Verdict(mutant, "open", model.name, verdict.violated, verdict.steps,
                                   f"{difference or 'the records differ'}; {verdict.effect}", verdict.real)  # fmt: skip
    if opened:
        return opened
    reason = f"the sessions with and without it go through the same states, {pairs:,} in {len(compared)} configurations"
    return Verdict(mutant, "same", effect=reason, alone=_alone(mutant))


def _hunt(mutant: Mutant, model: Configuration, python: str) -> Verdict:
    """The first property whose counterexample does harm in the real sessions; open if there is none.

    Properties about bytes are asked before ORDERLY ones, whose counterexamples are shorter and say less.
    """
    first = _hunt_without(mutant, model, python, ORDERLY)
    if first.kind == "killed" or not set(ORDERLY) & set(model.properties):
        return first
    second = _hunt_without(mutant, model, python, [name for name in model.properties if name not in ORDERLY])
    return first if first.violated and second.kind != "killed" else second


def _hunt_without(mutant: Mutant, model: Configuration, python: str, aside: Sequence[str]) -> Verdict:
    gone = list(aside)
    harmless: Verdict | None = None
    while set(model.properties) - set(gone):
        try:
            result = model.run(mutant.changed, gone)
        except SpecError as error:
            return harmless or Verdict(mutant, "open", model.name, effect=str(error).splitlines()[-1])
        if result.verdict != "violated" or result.violated is None:
            break
        verdict = _replayed(mutant, model, result, python)
        if verdict.kind == "killed":
            return verdict
        harmless = harmless or verdict
        gone.append(result.violated)
    return harmless or Verdict(mutant, "open", model.name, effect="no property breaks")


def again(mutant: Mutant, model: Configuration, violates: str) -> Verdict:
    """Does `violates` break in `model` without the conjunct, and does its counterexample do harm?  One run of TLC."""
    result = model.run(mutant.changed, [name for name in model.properties if name != violates])
    if result.verdict != "violated":
        return Verdict(mutant, "open", model.name, effect=f"{violates} does not break")
    return _replayed(mutant, model, result, mutant.python())


def _replayed(mutant: Mutant, model: Configuration, result: Result, python: str) -> Verdict:
    labels = labels_of(result)
    real = replay(model.bounds, labels)
    with gen.installed(mutant.module, python):
        wrong = replay(model.bounds, labels)
    harmed = bool(wrong.wrong) and not real.wrong
    return Verdict(mutant, "killed" if harmed else "open", model.name, result.violated or "", len(labels),
                   _effect(wrong), _effect(real))  # fmt: skip


def _effect(outcome: Replay) -> str:
    if outcome.wrong:
        return outcome.wrong[0]
    return f"refused at step {outcome.refused_at}: {outcome.refusal}" if outcome.refused_at else "no harm"


def _alone(mutant: Mutant) -> str:
    """The property that breaks when the machine alone is driven by every event, or nothing."""
    (model,) = configurations(module=f"{mutant.machine}Graph")
    return model.run(mutant.changed).violated or ""
