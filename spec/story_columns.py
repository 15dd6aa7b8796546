"""Further columns of a behaviour's picture: what a machine says of its one thing, from row to row.

Rules: a column shows one thing under its own name (`gate 0`, `object 1·1`), and in few words the phase that its machine is in and
who holds it; a thing that never leaves its first phase has no column; what lies on Decode stands left of Decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, get_args

from tidegate.spec.diagram import Band, Diagram, Lifeline
from tidegate.spec.explain import as_function, value_text
from tidegate.spec.values import Value, show
from tidegate.spec.vocabulary import items, record

__all__ = ["Column", "add_columns", "beside"]

Column = Literal["blocks", "attempts", "gates", "transfers", "runs", "pool"]
State = dict[str, Value]
Cell = tuple[str, str, str]  # the thing, what is said of it, its colour
ON_DECODE = ("blocks", "attempts")
FIRST = ("idle", "free", "absent")
HELD = {"attending": "attend", "saves": "save", "transfers": "read"}


def add_columns(out: Diagram, states: list[State], wanted: list[Column]) -> tuple[list[Lifeline], list[Lifeline]]:
    """Add the bands of the columns wanted; their lifelines, left and right.  states: of the behaviour, the first one included."""
    left: list[Lifeline] = []
    right: list[Lifeline] = []
    for name in (column for column in get_args(Column) if column in wanted):
        told = [list(CELLS[name](state)) for state in states]
        for thing in dict.fromkeys(cell[0] for cells in told for cell in cells):
            (left if name in ON_DECODE else right).append(Lifeline(thing, thing, "state"))
            _bands(out, thing, [next((cell for cell in cells if cell[0] == thing), (thing, "", "")) for cells in told])
    return left, right


def beside(right: State, wrong: State, wanted: list[Column]) -> list[str]:
    """What the columns wanted would say in the state `right`, where they say something else in `wrong`; one clause for each thing.

    Left out are columns that show a phase and nothing more: which phase is right is said anyway.
    """
    out = []
    for name in (column for column in ("blocks", "gates", "pool") if column in wanted):
        here = {thing: text for thing, text, _ in CELLS[name](wrong)}
        there = {thing: text for thing, text, _ in CELLS[name](right)}
        out += [_level(thing, there.get(thing)) for thing in sorted(here | there) if here.get(thing) != there.get(thing)]
    return out


def _level(thing: str, text: str | None) -> str:
    """A thing and the lines of its cell, as one."""
    if text is None:
        return f"no {thing}"
    return f"{thing} {'of ' if text.startswith('attempt') else ''}{text}".replace(",\n", ", ").replace("for\n", "for ").replace("\n", ", ")


def _bands(out: Diagram, thing: str, cells: list[Cell]) -> None:
    begin = 0
    for row in range(1, len(cells) + 1):
        if row == len(cells) or cells[row] != cells[begin]:
            if cells[begin][1]:
                end = None if row == len(cells) else row - 1
                out.bands.append(Band(thing, cells[begin][1], cells[begin][2], max(begin - 1, -0.5), end))
            begin = row


def _each(value: Value) -> list[tuple[Value, dict[str, Value]]]:
    """(key, fields) of every machine state in a variable, however deep; keys in order, inner ones only."""
    out = []
    for key, inner in sorted((as_function(value) or {}).items(), key=lambda pair: show(pair[0])):
        fields = record(inner)
        out += [(key, fields)] if fields is not None else _each(inner)
    return out


def _phases(variable: str, title: str, colour: Callable[[Value], str]) -> Callable[[State], Iterator[Cell]]:
    def cells(state: State) -> Iterator[Cell]:
        for key, fields in _each(state.get(variable, "")):
            if fields["phase"] not in FIRST:
                yield f"{title} {value_text(key)}", str(fields["phase"]), colour(key)

    return cells


def _about(key: Value) -> str:
    """The colour of what a name is about: of its run and layer, if it has both."""
    parts = items(key) or []
    return f"run {parts[0]} layer {parts[2]}" if len(parts) > 2 else ""


def _pool(state: State) -> Iterator[Cell]:
    """What is thought of an object, and how many of its layers really lie in the pool."""
    pooled = state.get("pooled", frozenset())
    for key, fields in _each(state.get("pool", "")):
        due = fields["layers"]
        if fields["phase"] not in FIRST and isinstance(pooled, frozenset) and isinstance(due, frozenset):
            there = [t for t in pooled if (items(t) or [])[:2] == items(key)]
            text = f"{fields['phase']}\nhas {len(there)} of {len(due)}" + ("\npinned" if fields["pins"] else "")
            yield f"object {value_text(key)}", text, ""


def _gates(state: State) -> Iterator[Cell]:
    for key, fields in _each(state.get("slots", "")):
        parts = items(key) or [key]
        held = ", ".join(word for name, word in HELD.items() if fields[name]).replace("save, ", "save,\n")
        said = f"shut for\n{held}" if held else str(fields["phase"])
        if fields["phase"] != "free" or fields["epoch"]:
            yield f"gate {value_text(parts[0])}", "free" if fields["phase"] == "free" else said, ""


def _blocks(state: State) -> Iterator[Cell]:
    """Whose a set of blocks is, what is thought of it, and what really lies in it."""
    owner, dests = as_function(state.get("owner", "")) or {}, as_function(state.get("dests", "")) or {}
    attempts, dest = as_function(state.get("attempts", "")) or {}, as_function(state.get("dest", "")) or {}
    registered = state.get("registered", frozenset())
    used = set((as_function(state.get("block", "")) or {}).values())
    for block, attempt in sorted(owner.items(), key=lambda pair: show(pair[0])):
        if not attempt:
            yield from [(f"blocks {value_text(block)}", "free", "")] if block in used else []
            continue
        phase = (record(dests[attempt]) or {}).get("phase")
        says = "registered" if isinstance(registered, frozenset) and attempt in registered else "not registered"
        says = {"poisoned": "poisoned", "draining": "poisoned", "valid": "believed"}.get(str(phase), says)
        if (record(attempts[attempt]) or {}).get("phase") == "scheduled":
            says = "inference runs"
        yield f"blocks {value_text(block)}", f"attempt {value_text(attempt)}\n{says}\n{_contents(dest[block])}", f"attempt {attempt}"


def _contents(dest: Value) -> str:
    tags = [tag for parts in (as_function(dest) or {}).values() for tag in (as_function(parts) or {}).values()]
    text = {value_text(tag) for tag in tags}
    if "0·0·1" in text:
        return "junk in it"
    return "empty" if text == {"0·0·0"} else "partly filled" if "0·0·0" in text else "filled"


CELLS: dict[str, Callable[[State], Iterator[Cell]]] = {
    "blocks": _blocks,
    "attempts": _phases("attempts", "attempt", lambda key: f"attempt {key}"),
    "gates": _gates,
    "transfers": _phases("transfers", "transfer", _about),
    "runs": _phases("runs", "run", lambda key: ""),
    "pool": _pool,
}
