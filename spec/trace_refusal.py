"""Explains a trace that TLC did not follow to its end.

Rules: the explanation is TLC's: the rules that did not hold, the values that they speak of, and the steps that were enabled, as
RunTrace printed them; numbers of runs and attempts are given back as the nonces of the trace.
"""

from __future__ import annotations

import re

from tidegate.spec.explain import as_function, event_text
from tidegate.spec.tlc_output import Result
from tidegate.spec.trace_lines import Line, TraceRefused
from tidegate.spec.trace_names import Names
from tidegate.spec.values import TRUE, Value, parse, show

__all__ = ["refusal"]

SHOWN = 12
PRINTED = re.compile(r'<<"(REFUSED|BROKEN|ENABLED)",\s*"(.*?)">>\s*(?=<<"(?:REFUSED|BROKEN|ENABLED)"|\Z)', re.DOTALL)


def refusal(result: Result, lines: list[Line], names: Names) -> TraceRefused | None:
    """What is wrong with the trace, or None. lines: as TLC saw them, the last one being Rest."""
    said: dict[str, list[Value]] = {"REFUSED": [], "BROKEN": [], "ENABLED": []}
    for kind, text in PRINTED.findall(result.printed):
        said[kind].append(parse(_unquoted(text)))
    for kind in ("BROKEN", "REFUSED"):
        if said[kind]:
            number, rules, about = (v for _, v in sorted(said[kind][0][1]))
            line = lines[number - 1]
            return _explained(kind, line, sorted(rules), about, said["ENABLED"], names)
    if result.distinct <= len(lines):
        line = lines[min(result.distinct, len(lines)) - 1]
        return TraceRefused(line.where, f"{line} is no step of System here")
    return None


def _unquoted(text: str) -> str:
    """What ToString made, out of the string that PrintT shows it in; long output is wrapped at blanks."""
    return re.sub(r"\n\s*", " ", text).replace('\\"', '"').replace("\\\\", "\\")


def _explained(kind: str, line: Line, rules: list[str], about: Value, enabled: list[Value], names: Names) -> TraceRefused:
    end = line.op == "Rest"
    if kind == "BROKEN":
        why = f"after {line}, {', '.join(rules)} of System.tla does not hold"
        return TraceRefused(line.where, why, _state("state after it", about, names))
    what = "the trace ends too early" if end else f"{line} does not fit"
    why = f"{what}; false: {'; '.join(rules)}" if rules else f"{line} is no step of System here"
    possible = list(dict.fromkeys(event_text(e) for e in enabled if not _silent(e)))
    ops = [p for p in possible if p.split("(")[0] == line.op] + [p for p in possible if p.split("(")[0] != line.op]
    more = [f"enabled was: {'; '.join(ops[:SHOWN])}{f' and {len(ops) - SHOWN} more' if len(ops) > SHOWN else ''}"] if ops else []
    return TraceRefused(line.where, why, (*_state("state before it", about, names), *([] if end else more)))


def _silent(event: Value) -> bool:
    """The network's own doing, which leaves no line."""
    fields = as_function(event) or {}
    return fields.get("op") == "Lose" or fields.get("keep") == TRUE


def _state(title: str, about: Value, names: Names) -> tuple[str, ...]:
    numbers = [f"{what} {n} is {nonce}" for what, of in (("run", names.runs), ("attempt", names.attempts)) for nonce, n in of.items()]
    fields = as_function(about) or {}
    lines = [f"  {name}: {show(value)}" for name, value in sorted(fields.items()) if name != "op"]
    return (f"{title} (runs and attempts by number: {', '.join(numbers[:6])}{', ...' if len(numbers) > 6 else ''}):", *lines)
