"""What a Decode rank does in its session's thread: it admits attempts, carries out what the session asks for, and begins pulls.

Rules: the owner's thread calls everything here; pulls run on the data path's threads and post their end; an attempt's blocks are a
region of the pull backend, exactly they, from its registration until nothing can land in them any more; a READY that does not fit is
answered as a read that failed quietly, and concerns its attempt alone.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from tidegate.engine import control
from tidegate.engine.decode_checks import region_of
from tidegate.engine.decode_hands import DecodeHands
from tidegate.engine.decode_meeting import Fetched, Meetings
from tidegate.engine.decode_memory import DecodeMemory
from tidegate.engine.decode_parking import Parking
from tidegate.engine.decode_peer import Peer
from tidegate.engine.decode_peers import Peers
from tidegate.engine.decode_reads import OneRead
from tidegate.engine.decode_told import Told, Wanted
from tidegate.engine.decode_why import decode_waits
from tidegate.engine.faults import Injector
from tidegate.engine.forgetting import Again
from tidegate.engine.hot_buffer import Reader
from tidegate.engine.parting import Partings
from tidegate.engine.pull_shm import ShmPull
from tidegate.engine.waiting import LIMIT, Watch
from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import AttemptFailed, BeginRead, Completed, Effect, Reclaimed, Register, Send
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import Blocks, Message, Ready, Retire, Retired, Start, TransferId

__all__ = ["DecodeCore"]

log = logging.getLogger(__name__)


class DecodeCore:
    """memory, session, peers: as they are; post: has the owner make a call; drop: has it count a message."""

    listener: Told
    hands: DecodeHands | None = None

    def __init__(
        self, session: DecodeSession, memory: DecodeMemory, backend: ShmPull, peers: Peers, faults: Injector, *,
        socket: zmq.Socket[bytes], resend_seconds: float, say: Callable[[str], None], wait_limit: float = LIMIT,
        warn: Callable[[str], None] = log.warning, read_retries: int = 0,
    ) -> None:  # fmt: skip
        self.session, self.memory, self.backend, self.peers, self._faults = session, memory, backend, peers, faults
        self._socket, self._resend, self._say, self._read_retries = socket, resend_seconds, say, read_retries
        self.reads_retried = 0
        self.post: Callable[[Callable[[], Any]], None] = lambda call: None
        self.drop: Callable[[RemoteProtocolError], None] = lambda error: None
        self.meetings = Meetings(peers.topology, lambda call: self.post(call))
        self.wanted: dict[int, Wanted] = {}
        self.readers: dict[int, Reader] = {}
        self.parking = Parking(memory, self.readers)
        self.pulled: Counter[str] = Counter()
        self._told_why: set[int] = set()
        self._unregistered: dict[int, set[int]] = {}  # attempt -> ranks that have not registered its destination yet
        self._reported: dict[TransferId, float] = {}
        self.partings = Partings(self)
        self.reading: dict[TransferId, float] = {}  # copies that may still write: since when
        self.watch = Watch(partial(decode_waits, self), limit=wait_limit, warn=warn)
        self._nonces = itertools.count(secrets.randbits(61) + 1)  # they grow, and no other life uses them
        self._over: list[int] = []  # attempts to be retired
        self._retiring: Again[int] = Again(resend_seconds)

    # ---- attempts -------------------------------------------------------------------------------------------------

    def new_attempt(self, wanted: Wanted) -> int:
        """Queue it for memory; its nonce.  ValueError where it can never have enough."""
        wanted.check()
        attempt = next(self._nonces)
        self.memory.ask(attempt, len(wanted.prompt) + wanted.new_tokens)
        self.wanted[attempt] = wanted
        self.post(self._say_why)
        return attempt

    def _say_why(self) -> None:
        """Say once of each that waits what for, after those that can have had their memory."""
        self.admit()
        for attempt, wanted in self.wanted.items():
            if attempt not in self._told_why and (why := self.memory.why(attempt)):
                self._say(f"decode {wanted.request}: {why}")
                self._told_why.add(attempt)

    def look(self) -> None:
        """After each batch of calls and messages: give those that wait their memory, while there is room."""
        self.admit()
        while self._over:
            self._retiring.add(attempt := self._over.pop())
            self.execute(self.session.retire(attempt))
        self.listener.look()
        self.peers.flush()

    def admit(self) -> None:
        """Give rows and blocks to those that wait, while there are any: first to those that were preempted."""
        for attempt in self.parking.returned():
            self.listener.resumed(attempt)
        for one in self.memory.admitted():
            wanted = self.wanted[one.attempt]
            self.listener.admitted(one.attempt)
            self.execute(self.session.admit(one.attempt, request=wanted.request, tokens=len(wanted.prompt), prompt=wanted.prompt))

    def finish(self, attempt: int) -> None:
        """Inference has ended; its memory is free as soon as nothing can land there."""
        if self.session.can_finish(attempt):
            self.execute(self.session.finish(attempt))

    def preempt(self, attempt: int) -> None:
        """Its row goes to whoever waits for one, now: it may `parking.ask` for another at once."""
        self.parking.park(attempt)
        self.admit()

    def abort(self, attempt: int, reason: str) -> bool:
        """Give it up, unless it is complete, or over; whether that was done.  One that has no memory yet is forgotten."""
        if self.memory.waits(attempt):
            self._forget(attempt)
            self.admit()  # a shorter one may have waited behind it
            return True
        if attempt not in self.wanted or not self.session.can_abort(attempt):
            return False
        self.execute(self.session.abort(attempt, reason))
        return True

    # ---- what the session asks for --------------------------------------------------------------------------------

    def execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message):
                    self._send(message)
                case Register(attempt):
                    self._register(attempt)
                case BeginRead(ready):
                    self._read(ready)
                case Completed(attempt):
                    self._complete(attempt)
                case AttemptFailed(attempt, reason):
                    self.listener.failed(attempt, reason)
                case Reclaimed(attempt):
                    self._reclaim(attempt)

    def _send(self, message: Message) -> None:
        copies = self._faults.copies_of(str(message.__struct_config__.tag))
        if isinstance(message, Start):
            self.listener.announce(message, copies)
        else:
            self.tell_peer(message, copies)
        if (transfer := getattr(message, "transfer", None)) is not None:
            self._reported.setdefault(transfer, time.monotonic())

    @property
    def has_peer(self) -> bool:
        """Has a Prefill introduced itself, that is still there?"""
        return bool(self.peers.lives)

    def tell_peer(self, message: Message, copies: int = 1) -> None:
        """Send it to the Prefill that it concerns, or to all, after this batch of calls and messages; START to one, each in its turn."""
        self.peers.send(message, copies, run=self._run_of(message.attempt) if isinstance(message, Retire) else 0)

    def _register(self, attempt: int) -> None:
        blocks = self.memory.owned[attempt].blocks
        self._unregistered[attempt] = set(range(self.peers.topology.d_tp))
        if self.hands is not None:
            self.hands.register(self.memory.owned[attempt])
        for name, pages in self.memory.pages.items():
            self.backend.register(region_of(name, attempt), pages.memory, pages.spans(blocks), name)
        self.post(partial(self.registered_at, attempt, 0))

    def registered_at(self, attempt: int, rank: int) -> None:
        """The destination is registered at `rank`; advertised when it is at all."""
        left = self._unregistered.get(attempt, set())
        left.discard(rank)
        if not left and self._unregistered.pop(attempt, None) is not None and self.session.can_register(attempt):  # it may have failed
            self.execute(self.session.registered(attempt))

    def _complete(self, attempt: int) -> None:
        self.execute(self.session.schedule(attempt))
        one, memory = self.memory.owned[attempt], self.memory
        self.readers[attempt] = Reader(attempt, one.row, one.blocks, len(self.wanted[attempt].prompt), layers=memory.layers,
                                       block_size=memory.allocator.block_size)  # fmt: skip
        if self.hands is not None:
            self.hands.scheduled(attempt, len(self.wanted[attempt].prompt))
        self._say(f"decode {self.wanted[attempt].request}: all {memory.layers} layers are here and committed")
        self.listener.completed(attempt)

    def _reclaim(self, attempt: int) -> None:
        for name in self.memory.pages:
            self.backend.unregister(region_of(name, attempt))
        if self.hands is not None:
            self.hands.reclaim(attempt)
        self._unregistered.pop(attempt, None)
        self.readers.pop(attempt, None)
        self.parking.forget(attempt)
        self._forget(attempt)
        self._over.append(attempt)

    def _forget(self, attempt: int) -> None:
        self.memory.give_back(attempt)
        self._told_why.discard(attempt)
        self.partings.deserted.discard(attempt)
        del self.wanted[attempt]

    def _read(self, ready: Ready) -> None:
        """Begin the pull that READY asks for, or say at once, quietly, why it cannot be."""
        OneRead(self, ready, self._read_retries).begin()

    def read_again(self, ready: Ready, left: int, why: str) -> None:
        """A read that failed is begun once more; `left` tries are left, with this one."""
        self.reads_retried += 1
        self._say(f"reading {ready.transfer} failed, and nothing of it lands any more: {why}; trying again, {left} tries are left")

    # ---- what comes in --------------------------------------------------------------------------------------------

    def frames(self, frames: list[bytes]) -> None:
        """A message from the network: a handshake, or one for the session.  RemoteProtocolError, with nothing changed."""
        if len(frames) == 3 and frames[1] == control.HELLO:
            hello = control.parse_hello(frames[2])
            if hello.incarnation in self.peers.lives:
                self._meet(frames[0], hello, tuple)
            else:
                self.meetings.begin(hello, partial(self._meet, frames[0], hello))
        elif len(frames) > 2 and frames[1] == control.MESSAGE:
            control.each(frames[2:], partial(self._take, self.peers.speaker(frames[0])), self.drop)
        else:
            raise RemoteProtocolError("these frames are no message", machine="control", state=f"{len(frames)} frames",
                                      event=frames[1][:16] if len(frames) > 1 else b"")  # fmt: skip

    def _meet(self, address: bytes, hello: control.Hello, memories: Fetched) -> None:
        known = hello.incarnation in self.peers.lives
        welcome = self.peers.meet(address, hello, memories)
        if not known and not welcome.refused:
            self.partings.met()
            if self.hands is not None:
                self.hands.met(hello.incarnation, hello.memories)
        self._socket.send_multipart([address, control.WELCOME, control.frame(welcome)])
        if welcome.refused:
            log.warning("refused a Prefill: %s", welcome.refused)

    def _take(self, peer: Peer, message: Message) -> None:
        self.peers.hear(peer, message)
        if isinstance(message, Ready):
            if peer.tables.knows(message):
                effects = self.session.receive(message)
                if (binding := self.session.bindings.get(message.attempt)) is not None and binding.run == message.transfer.run:
                    self.peers.bound(binding.run)
                self.execute(effects)
        elif isinstance(message, Blocks):
            peer.tables.hear(message)
        elif isinstance(message, Retired):
            run = self._run_of(message.attempt)
            self.execute(self.session.receive(message))
            if not self.session.remembers(message.attempt):
                self.peers.forget(run)
        else:
            self.execute(self.session.receive(message))

    def _run_of(self, attempt: int) -> int:
        """The run that it is bound to; 0 if there is none yet."""
        return self.session.bindings[attempt].run if attempt in self.session.bindings else 0

    def _is_unanswered(self, transfer: TransferId) -> bool:
        # what was refused was never read, and one that has gone answers nothing
        return transfer in self.session.reads and self.peers.serves(transfer.run) and self.session.is_unanswered(transfer)

    def unanswered(self) -> list[tuple[TransferId, float]]:
        """The reports without an answer, and when each was made."""
        return [(transfer, since) for transfer, since in self._reported.items() if self._is_unanswered(transfer)]

    def oldest_unanswered(self, now: float) -> float:
        """Seconds since the oldest report that has no answer was made; 0 if there is none."""
        return max((now - since for _, since in self.unanswered()), default=0.0)

    def tick(self) -> None:
        """Say again what nobody has answered, and see who has gone."""
        now = time.monotonic()
        self.partings.look()
        self._retiring.keep(self.session.can_retire)
        for attempt in self._retiring.due():
            self.execute(self.session.retire(attempt))
        self._reported = {t: since for t, since in self._reported.items() if self._is_unanswered(t)}
        for transfer in [t for t, since in self._reported.items() if now - since > self._resend]:
            self.execute(self.session.resend_report(transfer))
        self.listener.tick(now)
        self.watch.tick()
