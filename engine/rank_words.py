"""What the ranks of one instance say to each other: the leader, in whose process every session lives, and its hands.

Rules: a hand decides nothing; each word about a copy or a step names its transfer (run, chunk, layer, member), slot and epoch; words of
one pair of ranks arrive in the order in which they were said, or the group ends.  Not for other instances: those speak `messages`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tidegate.engine.copying import Outcome
from tidegate.engine.pull_shm import Part
from tidegate.protocol.messages import Start, TransferId

__all__ = [
    "Attended", "Begin", "Compute", "Connect", "CopyBegins", "CopyEnded", "Disconnect", "Ended", "Failed", "Forward", "Go", "HandWord",
    "Here", "LeaderWord", "Moved", "Own", "Owned", "Park", "PartWord", "Poisoned", "Read", "ReadEnded", "Reclaim", "Remove", "Scheduled",
    "Stats", "Stop", "Unpark", "Written", "pack", "pack_part", "unpack_hand", "unpack_leader", "unpack_part",
]  # fmt: skip


class Word(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of them all."""


# ---- the leader to a hand


class Begin(Word, frozen=True):
    """The turn of a run has come: its blocks, the same on every rank, and how many tokens the pool backs."""

    run: int
    start: Start
    chunks: int
    blocks: tuple[int, ...]
    backed: int


class Moved(Word, frozen=True):
    """The run gave way, and goes on in these blocks."""

    run: int
    blocks: tuple[int, ...]


class Compute(Word, frozen=True):
    """The next step: these (run, chunk) together."""

    parts: tuple[tuple[int, int], ...]


class Go(Word, frozen=True):
    """All ranks agreed on one more layer of the step: compute (step, slot, epoch) of each, which is yours.

    What is not named any more has left, at every rank before the same layer; nothing is named: the step is over.
    """

    steps: tuple[tuple[TransferId, int, int], ...]


class CopyBegins(Word, frozen=True):
    """kind: load, save or fill; first, end: the tokens of a fill."""

    kind: str
    step: TransferId
    slot: int
    epoch: int
    first: int = 0
    end: int = 0


class Remove(Word, frozen=True):
    """These chunks of a failed run are not whole and will not be."""

    run: int
    chunks: tuple[int, ...]


class Ended(Word, frozen=True):
    """The run is over."""

    run: int


class Poisoned(Word, frozen=True):
    """What `blocks` hold in `slot` (None: all of it) became free: fill it with NaN (-1)."""

    slot: int
    blocks: tuple[int, ...] | None


class Connect(Word, frozen=True):
    """Rank `rank` of the Prefill of that incarnation serves its layer memory at `memory`."""

    incarnation: int
    rank: int
    memory: str


class Disconnect(Word, frozen=True):
    """The Prefill of that incarnation has gone: nothing more is read of it."""

    incarnation: int


class Own(Word, frozen=True):
    """An attempt's destination, the same blocks on every rank."""

    attempt: int
    row: int
    blocks: tuple[int, ...]
    tokens: int


PartWord = tuple[str, bytes, bytes, bytes]
"""A `Part`: its region, and its columns as int64."""


class Read(Word, frozen=True):
    """Pull `parts` from the rank that `transfer` names, of the Prefill of that incarnation."""

    transfer: TransferId
    slot: int
    epoch: int
    parts: tuple[PartWord, ...]
    incarnation: int


class Scheduled(Word, frozen=True):
    """All `length` tokens of the attempt's prompt are there, on every rank: forwards may name it."""

    attempt: int
    length: int


class Park(Word, frozen=True):
    """The attempt was preempted: it has no row, and no forward names it until it has one."""

    attempt: int


class Unpark(Word, frozen=True):
    """The attempt goes on, in this row, where nothing is hot."""

    attempt: int
    row: int


class Reclaim(Word, frozen=True):
    """No forward will name the attempt, and nothing can land for it any more."""

    attempt: int


class Forward(Word, frozen=True):
    """Decode each request further, all in one forward: (attempt, token, position, end, drafts), as `speculation.Speculating` has them."""

    requests: tuple[tuple[int, int, int, int, tuple[int, ...]], ...]


class Stop(Word, frozen=True):
    """Let every copy end, give everything back, say Stats and end."""


# ---- a hand to the leader


class Here(Word, frozen=True):
    """Rank `rank` is ready; memory: where its layer memory, of the layout of `digest`, is served."""

    rank: int
    memory: str
    digest: str
    process: int


class Written(Word, frozen=True):
    """The rows of (step, slot, epoch) each are there."""

    steps: tuple[tuple[TransferId, int, int], ...]


class Attended(Word, frozen=True):
    """The attention of (step, slot, epoch) each needs its slot no more."""

    steps: tuple[tuple[TransferId, int, int], ...]


class CopyEnded(Word, frozen=True):
    """The copy has stopped, so or so."""

    kind: str
    step: TransferId
    slot: int
    epoch: int
    outcome: Outcome


class Owned(Word, frozen=True):
    """The attempt's destination is registered here."""

    attempt: int


class ReadEnded(Word, frozen=True):
    """As `CopyEnded`; more follow until one says that the copy has stopped."""

    transfer: TransferId
    slot: int
    epoch: int
    outcome: Outcome


class Stats(Word, frozen=True):
    """The hand's last word but its exit."""

    stats: dict[str, float]


class Failed(Word, frozen=True):
    """The hand must end, and so must all."""

    reason: str


LeaderWord = (
    Begin | Moved | Compute | Go | CopyBegins | Remove | Ended | Poisoned | Connect | Disconnect | Own | Read | Scheduled | Park | Unpark
    | Reclaim | Forward | Stop
)
HandWord = Here | Written | Attended | CopyEnded | Owned | ReadEnded | Stats | Failed

_encoder = msgspec.msgpack.Encoder()
_leader = msgspec.msgpack.Decoder(LeaderWord)
_hand = msgspec.msgpack.Decoder(HandWord)


def pack_part(part: Part) -> PartWord:
    source, destination, length = (np.asarray(column, np.int64).tobytes() for column in (part.source, part.destination, part.length))
    return part.region, source, destination, length


def unpack_part(word: PartWord) -> Part:
    region, *columns = word
    source, destination, length = (np.frombuffer(column, np.int64) for column in columns)
    return Part(region, source, destination, length)


def pack(word: Word) -> bytes:
    return _encoder.encode(word)


def unpack_leader(data: bytes) -> LeaderWord:
    """What the leader said; msgspec.MsgspecError for anything else."""
    return _leader.decode(data)


def unpack_hand(data: bytes) -> HandWord:
    """What a hand said; as `unpack_leader`."""
    return _hand.decode(data)
