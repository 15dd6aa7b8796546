"""A Decode rank that is not the leader: its own indexer cache, hot buffers and share of the reads; main KV it maps.

Rules: it decides nothing; it reads what the leader has compared and asks for, into what the leader has given to the attempt and no other
byte, and tells of each end; it makes the forwards that the leader makes, in its order.
"""

from __future__ import annotations

import os
import queue
import secrets
from functools import partial

import msgspec

from tidegate.engine.copying import Faults, Outcome, Work
from tidegate.engine.decode_checks import region_of
from tidegate.engine.decode_memory import PARKED, DecodeMemory, Destination
from tidegate.engine.decode_peer import peer_name
from tidegate.engine.decode_rows import DecodeRows
from tidegate.engine.hand_io import Leader
from tidegate.engine.hot_buffer import Reader
from tidegate.engine.owner import Owner
from tidegate.engine.pull_shm import ShmPull
from tidegate.engine.rank_words import (
    Connect,
    Disconnect,
    Forward,
    HandWord,
    Here,
    LeaderWord,
    Own,
    Owned,
    Park,
    Read,
    ReadEnded,
    Reclaim,
    Scheduled,
    Stats,
    Stop,
    Unpark,
    unpack_leader,
    unpack_part,
)  # fmt: skip
from tidegate.engine.recorder import NULL, Recording
from tidegate.engine.slots import SharedMemory, fetch_memory
from tidegate.engine.tracing import labels, trace_footer, trace_header

__all__ = ["DecodeHand"]


class DecodeHand(DecodeRows):
    """memory: as large as the leader's, its main KV the leader's; members: Prefill ranks, for the trace."""

    def __init__(
        self, leader: Leader, memory: DecodeMemory, *, members: int = 1, pull_threads: int = 1, recorder: Recording = NULL,
        faults: Faults | None = None,
    ) -> None:  # fmt: skip
        super().__init__(memory, {}, rank=leader.told.rank, ranks=leader.told.size)
        trace_header(recorder, role="decode", rank=self.rank, ranks=leader.told.size, members=members,
                     incarnation=secrets.randbits(62) + 1, layers=memory.layers,
                     memories=memory.files() if recorder.enabled else {})  # fmt: skip
        self._recorder = recorder
        self._leader, self._pull = leader, ShmPull(threads=pull_threads, recorder=recorder, faults=faults)
        self._owned: dict[int, Destination] = {}
        self._parked: dict[int, Reader] = {}  # of attempts that have no row
        self._peers: dict[tuple[int, int], SharedMemory] = {}  # by incarnation and rank
        self._forwards: queue.SimpleQueue[Forward | None] = queue.SimpleQueue()
        self.owner = Owner("decode-hand", leader.socket, on_frames=self._frames, on_tick=lambda: None, after=lambda: None,
                           on_crash=lambda error: leader.fail(str(error)), tick=60.0)  # fmt: skip

    def open(self) -> None:
        """Tell the leader that this rank is ready, and listen."""
        self._leader.say(Here(self.rank, "", "", os.getpid()))
        self.owner.start()

    def next_forward(self) -> Forward | None:
        """The next forward that all ranks make; None when it is time to end."""
        return self._forwards.get()

    def close(self) -> None:
        """Let every pull end and be told, and give everything back."""
        self._pull.close()
        counts = self.memory.hot.counts
        self._say(Stats({"hits": counts.hits, "misses": counts.misses, "bytes_missed": counts.bytes_loaded}))
        self.owner.stop()
        trace_footer(self._recorder)
        for memory in self._peers.values():
            memory.close()

    # ---- the leader's words ----------------------------------------------------------------------------------------

    def _say(self, word: HandWord) -> None:
        self.owner.post(partial(self._leader.say, word))

    def _frames(self, frames: list[bytes]) -> None:
        self._take(unpack_leader(frames[0]))

    def _take(self, word: LeaderWord) -> None:
        match word:
            case Connect(life, rank, served):
                self._peers[life, rank] = fetch_memory(served)
                self._pull.connect(peer_name(life, rank), self._peers[life, rank])
            case Disconnect(life):
                self._part(life)
            case Own(attempt, row, blocks, tokens):
                self._own_it(Destination(attempt, row, blocks, tokens))
            case Read():
                self._read(word)
            case Scheduled(attempt, length):
                one = self._owned[attempt]
                self._readers[attempt] = Reader(attempt, one.row, one.blocks, length, layers=self.memory.layers,
                                                block_size=self.memory.allocator.block_size)  # fmt: skip
            case Park(attempt):
                one = self._owned[attempt]
                self._owned[attempt] = msgspec.structs.replace(one, row=PARKED)
                self._parked[attempt] = self._readers.pop(attempt)
                self.memory.poison_row(one.row)
            case Unpark(attempt, row):
                self._owned[attempt] = msgspec.structs.replace(self._owned[attempt], row=row)
                self._readers[attempt] = self._parked.pop(attempt)
                self._readers[attempt].move(row)
            case Reclaim(attempt):
                self._reclaim(attempt)
            case Forward():
                self._forwards.put(word)
            case Stop():
                self._forwards.put(None)

    def _own_it(self, one: Destination) -> None:
        self._owned[one.attempt] = one
        for name, pages in self.memory.pages.items():
            self._pull.register(region_of(name, one.attempt), pages.memory, pages.spans(one.blocks), name)
        self._leader.say(Owned(one.attempt))

    def _read(self, word: Read) -> None:
        def told(outcome: Outcome) -> None:
            self._say(ReadEnded(word.transfer, word.slot, word.epoch, outcome))

        work = Work(word.slot, word.epoch, labels(word.transfer))
        self._pull.submit(peer_name(word.incarnation, word.transfer.member), [unpack_part(part) for part in word.parts], work, told)

    def _part(self, life: int) -> None:
        for key in [key for key in self._peers if key[0] == life]:
            self._pull.disconnect(peer_name(*key))
            self._peers.pop(key).close()

    def _reclaim(self, attempt: int) -> None:
        for name in self.memory.pages:
            self._pull.unregister(region_of(name, attempt))
        self._readers.pop(attempt, None)
        self._parked.pop(attempt, None)
        self.memory.poison_own(self._owned.pop(attempt))
