"""The Prefills that a Decode rank reads from: who is who, what each may speak about, and to whom a message goes.

Rules: a Prefill is known by its life, and spoken to where that life said HELLO last; each has its own memory, layout and lists of
blocks, so what is wrong with one concerns its own requests alone; the run that an attempt is bound to is the run of the life that
announced it, only that life speaks about it, and what is said about it goes there; a word that every Prefill may need (ABORT) goes to
all, and whoever has no such run does nothing; one whose process has ended is let go of, and nothing more is heard or read of it.
Owner's thread only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import zmq

from tidegate.engine import control
from tidegate.engine.decode_meeting import Fetched
from tidegate.engine.decode_memory import DecodeMemory, Destination
from tidegate.engine.decode_peer import Peer
from tidegate.engine.fault_spec import MessageFaults
from tidegate.engine.pool_client import pid_namespace, process_of
from tidegate.engine.pull_shm import Part, ShmPull
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import VERSION, Message, Ready, Start, run_of
from tidegate.protocol.topology import ALONE, Topology

__all__ = ["MAX_PEERS", "Peers"]

log = logging.getLogger(__name__)
MAX_PEERS = 64
"""Prefills that one Decode reads from: the memory of each stays mapped."""


class Peers:
    """lives: incarnation -> Prefill.  own_memory, topology: as a `Peer` needs them; incarnation: of this Decode; hands: ids of the
    processes that read besides this one."""

    def __init__(
        self, backend: ShmPull, own_memory: DecodeMemory, *, incarnation: int, socket: zmq.Socket[bytes], topology: Topology = ALONE,
        faults: MessageFaults | None = None, hands: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self._backend, self._own_memory, self._own, self.topology = backend, own_memory, incarnation, topology
        self._socket, self._faults = socket, faults or MessageFaults(())
        self._readers = tuple(map(process_of, (os.getpid(), *hands)))
        self.lives: dict[int, Peer] = {}
        self._at: dict[bytes, Peer] = {}
        self._out: dict[int, control.Outbox] = {}
        self._life_of: dict[int, int] = {}  # bound run -> who announced it
        self._heard = 0  # who says what is being taken now

    # ---- who there is ---------------------------------------------------------------------------------------------

    def meet(self, address: bytes, hello: control.Hello, memories: Fetched) -> control.Welcome:
        """The answer to a HELLO; `refused` is set, and nothing has changed, where its memory cannot be used.  memories: asked, of a life
        that is not known yet, for what it serves.
        """
        peer = self.lives.get(hello.incarnation)
        if peer is None:
            try:
                peer = Peer(self._backend, self._own_memory, hello, address, memories(), self.topology)
            except (OSError, ValueError) as error:
                return self._answer("", str(error))
            if len(self.lives) >= MAX_PEERS:
                peer.close()
                return self._answer("", f"this Decode serves {MAX_PEERS} Prefills already")
            self.lives[hello.incarnation], self._out[hello.incarnation] = peer, control.Outbox(self._socket, self._faults.changes())
        self._at.pop(peer.address, None)  # where it was before it connected anew nobody is
        self._at[address], peer.address = peer, address
        return self._answer(peer.digest)

    def _answer(self, digest: str, refused: str = "") -> control.Welcome:
        return control.Welcome(VERSION, self._own, digest, refused, self._readers, pid_namespace())

    def gone(self) -> list[int]:
        """The lives whose process has ended."""
        return [life for life, peer in self.lives.items() if not peer.is_there]

    def leave(self, life: int) -> frozenset[int]:
        """Let go of it; the runs that it had announced and that attempts were bound to, of which nothing more will come."""
        peer = self.lives.pop(life)
        del self._at[peer.address], self._out[life]
        peer.close()
        runs = frozenset(run for run, of in self._life_of.items() if of == life)
        for run in runs:
            self.forget(run)
        return runs

    def close(self) -> None:
        """Let go of all."""
        for life in list(self.lives):
            self.leave(life)

    # ---- what they say --------------------------------------------------------------------------------------------

    def speaker(self, address: bytes) -> Peer:
        """Who is at `address`; RemoteProtocolError for nobody."""
        if (peer := self._at.get(address)) is None:
            raise RemoteProtocolError("a message of somebody who has not introduced himself",
                                      machine="control", state=sorted(self.lives), event=address)  # fmt: skip
        return peer

    def hear(self, peer: Peer, message: Message) -> None:
        """`peer` says `message`, and is answered until the next is heard; RemoteProtocolError where it is about a run of another."""
        if self._life_of.get(run := run_of(message), peer.incarnation) != peer.incarnation:
            raise RemoteProtocolError(f"Prefill {peer.incarnation} speaks about a run of Prefill {self._life_of[run]}",
                                      machine="control", state=run, event=message)  # fmt: skip
        self._heard = peer.incarnation

    def bound(self, run: int) -> None:
        """An attempt is bound to `run`, which is that of the one who was heard last."""
        self._life_of.setdefault(run, self._heard)

    def serves(self, run: int) -> bool:
        """Is whoever announced the bound `run` still there?"""
        return run in self._life_of

    def forget(self, run: int) -> None:
        """Nobody will speak about `run` any more."""
        self._life_of.pop(run, None)

    def life_of(self, run: int) -> int:
        """Whose run it is: of the one who announced it, and of one that no attempt is bound to, the one who was heard last."""
        return self._life_of.get(run, self._heard)

    def said(self, run: int = 0) -> str:
        """Whose run it is, in words; whoever may begin one, for 0."""
        if run:
            return f"Prefill {control.public_name(self.life_of(run))}"
        return f"Prefill {' or '.join(map(control.public_name, self.lives))}" if self.lives else "any Prefill: none has introduced itself"

    def parts(self, ready: Ready, destination: Destination, prompt: int) -> list[Part]:
        """As `Peer.parts`, of the one that announced its run; ValueError too where that one has gone."""
        if (peer := self.lives.get(self.life_of(ready.transfer.run))) is None:
            raise ValueError(f"Prefill {control.public_name(ready.incarnation)}, which announced it, has gone")
        return peer.parts(ready, destination, prompt)

    # ---- what they are told ---------------------------------------------------------------------------------------

    def send(self, message: Message, copies: int = 1, *, run: int = 0) -> None:
        """Have it sent by `flush`, to whom it concerns; nobody hears what concerns one that has gone.  run: of RETIRE, the one that its
        attempt is bound to: whoever has that must hear it, and where nobody has it any, all may.
        """
        to = [self.life_of(run)] if run and self.life_of(run) in self.lives else self._concerned(message)
        for life in to:
            for _ in range(copies):
                self._out[life].add(message)

    def _concerned(self, message: Message) -> Sequence[int]:
        if isinstance(message, Start):
            return self._next()
        if run := run_of(message):
            return [life for life in (self.life_of(run),) if life in self.lives]
        return list(self.lives)

    def _next(self) -> list[int]:
        """One of them, each in its turn; of none, none."""
        for life in list(self.lives)[:1]:
            self.lives[life] = self.lives.pop(life)
            return [life]
        return []

    def flush(self) -> None:
        for life, out in self._out.items():
            out.flush(self.lives[life].address)
