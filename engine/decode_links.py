"""Prefill's connections to the Decodes that asked it for something: one DEALER for each endpoint, opened by the first START for it.

Rules: a START reaches the session only after that very life of Decode has answered WELCOME, so it holds the layout; a START of a
life that is over, or of a Decode that refuses or does not answer, is answered with an error and begins no run; what a run has to say
goes to the endpoint that asked for it, and only from there are reports about it heard; each call is answered once; nobody is told who
this Prefill is at a port that another user has opened.  Owner's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import zmq

from tidegate.engine import control
from tidegate.engine.fault_spec import MessageFaults
from tidegate.engine.http.prefill_server import Call, Done
from tidegate.engine.http.server import Refused
from tidegate.engine.listeners import why_foreign
from tidegate.engine.noise import Change
from tidegate.engine.owner import Owner
from tidegate.engine.prefill_link import Receiver
from tidegate.engine.returning import is_dead
from tidegate.engine.waiting import Wait
from tidegate.protocol.effects import RunStarted
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import Abort, Message, Retire, Retired, run_of

__all__ = ["DecodeLinks"]

Endpoint = tuple[str, int]
MAX_LINKS = 64
STILL_THERE = 2.0
"""Seconds after which a Decode that has something to read here is looked at, and greeted, again."""


class Link:
    """One endpoint.  incarnation: of the Decode that has our layout, 0 if none has; pending: calls that wait for it."""

    def __init__(self, endpoint: Endpoint, socket: zmq.Socket[bytes], changes: Sequence[Change]) -> None:
        self.endpoint, self.socket, self.out = endpoint, socket, control.Outbox(socket, changes)
        self.incarnation = 0
        self.met: control.Welcome | None = None  # the latest life that welcomed us
        self.greeted = 0.0
        self.pending: list[tuple[float, Call]] = []

    def __str__(self) -> str:
        return f"Decode at {self.endpoint[0]}:{self.endpoint[1]}"


class DecodeLinks:
    """hello: who this Prefill is; max_waiting: calls that may be open at once; on_begin: told the id of each request whose run begins;
    limit: seconds that a Decode may take to answer the handshake.
    """

    def __init__(
        self,
        owner: Owner,
        context: zmq.Context[zmq.Socket[bytes]],
        hello: control.Hello,
        worker: Receiver,
        *,
        max_waiting: int = 256,
        on_begin: Callable[[str], None] = lambda request: None,
        limit: float = 10.0,
        faults: MessageFaults | None = None,
    ) -> None:
        self._owner, self._context, self._hello, self._worker, self._limit = owner, context, hello, worker, limit
        self._max_waiting, self._on_begin, self._faults = max_waiting, on_begin, faults or MessageFaults(())
        self._links: dict[Endpoint, Link] = {}
        self._link_of: dict[int, Link] = {}
        self._attempt_of: dict[int, int] = {}
        self._runs_of: dict[int, set[int]] = {}
        self._heard: Link | None = None  # who says what is being executed now
        self._calls: dict[int, Call] = {}

    @property
    def waiting(self) -> int:
        """Calls that wait for a handshake, or for the end of their run."""
        return len(self._calls) + sum(len(link.pending) for link in self._links.values())

    def call(self, call: Call) -> None:
        """Begin the run of `call` now, or when its Decode has been met."""
        if self.waiting >= self._max_waiting:
            call.answer.give(Refused(503, f"{self._max_waiting} prompts wait already: try again later", again=True))
            return
        endpoint = call.host, call.port
        link = self._links.get(endpoint)
        if link is None:
            if len(self._links) >= MAX_LINKS and not self._part():
                call.answer.give(Refused(503, f"this Prefill serves {MAX_LINKS} Decodes already", again=True))
                return
            if why := why_foreign(call.host, call.port):
                call.answer.give(Refused(503, f"Decode at {call.host}:{call.port} is not asked: {why}", again=True))
                return
            socket = control.connect(self._context, call.port, call.host, incarnation=self._hello.incarnation)
            link = self._links[endpoint] = Link(endpoint, socket, self._faults.changes())
            self._owner.add(link.socket, partial(self._frames, link))
        if link.incarnation == call.start.incarnation:
            self._begin(link, call)
            return
        link.pending.append((time.monotonic(), call))
        self._greet(link)

    def cancel(self, call: Call) -> None:
        """Nobody waits for `call` any more.  A run that has begun goes on until Decode aborts it: only Decode knows who reads."""
        for link in self._links.values():
            link.pending = [one for one in link.pending if one[1] is not call]

    def send(self, message: Message) -> None:
        """To the Decode that asked for the run which `message` is about; RETIRED to the one that retires."""
        link = self._heard if isinstance(message, Retired) else self._link_of[run_of(message)]
        if link is not None:
            link.out.add(message)

    def flush(self) -> None:
        for link in self._links.values():
            link.out.flush()

    def _part(self) -> bool:
        """Let go of a link that nobody needs now, so that another has its place: whoever asks again is greeted again."""
        busy = set(self._link_of.values())
        for link in self._links.values():
            if not link.pending and link not in busy:
                del self._links[link.endpoint]
                self._owner.remove(link.socket)
                return True
        return False

    def ended(self, run: int, verdict: str, reason: str) -> None:
        """The run is over: answer its call."""
        if call := self._calls.pop(run, None):
            call.answer.give(Done(run) if verdict == "done" else Refused(409, f"run {run} failed: {reason}"))

    def peer(self, run: int) -> str:
        return str(self._link_of[run]) if run in self._link_of else "nobody"

    def waits(self, now: float) -> list[Wait]:
        """Calls whose Decode has not answered the handshake."""
        return [
            Wait("handshake", call.start.request, f"{link} to answer this Prefill's HELLO", now - since, peer=str(link))
            for link in self._links.values() for since, call in link.pending
        ]  # fmt: skip

    def forgotten(self, run: int) -> None:
        """Nobody will ask about the run any more."""
        del self._link_of[run]
        runs = self._runs_of[attempt := self._attempt_of.pop(run)]
        runs.remove(run)
        if not runs:
            del self._runs_of[attempt]

    def tick(self) -> None:
        """Greet again who has not answered; give up after the limit."""
        serving = set(map(id, self._link_of.values()))
        for link in list(self._links.values()):
            if not link.pending:
                if id(link) in serving and time.monotonic() - link.greeted > STILL_THERE:
                    self._still_there(link)
                continue
            if time.monotonic() - link.pending[0][0] > self._limit:
                self._refuse(link, f"{link} has not answered the handshake for {self._limit:g} s")
            else:
                self._greet(link)

    def close(self) -> None:
        """Answer whoever still waits."""
        waiting = [call for link in self._links.values() for _, call in link.pending] + list(self._calls.values())
        self._calls.clear()
        for link in self._links.values():
            link.pending.clear()
        for call in waiting:
            call.answer.give(Refused(503, "this Prefill is stopping", again=True))

    # ---- one link -------------------------------------------------------------------------------------------------

    def _still_there(self, link: Link) -> None:
        """Is it the same life that answers, or is that dead, and has none come here in its place?"""
        if link.met is not None and is_dead(link.met):
            self._worker.peer_gone(link.met)
            link.met, link.incarnation = None, 0
        self._greet(link)

    def _greet(self, link: Link) -> None:
        link.greeted = time.monotonic()
        link.socket.send_multipart([control.HELLO, control.frame(self._hello)])

    def _frames(self, link: Link, frames: list[bytes]) -> None:
        if len(frames) == 2 and frames[0] == control.WELCOME:
            self._welcome(link, control.parse_welcome(frames[1]))
        elif len(frames) > 1 and frames[0] == control.MESSAGE:
            control.each(frames[1:], partial(self._take, link), self._owner.drop)
        else:
            raise RemoteProtocolError("these frames are no message", machine="control", state=f"{len(frames)} frames",
                                      event=frames[0][:16] if frames else b"")  # fmt: skip

    def _take(self, link: Link, message: Message) -> None:
        self._check(link, message)
        self._heard = link
        try:
            self._worker.execute(self._worker.receive(message))
        finally:
            self._heard = None

    def _welcome(self, link: Link, welcome: control.Welcome) -> None:
        if welcome.refused or welcome.digest != self._hello.digest:
            link.incarnation = 0
            self._refuse(link, f"{link} refused this Prefill: {welcome.refused or 'it has mapped another layout'}")
            return
        if link.met is not None and link.met.incarnation != welcome.incarnation:
            self._worker.peer_gone(link.met)
        link.met, link.incarnation = welcome, welcome.incarnation
        pending, link.pending = link.pending, []
        for _, call in pending:
            if call.start.incarnation == welcome.incarnation:
                self._begin(link, call)
            else:
                call.answer.give(Refused(503, f"{link} is not the one that asked: that one has ended", again=True))

    def _begin(self, link: Link, call: Call) -> None:
        try:
            effects = self._worker.receive(call.start)
        except RemoteProtocolError as error:
            call.answer.give(Refused(400, str(error)))
            return
        if not any(isinstance(effect, RunStarted) for effect in effects):
            call.answer.give(Refused(503, f"{link} is not the one that asked: that one has ended", again=True))
        for run in [effect.run for effect in effects if isinstance(effect, RunStarted)]:
            self._link_of[run], self._attempt_of[run], self._calls[run] = link, call.start.attempt, call
            self._runs_of.setdefault(call.start.attempt, set()).add(run)
        self._worker.execute(effects)
        self._on_begin(call.start.request)

    def _refuse(self, link: Link, reason: str) -> None:
        pending, link.pending = link.pending, []
        for _, call in pending:
            call.answer.give(Refused(503, reason, again=True))
        if link not in self._link_of.values():
            del self._links[link.endpoint]
            self._owner.remove(link.socket)

    def _check(self, link: Link, message: Message) -> None:
        """RemoteProtocolError for a message about a run of somebody else."""
        runs = self._runs_of.get(message.attempt, set()) if isinstance(message, Abort | Retire) else {run_of(message)}
        if any(self._link_of.get(run, link) is not link for run in runs):
            raise RemoteProtocolError(f"{link} speaks about a run that another Decode asked for",
                                      machine="control", state=link.endpoint, event=message)  # fmt: skip
