"""Tells a behaviour of the system model as a sequence diagram.

Rules: what happened is read from the states alone: a message was sent when it appears in `net`, a copy runs while it is in `io`, a
slot holds what `mem` says; `ev` says who acted.  Steps that a model adds later are shown under their own name, by whoever they
change; nothing is left out, and nothing is shown that is not in the trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tidegate.spec.diagram import NETWORK, Arrow, Band, Bar, Diagram, Lifeline, Row
from tidegate.spec.explain import EVENT, as_function, event_text, message_text, value_text
from tidegate.spec.phrases import actor, phrase, receiver, sender
from tidegate.spec.story_columns import Column, add_columns
from tidegate.spec.tlc_output import TraceState
from tidegate.spec.values import FALSE, TRUE, Value, show
from tidegate.spec.vocabulary import Vocabulary, items, record

__all__ = ["tell"]

LEGEND = "1·2·3: run 1, chunk 2, layer 3"
RANKS = "; a fourth number: the Prefill rank"
LEADER = re.compile(r"\b(\d+·\d+·\d+)·0\b")
FAULTS = ("Lose", "Abort", "Revoke", "Evict", "Miss", "Crash")


def tell(trace: list[TraceState], words: Vocabulary, title: str, loop: int | None = None, columns: Sequence[Column] = ()) -> Diagram:
    """The behaviour as a diagram; loop: as in tlc_output.Result; columns: what else to show of the machines."""
    states = [state.variables for state in trace]
    out = Diagram(title, [], legend=LEGEND)
    net = _Net(out)
    for number, (before, after) in enumerate(pairwise(states)):
        event = record(after.get(EVENT, "")) or {"op": trace[number + 1].action}
        out.rows.append(_row(number, event, before, after, words))
        if out.rows[-1].line == "client":  # who asks for it; Decode does it
            out.arrows.append(Arrow("", "client", "decode", number, number))
            out.rows[-1].line = "decode"
        net.step(number, event, before.get("net", frozenset()), after.get("net", frozenset()), out.rows[-1].line)
        _copies(out, number, before.get("io", frozenset()), after.get("io", frozenset()))
        _memory(out, number, before.get("mem", ""), after.get("mem", ""))
    if loop is not None:
        out.loop = len(out.rows) if loop == 0 else loop - 1
    _one_rank(out)
    left, right = add_columns(out, states, list(columns))
    if len(as_function(states[-1].get("mem", "")) or "") > 1:
        out.legend += RANKS
    else:
        _one_member(out)
        left, right = ([replace(line, title=LEADER.sub(r"\1", line.title)) for line in side] for side in (left, right))
    lines = _lifelines(out, states[-1])
    pool = [line for line in lines if line.key == "pool"]
    out.lines = [*left, *(line for line in lines if line not in pool), *right, *pool]
    return out


def _one_member(out: Diagram) -> None:
    """Where there is one rank, nobody need be told which."""
    things: list[Arrow | Bar] = [*out.arrows, *out.bars]
    for thing in things:
        thing.label = LEADER.sub(r"\1", thing.label)
    for row in out.rows:
        row.text = LEADER.sub(r"\1", row.text)


def _row(number: int, event: dict[str, Value], before: dict[str, Value], after: dict[str, Value], words: Vocabulary) -> Row:
    op = str(event["op"])
    failed = (op in ("SaveEnd", "LoadEnd") and event.get("ok") != TRUE) or event.get("how") in ("quiet", "unknown")
    kept = event.get("keep") == TRUE
    who = actor(event, before, after, words)
    fault = failed or kept or op.startswith(FAULTS)
    return Row(op, phrase(event, before, words), who, str(number + 1), words.comment(op) or event_text(after.get(EVENT, op)), fault)


class _Net:
    """The messages in flight, each with the arrow that shows it."""

    def __init__(self, out: Diagram) -> None:
        self.out = out
        self.flying: dict[Value, Arrow] = {}

    def step(self, number: int, event: dict[str, Value], before: Any, after: Any, who: str) -> None:
        if not (isinstance(before, frozenset) and isinstance(after, frozenset)):
            return
        message = event.get("message")
        if message in before and (message not in after or event.get("keep") == TRUE or event["op"] == "Deliver"):
            self._taken(number, event, message, message in after)
        for new in sorted(after - before | self._again(event, message, before, after), key=show):
            colour = _colour(record(new) or {})
            self.flying[new] = Arrow(message_text(new), sender(new, who), receiver(new), number, colour=colour)
            self.out.arrows.append(self.flying[new])
        for gone in before - after - {message}:  # a crash may take messages along
            if arrow := self.flying.pop(gone, None):
                arrow.got, arrow.lost = number, True

    def _taken(self, number: int, event: dict[str, Value], message: Value, stays: bool) -> None:
        arrow = self.flying.get(message)
        if arrow is None:
            return
        arrow.got, arrow.lost = number, event["op"] == "Lose"
        del self.flying[message]
        if stays and event.get("keep") == TRUE:
            copy = Arrow(arrow.label, arrow.source, arrow.target, number, colour=arrow.colour, copy=True)
            self.flying[message] = copy
            self.out.arrows.append(copy)

    def _again(self, event: dict[str, Value], message: Value, before: Any, after: Any) -> frozenset[Value]:
        """A message that is taken and in the same step sent anew."""
        anew = message in before and message in after and event["op"] == "Deliver" and event.get("keep") != TRUE
        return frozenset({message}) if anew else frozenset()


def _copies(out: Diagram, number: int, before: Any, after: Any) -> None:
    """Bars that begin or end in this row."""
    old, new = dict(_under(before)), dict(_under(after))
    open_bars = {(bar.line, bar.label): bar for bar in out.bars if bar.end is None}
    for key in old.keys() - new.keys():
        if bar := open_bars.get(key):
            bar.end = number
    for key in sorted(new.keys() - old.keys()):
        out.bars.append(Bar(key[0], key[1], _colour(new[key]), number, bad=new[key].get("right") == FALSE))
    for key in new.keys() & old.keys():
        if (bar := open_bars.get(key)) and new[key].get("op") == "stray":
            bar.bad = True


def _under(io: Any) -> Iterator[tuple[tuple[str, str], dict[str, Value]]]:
    """(lifeline, label) of each copy under way.  A read of unknown fate goes on being that read."""
    for one in io if isinstance(io, frozenset) else ():
        fields = record(one)
        if fields and isinstance(fields.get("op"), str) and "transfer" in fields:
            op = "read" if fields["op"] == "stray" else str(fields["op"])
            rank = items(fields["transfer"]) or []
            prefill = f"prefill {rank[3]}" if len(rank) > 3 else "prefill"
            line = {"read": "decode", "attend": prefill}.get(op, "pool")
            yield (line, f"{op} {value_text(fields['transfer'])}"), fields


def _colour(about: dict[str, Value]) -> str:
    """Everything about one run and layer has one colour."""
    step = items(about.get("transfer", "")) or []
    return _content(step[0], step[2]) if len(step) > 2 else ""


def _content(run: Value, layer: Value) -> str:
    return f"run {run} layer {layer}"


def _memory(out: Diagram, number: int, before: Any, after: Any) -> None:
    """Bands of slots whose contents changed in this row."""
    old, new = _slots(before), _slots(after)
    for line in sorted(new):
        if line in old and old[line] == new[line]:
            continue
        held = items(new[line]) or []
        for band in out.bands:
            if band.line == line and band.end is None:
                band.end = number
        if len(held) != 3 or not held[0]:
            out.bands.append(Band(line, "junk", "", number))
            continue
        run, layer, chunks = held
        text = f"run {run} layer {layer}" + (f"\nchunks 1..{chunks}" if chunks > 1 else "\nchunk 1" if chunks else "\nclaimed")
        out.bands.append(Band(line, text, _content(run, layer), number))


def _slots(mem: Any) -> dict[str, Value]:
    """Lifeline -> contents of every slot: of each rank, and of each lane, where there are several."""
    flat: dict[tuple[Value, ...], Value] = {}

    def walk(value: Value, path: tuple[Value, ...]) -> None:
        held = items(value)
        if path and held and len(held) == 3 and all(isinstance(part, int) for part in held):
            flat[path] = value
        else:
            for key, inner in (as_function(value) or {}).items():
                walk(inner, (*path, *(items(key) or [key])))

    walk(mem, ())
    varies = [len({path[i] for path in flat}) > 1 for i in range(min(map(len, flat), default=0))]
    slot = 1 if len(varies) == 3 else 0  # <<member, slot, lane>>
    kept = [i for i, differs in enumerate(varies) if differs or i == slot]
    return {"slot " + ".".join(value_text(path[i]) for i in kept): value for path, value in sorted(flat.items(), key=_show_path)}


def _show_path(pair: tuple[tuple[Value, ...], Value]) -> str:
    return " ".join(map(show, pair[0]))


def _one_rank(out: Diagram) -> None:
    """Where Prefill has one rank, it goes by that name; where it has several, what names none is the first one's."""
    things: list[Row | Bar] = [*out.rows, *out.bars]
    keys = {thing.line for thing in things} | {end for arrow in out.arrows for end in (arrow.source, arrow.target)}
    ranks = {key for key in keys if key.startswith("prefill ")}
    if not ranks:
        return

    def name(key: str) -> str:
        if not key.startswith("prefill"):
            return key
        return "prefill" if len(ranks) == 1 else "prefill 0" if key == "prefill" else key

    for thing in things:
        thing.line = name(thing.line)
    for arrow in out.arrows:
        arrow.source, arrow.target = name(arrow.source), name(arrow.target)


def _lifelines(out: Diagram, last: dict[str, Value]) -> list[Lifeline]:
    used = {row.line for row in out.rows} | {bar.line for bar in out.bars}
    used |= {end for arrow in out.arrows for end in (arrow.source, arrow.target)}
    lines = [Lifeline("client", "client")] if "client" in used else []
    lines += [Lifeline(key, key.capitalize()) for key in sorted(used) if key.startswith("decode")] or [Lifeline("decode", "Decode")]
    lines += [Lifeline(NETWORK, "network", "network")]
    lines += [Lifeline(key, key.capitalize()) for key in sorted(used) if key.startswith("prefill")] or [Lifeline("prefill", "Prefill")]
    lines += [Lifeline(slot, slot, "memory") for slot in _slots(last.get("mem", ""))]
    known = {line.key for line in lines} | {"pool"}
    lines += [Lifeline(key, key) for key in sorted(used - known) if key]
    return [*lines, Lifeline("pool", "pool")] if "pool" in used else lines
