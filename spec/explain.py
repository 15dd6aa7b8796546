"""Shows a counterexample as steps with only what changed, in the words of the model.

Rules: a change names the machine, which one of them, and the fields that changed with the value before and after; a variable that
holds no machine is named by its path (`used.loss`); the variable `ev`, where the model has one, names the step instead of being
listed as a change; what has not changed is not shown, so the first state has no changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.spec.tlc_output import Result, TraceState
from tidegate.spec.values import Value, show
from tidegate.spec.vocabulary import Vocabulary, items, record

__all__ = ["EVENT", "Step", "as_function", "changes", "ending", "event_text", "message_text", "steps", "value_text"]

EVENT = "ev"


@dataclass
class Step:
    """number: of the state reached, from 1.  label: the event or action.  changes: one line each."""

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
    rest = ", ".join(f"{k}={value_text(v)}" for k, v in sorted(fields.items(), key=lambda kv: show(kv[0])) if k != "op")
    return f"{fields['op']}({rest})"


def value_text(value: Value) -> str:
    """A value as short as it can be read: names without quotes, <<1, 2, 1>> as 1·2·1, records as READY(transfer=1·1·1)."""
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(value_text, value))) + "}" if value else "none"
    parts = items(value)
    if parts and all(isinstance(p, int) for p in parts):
        return "·".join(map(str, parts))
    if parts:
        return "(" + ", ".join(map(value_text, parts)) + ")"
    fields = record(value)
    if fields and isinstance(fields.get("op"), str):
        return event_text(value)
    if fields:
        return "[" + ", ".join(f"{k}={value_text(v)}" for k, v in sorted(fields.items())) + "]"
    return show(value)


def changes(before: Value, after: Value, path: str) -> Iterator[str]:
    """What differs, as deep as functions of the same domain and sets allow."""
    if before == after:
        return
    old, new = as_function(before), as_function(after)
    name = all(isinstance(part, int) for part in items(before) or ["no"])  # <<1, 2, 1>> is one thing
    if old and new and old.keys() == new.keys() and not name:
        for key in sorted(old, key=show):
            named = isinstance(key, str) and key.isidentifier()
            yield from changes(old[key], new[key], f"{path}.{key}" if named else f"{path}[{value_text(key)}]")
    elif isinstance(before, frozenset) and isinstance(after, frozenset):
        yield f"{path}: {', '.join(_set_changes(before - after, after - before))}"
    else:
        yield f"{path}: {value_text(before)} → {value_text(after)}"


def _set_changes(gone: frozenset[Value], come: frozenset[Value]) -> list[str]:
    """What left a set and what came; a message or copy is named by what it is about, unless two would be named alike."""
    short = {v: message_text(v) for v in gone | come}
    named = {v: text if list(short.values()).count(text) == 1 else value_text(v) for v, text in short.items()}
    return [*(f"- {named[v]}" for v in sorted(gone, key=show)), *(f"+ {named[v]}" for v in sorted(come, key=show))]


def message_text(message: Value) -> str:
    """A message or copy by what it is about: READY 1·2·3; ABORT attempt 1.  Any other value as value_text."""
    fields = record(message) or {}
    if not isinstance(fields.get("op"), str):
        return value_text(message)
    if "transfer" in fields:
        return f"{fields['op']} {value_text(fields['transfer'])}"
    about = next((name for name in ("run", "attempt") if name in fields), None)
    return f"{fields['op']} {about} {value_text(fields[about])}" if about else event_text(message)


def _keyed(title: str, before: Value, after: Value, words: Vocabulary, domains: list[list[str]]) -> Iterator[str]:
    """The changes of a variable that holds one state for each key: a line for each key, its fields in one row."""
    old, new = as_function(before) or {}, as_function(after) or {}
    for key in sorted(old.keys() & new.keys(), key=show):
        named = f"{title} {words.named(domains[0], key)}".rstrip()
        if domains[1:]:
            yield from _keyed(named, old[key], new[key], words, domains[1:])
        elif fields := [line.removeprefix(".") for line in changes(old[key], new[key], "")]:
            yield f"{named}: {'; '.join(f.removeprefix(': ') for f in fields)}"


def changed(name: str, before: Value, after: Value, words: Vocabulary | None) -> Iterator[str]:
    """What differs in one variable."""
    old, new = as_function(before), as_function(after)
    if words and words.domain(name) and old and new and old.keys() == new.keys():
        yield from _keyed(words.machine(name) or name, before, after, words, words.domain(name))
    else:
        yield from changes(before, after, name)


def steps(trace: list[TraceState], words: Vocabulary | None = None) -> list[Step]:
    """A counterexample's steps; words: those of its model, where machines and keys have names."""
    out = []
    for i, state in enumerate(trace):
        event = state.variables.get(EVENT)
        label = state.action if event is None or i == 0 else event_text(event)
        names = [n for n in state.variables if n != EVENT] if i else []
        names.sort(key=lambda n: (not (words and words.machine(n)), n))  # machines first: they are what decides
        lines = [line for n in names for line in changed(n, trace[i - 1].variables[n], state.variables[n], words)]
        out.append(Step(state.number, label, lines))
    return out


def ending(result: Result) -> str:
    """How the counterexample ends: it stutters, it goes back to a state, or nothing."""
    if result.loop is None:
        return ""
    return "and nothing happens any more" if result.loop == 0 else f"and back to state {result.loop}, for ever"
