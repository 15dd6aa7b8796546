"""Shows a counterexample as steps with only what changed.

Rules: a change is named by its path (`slots[1].phase`) with the value before and after; the variable `ev`, where the model has
one, names the step instead of being listed as a change; values are written as TLA+.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.spec.tlc_output import Result, TraceState
from tidegate.spec.values import Value, show

EVENT = "ev"


@dataclass
class Step:
    """number: of the state reached, from 1.  label: the event or action.  changes: `path: before -> after`."""

    number: int
    label: str
    changes: list[str]


def as_function(value: Value) -> dict[Value, Value] | None:
    """A function's arguments and results; None for any other value."""
    return dict(value[1]) if isinstance(value, tuple) and value[0] == "fun" else None


def event_text(value: Value) -> str:
    """[op |-> "Write", run |-> 1] -> Write(run=1)."""
    fields = as_function(value)
    if not fields or not isinstance(fields.get("op"), str):
        return show(value)
    rest = ", ".join(f"{k}={show(v)}" for k, v in sorted(fields.items(), key=lambda kv: show(kv[0])) if k != "op")
    return f"{fields['op']}({rest})"


def changes(before: Value, after: Value, path: str) -> Iterator[str]:
    """What differs, as deep as functions of the same domain and sets allow."""
    if before == after:
        return
    old, new = as_function(before), as_function(after)
    if old and new and old.keys() == new.keys():
        for key in sorted(old, key=show):
            named = isinstance(key, str) and key.isidentifier()
            yield from changes(old[key], new[key], f"{path}.{key}" if named else f"{path}[{show(key)}]")
    elif isinstance(before, frozenset) and isinstance(after, frozenset):
        gone, come = before - after, after - before
        parts = [*(f"- {show(v)}" for v in sorted(gone, key=show)), *(f"+ {show(v)}" for v in sorted(come, key=show))]
        yield f"{path}: {', '.join(parts)}"
    else:
        yield f"{path}: {show(before)} -> {show(after)}"


def steps(trace: list[TraceState]) -> list[Step]:
    """A counterexample's steps; the first one lists the initial state in full."""
    out = []
    for i, state in enumerate(trace):
        event = state.variables.get(EVENT)
        label = state.action if event is None or i == 0 else event_text(event)
        names = [n for n in sorted(state.variables) if n != EVENT]
        if i == 0:
            lines = [f"{n} = {show(state.variables[n])}" for n in names]
        else:
            lines = [line for n in names for line in changes(trace[i - 1].variables[n], state.variables[n], n)]
        out.append(Step(state.number, label, lines))
    return out


def ending(result: Result) -> str:
    """How the counterexample ends: it stutters, it goes back to a state, or nothing."""
    if result.loop is None:
        return ""
    return "and nothing happens any more" if result.loop == 0 else f"and back to state {result.loop}, for ever"
