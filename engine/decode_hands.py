"""What the leader of a Decode instance does with its hands: destinations and reads at every rank, steps that all make.

Rules: the leader decides, a hand's share is carried out by a word to it; an attempt is registered when every rank has its destination;
each rank hears of an attempt's beginning before anything is read into it, of its completion before the first step, and of its end after
the last; a read ends here as it ended there.  Owner's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.engine.copying import OnOutcome
from tidegate.engine.decode_memory import Destination
from tidegate.engine.hands import Hands
from tidegate.engine.owner import Owner
from tidegate.engine.pull_shm import Part
from tidegate.engine.rank_words import (
    Connect,
    Disconnect,
    Forward,
    HandWord,
    Own,
    Owned,
    Park,
    Read,
    ReadEnded,
    Reclaim,
    Scheduled,
    Unpark,
    pack_part,
)  # fmt: skip
from tidegate.protocol.messages import Ready, TransferId
from tidegate.protocol.topology import Topology

__all__ = ["DecodeHands"]


class DecodeHands:
    """owned: told (attempt, rank) of each rank that has its destination."""

    def __init__(self, hands: Hands, owner: Owner, topology: Topology, owned: Callable[[int, int], None]) -> None:
        self._hands, self._topology, self._owned = hands, topology, owned
        self._reads: dict[TransferId, OnOutcome] = {}
        hands.attach(owner, self._take)

    def _take(self, rank: int, word: HandWord) -> None:
        match word:
            case Owned(attempt):
                self._owned(attempt, rank)
            case ReadEnded(transfer, _, _, outcome):
                told = self._reads.pop(transfer) if outcome.stopped else self._reads[transfer]
                told(outcome)

    def met(self, life: int, memories: Sequence[str]) -> None:
        """A Prefill has introduced itself: each rank maps what its contributor group serves."""
        for d_rank in range(1, self._topology.d_tp):
            for p_rank in self._topology.group(d_rank):
                self._hands.say(d_rank, Connect(life, p_rank, memories[p_rank]))

    def left(self, life: int) -> None:
        """That Prefill has gone."""
        self._hands.say_all(Disconnect(life))

    def register(self, one: Destination) -> None:
        self._hands.say_all(Own(one.attempt, one.row, one.blocks, one.tokens))

    def read(self, rank: int, ready: Ready, parts: Sequence[Part], told: OnOutcome) -> None:
        self._reads[ready.transfer] = told
        self._hands.say(rank, Read(ready.transfer, ready.slot, ready.epoch, tuple(map(pack_part, parts)), ready.incarnation))

    def scheduled(self, attempt: int, length: int) -> None:
        self._hands.say_all(Scheduled(attempt, length))

    def park(self, attempt: int) -> None:
        self._hands.say_all(Park(attempt))

    def unpark(self, one: Destination) -> None:
        self._hands.say_all(Unpark(one.attempt, one.row))

    def reclaim(self, attempt: int) -> None:
        self._hands.say_all(Reclaim(attempt))

    def forward(self, word: Forward) -> None:
        """All ranks make this forward now."""
        self._hands.say_all(word)
