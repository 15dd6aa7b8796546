"""Messages that are almost right: what a fuzzer makes of a good one that knows what it is made of.

Rules: everything is drawn from `draw`; what comes out is never the message that went in, so who takes it for that one takes something
else; the kinds of change are named, so that a test can ask for each.
"""

from __future__ import annotations

import random
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.protocol.messages import VERSION, Message, encode

__all__ = ["CHANGES", "changed"]

NUMBERS = (0, 1, -1, 2, 127, 128, 255, 256, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63))
OTHERS: tuple[Any, ...] = (None, True, 1.5, float("nan"), "", "\x00", "x" * 300, b"", b"\xff" * 300, [], [[]], {}, {"x": 1}, [1] * 300)
TAGS = [str(kind.__struct_config__.tag) for kind in typing.get_args(Message)]
Fields = list[Any]


def _places(fields: Fields) -> list[tuple[Fields, int]]:
    """Every value that is no list, wherever it stands: the tag is the first."""
    found: list[tuple[Fields, int]] = []
    for index, value in enumerate(fields):
        found += _places(value) if isinstance(value, list) else [(fields, index)]
    return found


def _number(draw: random.Random, fields: Fields) -> None:
    """One field has another value of its kind, near or far."""
    where, index = draw.choice(_places(fields)[1:])
    old = where[index]
    if isinstance(old, bool):
        where[index] = not old
    elif isinstance(old, int):
        where[index] = draw.choice([old + 1, old - 1, old ^ (1 << draw.randrange(62)), *NUMBERS])
    elif isinstance(old, str):
        where[index] = draw.choice([old + "0", old[:-1], old * 100 or "x"])
    else:
        where[index] = draw.randbytes(len(old) + draw.choice([0, 1, 4]))


def _kind(draw: random.Random, fields: Fields) -> None:
    """One field is of another kind."""
    where, index = draw.choice(_places(fields)[1:])
    where[index] = draw.choice(OTHERS)


def _missing(draw: random.Random, fields: Fields) -> None:
    """One field is not there."""
    del fields[draw.randrange(1, len(fields))]


def _more(draw: random.Random, fields: Fields) -> None:
    """One field too many."""
    fields.insert(draw.randrange(1, len(fields) + 1), draw.choice([*NUMBERS, *OTHERS]))


def _tag(draw: random.Random, fields: Fields) -> None:
    """The fields of one message under the name of another."""
    fields[0] = draw.choice([*TAGS, "", "READY\0", 7])


SHAPES: dict[str, Callable[[random.Random, Fields], None]] = {
    "number": _number, "kind": _kind, "missing": _missing, "more": _more, "tag": _tag,
}  # fmt: skip
CHANGES = (*SHAPES, "cut", "version", "flipped", "tail")


def changed(draw: random.Random, message: Message, how: str = "") -> bytes:
    """The bytes of something like `message`.  how: of CHANGES; drawn if it is left out."""
    true = encode(message)
    while True:
        made = _made(draw, true, how or draw.choice(CHANGES))
        if made != true:
            return made


def _made(draw: random.Random, true: bytes, how: str) -> bytes:
    match how:
        case "cut":
            return true[: draw.randrange(len(true))]
        case "version":
            return bytes((draw.choice([0, VERSION - 1, VERSION + 1, 255]),)) + true[1:]
        case "flipped":
            at = draw.randrange(len(true))
            return true[:at] + bytes((true[at] ^ (1 << draw.randrange(8)),)) + true[at + 1 :]
        case "tail":
            return true + draw.randbytes(draw.randint(1, 9))
    fields = msgspec.msgpack.decode(true[1:])
    SHAPES[how](draw, fields)
    return true[:1] + msgspec.msgpack.encode(fields)
