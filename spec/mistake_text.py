"""Says what a mistake changes: what our model has instead, after the same event.

Rules: what is said is read off the two states; where phases of machines differ, it is those, else whatever differs; messages are sent
or not sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidegate.spec.explain import EVENT, changed, message_text, value_text
from tidegate.spec.mistake import Mistake
from tidegate.spec.story import LEADER
from tidegate.spec.tlc_output import TraceState
from tidegate.spec.values import Value, show
from tidegate.spec.vocabulary import Vocabulary, record

__all__ = ["instead"]

TITLES = {"RequestCompletion": "", "PrefillRun": "", "FailureInvalidation": "the memory of ", "PhysicalBuffer": "the gate of ",
          "PoolObject": "the pool object of ", "Read": "the read of ", "Transfer": "the transfer of "}  # fmt: skip
PHASE = re.compile(r"^(.*?): (?:.*; )?phase: (\w+) → (\w+)")


def instead(mistake: Mistake, trace: list[TraceState], words: Vocabulary) -> list[str]:
    """What our model has, and the behaviour has not, in short clauses; the first says most."""
    return [LEADER.sub(r"\1", text) for text in _instead(mistake, trace, words)]


def _instead(mistake: Mistake, trace: list[TraceState], words: Vocabulary) -> list[str]:
    if not mistake.step:
        return [f"our model still offers {_offer(event)}" for event in mistake.owed]
    if mistake.right is None:
        return ["our model refuses this step"]
    right, wrong = mistake.right, trace[mistake.step].variables
    sent = list(_sent(right.get("net"), wrong.get("net")))
    names = sorted((n for n in wrong if words.machine(n)), key=show)
    lines = [line for n in names for line in changed(n, right[n], wrong[n], words)]
    phases = [f"in our model {_titled(found[1])} is {found[2]}, not {found[3]}" for line in lines if (found := PHASE.match(line))]
    if phases:
        return [*phases, *sent]
    other = [line for n in sorted(wrong) if n not in (EVENT, "net") for line in changed(n, right[n], wrong[n], words)]
    return [*sent, *map(_plainly, lines or other)]


def _offer(event: Value) -> str:
    fields = record(event) or {}
    about = next((f"{name} {value_text(fields[name])}" for name in ("transfer", "object", "attempt", "run") if name in fields), "")
    return f"{fields.get('op')} ({about})"


def _sent(right: Value | None, wrong: Value | None) -> Iterator[str]:
    """The messages that only one of them sends; of two that are called alike, in what they differ."""
    if not (isinstance(right, frozenset) and isinstance(wrong, frozenset)):
        return
    ours, theirs = ({message_text(m): record(m) or {} for m in sorted(ms, key=show)} for ms in (right - wrong, wrong - right))
    for text, fields in ours.items():
        other = theirs.pop(text, fields)
        differ = [f"{name} {value_text(fields[name])}, not {value_text(other[name])}" for name in fields if fields[name] != other.get(name)]
        yield f"our model sends {text}{' with ' + ', '.join(differ) if differ else ' here'}"
    yield from (f"our model does not send {text} here" for text in theirs)


def _titled(thing: str) -> str:
    machine, _, about = thing.partition(" ")
    return f"{TITLES[machine]}{about}" if machine in TITLES else thing


def _plainly(line: str) -> str:
    """RequestCompletion attempt 1: layers: - 2 -> in our model RequestCompletion attempt 1 has 2 among its layers."""
    thing, _, rest = line.partition(": ")
    field, _, change = rest.partition(": ")
    if change[:2] in ("- ", "+ "):
        return f"in our model {_titled(thing)} has {'no ' if change[0] == '+' else ''}{change[2:]} among its {field}"
    return f"in our model {_titled(thing)} has {rest.split(' → ')[0]}"
