"""What the soak's strangers say: each kind of change is one, and what is taken in spite of it is never the message that it was made of."""

from __future__ import annotations

import random

import pytest

from tidegate.engine.soak.lies import CHANGES, changed
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import Abort, Blocks, Message, Ready, Start, TransferId, decode, encode

TRUE: tuple[Message, ...] = (
    Ready("x", 7, TransferId(7, 1, 1), 0, 1, 1, 0, 8, False, 5), Blocks(7, 1, 1, 1, 5, bytes(8)), Abort("x", 7, "why", 1),
    Start("x", 7, 1, 2, (1, 2)),
)  # fmt: skip


@pytest.mark.parametrize("how", CHANGES)
def test_what_is_changed_is_refused_or_is_something_else(how: str) -> None:
    draw, refused, other = random.Random(how), 0, 0
    for _ in range(200):
        true = draw.choice(TRUE)
        data = changed(draw, true, how)
        assert data != encode(true)
        try:
            taken = decode(data)
        except RemoteProtocolError:
            refused += 1
        else:
            other += taken != true
    assert refused
    assert (other > 0) == (how in ("number", "kind", "missing", "more", "tag", "flipped")), "some of it is well formed"


def test_a_seed_is_a_lie() -> None:
    assert changed(random.Random(3), TRUE[0]) == changed(random.Random(3), TRUE[0]) != changed(random.Random(4), TRUE[0])
