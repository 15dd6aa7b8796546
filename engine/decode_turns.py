"""Which requests of a Decode go on when others wait: turns, so that a long answer does not keep a short one from its place.

Rules: nobody gives way before it has made `after` tokens since it got its place, so whoever has a place gets on; who gives up its row
keeps its blocks, and has a row again before any that is new; a prompt gives up its blocks once at most, is then asked for again from its
beginning, and greedy decoding makes the same tokens; one request a step gives way.  So each is answered, however many there are.  The
decoding thread calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidegate.engine.admission import Active, Admission
from tidegate.engine.decode_engine import DecodeEngine

__all__ = ["Turns"]


class Turns:
    """after: tokens; 0: nobody gives way.  preempted, dropped: how often a row, and the blocks too, were taken."""

    def __init__(self, engine: DecodeEngine, admission: Admission, *, after: int) -> None:
        self._engine, self._admission, self._after = engine, admission, after
        self._since: dict[int, int] = {}  # attempt that has a row -> tokens that it had made when it got it
        self.preempted = self.dropped = 0

    def going(self, running: Sequence[Active]) -> list[Active]:
        """Of those that could make the next step, the ones that make it; the others come out of `completed` again, or begin anew."""
        going = list(running)
        if not self._after:
            return going
        self._since = {one.attempt: self._since.get(one.attempt, len(one.tokens)) for one in going}
        may = [one for one in going if len(one.tokens) - self._since[one.attempt] >= self._after]
        if may and (lacks := self._engine.lacks()):
            gives_way = self._preempt(may) if lacks == "row" else self._drop(may)
            return [one for one in going if one is not gives_way]
        return going

    def _preempt(self, may: Sequence[Active]) -> Active:
        """The one that has had its row for the most tokens."""
        one = max(may, key=lambda one: len(one.tokens) - self._since[one.attempt])
        del self._since[one.attempt]  # it may have a row again before the next step, and then begins to count anew
        self._engine.preempt(one.attempt)  # who waits has the row now
        self._engine.resume(one.attempt)
        self.preempted += 1
        return one

    def _drop(self, may: Sequence[Active]) -> Active | None:
        """The one that loses the fewest tokens."""
        one = min((one for one in may if not one.dropped), key=lambda one: len(one.tokens), default=None)
        if one is not None:
            self._engine.owner.ask(partial(self._admission.drop, one))
            self.dropped += 1
        return one
