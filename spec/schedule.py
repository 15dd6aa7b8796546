"""A counterexample of TLC as a schedule for the real sessions.

Rules: the labels are those that the model says (`ev`); a schedule ends where the sessions do not offer its next label, for
nobody would take that step; one that is taken to its end is driven on without faults, fairly, until the World rests or
`PATIENCE` steps have passed, for a hang shows only by never ending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.errors import ProtocolError
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec.bounds import Bounds
from tidegate.spec.labels import MESSAGES, Label, arguments
from tidegate.spec.rest import at_rest, tombstones, waiting
from tidegate.spec.tlc_output import Result
from tidegate.spec.values import Value
from tidegate.spec.world import World

__all__ = ["PATIENCE", "Replay", "drain", "label_of", "labels_of", "replay", "say_label"]

PATIENCE = 400


@dataclass
class Replay:
    """wrong: what the oracle found, in words; refused_at: the first step, from 1, that the sessions did not offer, or 0:
    then the schedule ended there."""

    wrong: list[str] = field(default_factory=list)
    refused_at: int = 0
    refusal: str = ""


def labels_of(result: Result) -> list[Label]:
    """The labels of a counterexample, without its initial state."""
    return [label_of(state.variables["ev"]) for state in result.trace[1:] if "ev" in state.variables]


def label_of(value: Value) -> Label:
    """The record `ev` -> label: inverse of `abstract.label_value`."""
    fields = dict(value[1])
    op = fields["op"]
    names = arguments(op, dict(fields["message"][1])["op"] if "message" in fields else "")
    return (op, *(_message(fields[n]) if n == "message" else _plain(fields[n]) for n in names))


def _message(value: Value) -> Label:
    fields = dict(value[1])
    return (fields["op"], *(_plain(fields[n]) for n in MESSAGES[fields["op"]]))


def _plain(value: Value) -> object:
    if isinstance(value, tuple) and value[0] == "bool":
        return value[1]
    if isinstance(value, tuple):
        return tuple(_plain(v) for _, v in sorted(value[1]))
    return value


def replay(
    bounds: Bounds,
    labels: Sequence[Label],
    *,
    prefill: type[PrefillSession] = PrefillSession,
    decode: type[DecodeSession] = DecodeSession,
) -> Replay:
    """Apply `labels` one after another, then drain; stops at the first thing that the oracle calls wrong.  That a record of
    what is over has changed, and is not forgotten, is told where nothing worse comes of it.  prefill, decode: the sessions, if not
    our own."""
    world, changed = World(bounds, prefill, decode), list[str]()
    for number, label in enumerate(labels, 1):
        if label not in world.moves():
            return Replay([], number, f"{say_label(label)} is not offered")
        before = tombstones(world)
        if wrong := _step(world, label):
            return Replay(wrong)
        after = tombstones(world)
        changed += [f"{name} ended as {old}, and is {after[name]} later" for name, old in before.items() if after.get(name, old) != old]
    return Replay(drain(world) or changed)


def say_label(label: Label) -> str:
    return f"{label[0]}({', '.join(map(str, label[1:]))})"


def _step(world: World, label: Label) -> list[str]:
    """Take a step that was offered; what is wrong afterwards.  A session must not fail in the middle of it."""
    try:
        world.apply(label)
    except ProtocolError as error:
        return [f"the session contradicts itself: {str(error).splitlines()[0]}"]
    except LookupError as error:
        return [f"the session dies in {say_label(label)}: {type(error).__name__} {error}"]
    return world.violations()


def drain(world: World) -> list[str]:
    """Drive on without faults until rest; what is wrong then, or who still waits."""
    world.limits = dict.fromkeys(world.limits, 0)
    for turn in range(1, PATIENCE + 1):
        if at_rest(world):
            return world.violations()
        moves = [m for m in world.moves() if m[0] not in ("Admit", "Forward")]
        fresh = [m for m in moves if not m[0].startswith("Resend")] or moves
        if not fresh:
            break
        if wrong := _step(world, fresh[turn % len(fresh)]):
            return wrong
    return [f"hang: {what}" for what in waiting(world)] or ["hang: nothing more can happen"]
