"""What a broken network or a mad peer makes of what is said, for tests: more of it, or another order.

Rules: every true message leaves; `Noise` leaves their order alone, and adds before, between and behind; what it adds and is whole was said
by this very side before, to this very peer, so it may cost nobody anything; all else must be refused for its own sake.  `Disorder` adds
nothing, and keeps nothing longer than until its owner looks again whether something is to leave: nothing is lost, only late.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from tidegate.protocol.messages import VERSION

__all__ = ["Change", "Disorder", "Noise"]

Change = Callable[[list[bytes]], list[bytes]]
"""What leaves in place of what was to leave together; asked each time, though it be nothing."""

MOST, KEPT, LONGEST = 3, 100, 2000


class Noise:
    """Adds bytes that mean nothing, and messages that once meant something.  Of one peer.  due: asked once for what leaves together; the
    seed of what is added to it, None for nothing.
    """

    def __init__(self, due: Callable[[], int | None]) -> None:
        self._due = due
        self._said: deque[bytes] = deque(maxlen=KEPT)

    def __call__(self, bodies: list[bytes]) -> list[bytes]:
        """`bodies`, and more if it is due."""
        if not bodies:
            return bodies
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


class Disorder:
    """Of one peer.  due: as of `Noise`; the seed of the order, and of who stays behind."""

    def __init__(self, due: Callable[[], int | None]) -> None:
        self._due = due
        self._kept: list[bytes] = []

    def __call__(self, bodies: list[bytes]) -> list[bytes]:
        """`bodies` and then what was kept; if it is due, of `bodies` some, in any order, and the others next time."""
        late, self._kept = self._kept, []
        if not bodies or (seed := self._due()) is None:
            return bodies + late
        draw = random.Random(seed)
        mixed = draw.sample(bodies, len(bodies))
        stay = draw.randint(0, len(mixed))
        self._kept = mixed[:stay]
        return mixed[stay:] + late
