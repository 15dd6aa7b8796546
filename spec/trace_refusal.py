"""Explains a trace that TLC did not follow to its end.

Rules: a refusal says four things: the first line that does not fit, the rules (conjuncts) that are false there, the state before it
and what was possible instead, machine events and copies alike; all of them are TLC's, as RunTrace printed them; numbers of runs and
attempts are given back as the nonces of the trace.
"""

from __future__ import annotations

import re

from tidegate.spec.explain import as_function, event_text, value_text
from tidegate.spec.paths import root
from tidegate.spec.trace_lines import Line, TraceRefused
from tidegate.spec.trace_names import Names
from tidegate.spec.values import TRUE, Value, parse, show
from tidegate.spec.vocabulary import Vocabulary, items

__all__ = ["refusal"]

SHOWN = 12
KINDS = ("REFUSED", "BROKEN", "ENABLED", "DATAPATH")
PRINTED = re.compile(
    rf'<<"({"|".join(KINDS)})",\s*(\d+),\s*"(.*?)">>\s*(?=<<"(?:{"|".join(KINDS)}|ENDED)"|\Z)', re.DOTALL
)  # fmt: skip


def refusal(printed: str, which: int, lines: list[Line], names: Names, why: str = "") -> TraceRefused | None:
    """What TLC said against one trace, or None.

    printed: all that RunTrace printed; which: the trace's number in it; lines: as TLC saw them, the last one being Rest; why:
    the reason, where it was found elsewhere and TLC only shows the state.
    """
    said: dict[str, list[Value]] = {kind: [] for kind in KINDS}
    for kind, number, text in PRINTED.findall(printed):
        if int(number) == which:
            said[kind].append(parse(_unquoted(text)))
    for kind in ("BROKEN", "REFUSED"):
        if said[kind]:
            at, rules, about = (v for _, v in sorted(said[kind][0][1]))
            line = lines[at - 1]
            rules = sorted(rules)
            return _explained(kind, line, rules, about, _possible(said, line, names), names, why if rules == ["Show"] else "")
    return None


def _unquoted(text: str) -> str:
    """What ToString made, out of the string that PrintT shows it in; long output is wrapped at blanks."""
    return re.sub(r"\n\s*", " ", text).replace('\\"', '"').replace("\\\\", "\\")


def _explained(
    kind: str, line: Line, rules: list[str], about: Value, possible: tuple[str, ...], names: Names, why: str
) -> TraceRefused:
    if kind == "BROKEN":
        words = Vocabulary(root() / "tla" / "system" / "System.tla")
        broken = "; ".join(f"{name} of System.tla does not hold: {words.comment(name)}" for name in rules)
        return TraceRefused(line.where, f"after {line}, {broken}", _state("state after it", about, names))
    what = "the trace ends too early" if line.op == "Rest" else f"{line} does not fit"
    return TraceRefused(line.where, why or f"{what}; false: {'; '.join(rules)}", (*_state("state before it", about, names), *possible))


def _possible(said: dict[str, list[Value]], line: Line, names: Names) -> tuple[str, ...]:
    """What could have come instead of a line, the likeliest first."""
    events = list(dict.fromkeys(event_text(e) for e in said["ENABLED"] if not _silent(e, names)))
    events = [p for p in events if p.split("(")[0] == line.op] + [p for p in events if p.split("(")[0] != line.op]
    steps = [items(step) or [] for step in sorted(said["DATAPATH"][0], key=show)] if said["DATAPATH"] else []
    copies = [f"{what}_{when} of {value_text(step)}" for what, when, step in steps]
    copies.sort(key=lambda text: text.split(" ")[0] != line.kind)
    out = [f"enabled was: {_some(events) or 'no machine event'}", f"the data path could: {_some(copies) or 'do nothing'}"]
    return tuple(reversed(out) if line.physical else out)


def _some(texts: list[str]) -> str:
    return "; ".join(texts[:SHOWN]) + (f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else "")


def _silent(event: Value, names: Names) -> bool:
    """The network's own doing, which leaves no line, and attempts that another trace has."""
    fields = as_function(event) or {}
    foreign = fields.get("op") == "Admit" and fields.get("attempt", 0) > len(names.attempts)
    return foreign or fields.get("op") == "Lose" or fields.get("keep") == TRUE


def _state(title: str, about: Value, names: Names) -> tuple[str, ...]:
    numbers = [f"{what} {n} is {nonce}" for what, of in (("run", names.runs), ("attempt", names.attempts)) for nonce, n in of.items()]
    fields = as_function(about) or {}
    lines = [f"  {name}: {value_text(value)}" for name, value in sorted(fields.items()) if name != "op"]
    known = f"runs and attempts by number: {', '.join(numbers[:6])}{', ...' if len(numbers) > 6 else ''}"
    if len(names.lives) > 2:
        known += f"; lives: {', '.join(f'{number} is {life}' for life, number in names.lives.items())}"
    return (f"{title} ({known}; 1·2·3 is run 1, chunk 2, layer 3):", *lines)
