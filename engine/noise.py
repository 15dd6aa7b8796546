"""What a broken network or a mad peer adds to what it says, for tests: bytes that mean nothing, and messages that once meant something.

Rules: every true message leaves, in its order; what is added stands before, between and behind; what is added and whole was said by this
very side before, to this very peer, so it may cost nobody anything; all else must be refused for its own sake.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from tidegate.protocol.messages import VERSION

__all__ = ["Noise"]

MOST, KEPT, LONGEST = 3, 100, 2000


class Noise:
    """Of one peer.  due: asked once for what leaves together; the seed of what is added to it, None for nothing."""

    def __init__(self, due: Callable[[], int | None]) -> None:
        self._due = due
        self._said: deque[bytes] = deque(maxlen=KEPT)

    def __call__(self, bodies: list[bytes]) -> list[bytes]:
        """`bodies`, and more if it is due."""
        self._said.extend(bodies)
        if (seed := self._due()) is None:
            return bodies
        draw, out = random.Random(seed), list(bodies)
        for _ in range(draw.randint(1, MOST)):
            out.insert(draw.randint(0, len(out)), self._made(draw, draw.choice(tuple(self._said))))
        return out

    @staticmethod
    def _made(draw: random.Random, true: bytes) -> bytes:
        match draw.randrange(8):
            case 0:
                return draw.randbytes(draw.randrange(LONGEST))
            case 1:
                return true[: draw.randrange(len(true))]
            case 2:
                return bytes((draw.choice([n for n in range(256) if n != VERSION]),)) + true[1:]
            case 3:
                return true + draw.randbytes(draw.randint(1, 20))
            case 4:
                return true[:2] + b"\x91" * LONGEST + true[2:]
            case _:
                return true
