"""Where a behaviour of a planted model leaves our own: the step at which the mistake is made.

Rules: TLC judges with our own modules, step by step along the behaviour: a step is ours if our model, in the same state, can take
an event of the same name to the same state.  The first step that is not ours is the mistake.  There is none where the mistake is
that something never happens; then it is what our model has to offer, where the behaviour ends, and the planted one has not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.spec import tlc
from tidegate.spec.culprit import SECTIONS
from tidegate.spec.explain import EVENT
from tidegate.spec.scratch import scratch
from tidegate.spec.tlc_output import Result, TraceState
from tidegate.spec.values import Value, parse, show

__all__ = ["Mistake", "find_mistake"]

SAID = re.compile(r'<<\s*"(RIGHT|OFFER)",\s*(\d+),\s*"((?:[^"\\]|\\.)*)"\s*>>', re.DOTALL)
Variables = dict[str, Value]


@dataclass(frozen=True)
class Mistake:
    """step: the first one, from 1, that is not ours; 0 if all are.  right: the state that our model reaches by that event; None if it
    refuses the event.  owed: events that our model offers where the behaviour ends and that the planted one does not."""

    step: int = 0
    right: Variables | None = None
    owed: list[Value] = field(default_factory=list)


def find_mistake(module: Path, config: str, result: Result, changed: Mapping[str, str]) -> Mistake:
    """The step at which the behaviour of `result` leaves our model.

    module, config (the .cfg's text), changed: of the run that gave the result.  Raises SpecError if TLC cannot judge.
    """
    trace = result.trace
    reached, offers = _answers(module, config, trace, result.loop, {})
    for number, after in enumerate(trace[1:], 1):
        if after.variables not in reached[number]:
            return Mistake(number, min(reached[number], key=_text, default=None))
    planted = _answers(module, config, trace, result.loop, changed)[1]
    return Mistake(owed=sorted(offers - planted, key=show))


def _text(state: Variables) -> str:
    return str(sorted((name, show(value)) for name, value in state.items()))


def _answers(
    module: Path, config: str, trace: Sequence[TraceState], loop: int | None, changed: Mapping[str, str]
) -> tuple[dict[int, list[Variables]], set[Value]]:
    """(step -> the states to which the model takes its event, the events that it offers where the behaviour ends)."""
    with scratch(module, changed) as place:
        asks = place.module.parent / "Mistakes.tla"
        asks.write_text("\n".join(_question(module.stem, trace, loop)))
        (cfg := asks.with_suffix(".cfg")).write_text(f"{SECTIONS.sub('', config)}\nINIT MistakeInit\nNEXT MistakeNext\n")
        printed = tlc.run_tlc(asks, cfg, library=place.library, jvm=tlc.LIGHT, seconds=120).printed
    reached: dict[int, list[Variables]] = defaultdict(list)
    offers = set()
    for kind, number, text in SAID.findall(printed):
        value = parse(re.sub(r"\n\s*", " ", text).replace('\\"', '"'))
        if kind == "OFFER":
            offers.add(value)
        elif isinstance(value, tuple):
            reached[int(number)].append(dict(value[1]))
    return reached, offers


def _question(module: str, trace: Sequence[TraceState], loop: int | None) -> Iterator[str]:
    """A module that walks along the trace as far as the model does, and at each state says to where it takes the trace's next event."""
    names = sorted(trace[0].variables)
    after = "[" + ", ".join(f"{name} |-> {name}'" for name in names) + "]"
    yield from ("---- MODULE Mistakes ----", f"EXTENDS {module}, TLC", "VARIABLE at", "MistakeInit ==", "    /\\ at = 0")
    yield from (f"    /\\ {name} = {show(trace[0].variables[name])}" for name in names)
    steps, aside = [], len(trace)  # aside: where nothing more is asked
    for number, state in enumerate(trace[1:], 1):
        yield from (f"Walk{number} ==", f"    /\\ at = {number - 1} /\\ at' = {number}", "    /\\ Next")  # so it ends where ours does
        yield from (f"    /\\ {name}' = {show(state.variables[name])}" for name in names)
        yield from (f"Ask{number} ==", f"    /\\ at = {number - 1} /\\ at' = {aside}", "    /\\ Next")
        yield f"    /\\ {EVENT}' = {show(state.variables[EVENT])}"
        yield f'    /\\ PrintT(<<"RIGHT", {number}, ToString({after})>>)'
        steps += [f"Walk{number}", f"Ask{number}"]
    end = (loop or len(trace)) - 1  # what may repeat for ever, or the last state
    yield from ("Offer ==", f"    /\\ at \\in {end}..{aside - 1} /\\ at' = {aside}", "    /\\ Next")
    yield f'    /\\ PrintT(<<"OFFER", at, ToString({EVENT}\')>>)'
    yield from ("MistakeNext == " + " \\/ ".join([*steps, "Offer"]), "====", "")
