"""The way to one Decode whose control port is known: START and everything else come over one connection.

Rules: HELLO is repeated until Decode has answered; a Decode that refuses this Prefill ends the engine with its reason; owner's
thread only.
"""

from __future__ import annotations

from typing import Protocol

import zmq

from tidegate.engine import control
from tidegate.engine.owner import Owner
from tidegate.engine.waiting import Wait
from tidegate.protocol.effects import Effect
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import Message

__all__ = ["DirectLink", "Receiver"]


class Receiver(Protocol):
    """The engine around the session."""

    def receive(self, message: Message) -> list[Effect]: ...

    def execute(self, effects: list[Effect]) -> None: ...

    def peer_gone(self, life: control.Welcome) -> None: ...


class DirectLink:
    """`Links` to the Decode of this host at `port`.  hello: who this Prefill is."""

    def __init__(
        self, owner: Owner, context: zmq.Context[zmq.Socket[bytes]], port: int, hello: control.Hello, receiver: Receiver
    ) -> None:
        self._hello, self._receiver = hello, receiver
        self._owner, self._socket = owner, control.connect(context, port, incarnation=hello.incarnation)
        self._out = control.Outbox(self._socket)
        self._welcomed, self._endpoint = False, f"127.0.0.1:{port}"
        owner.add(self._socket, self._frames)
        self.tick()

    def send(self, message: Message) -> None:
        self._out.add(message)

    def flush(self) -> None:
        self._out.flush()

    def ended(self, run: int, verdict: str, reason: str) -> None:
        """Nobody waits here: RUN_FAILED has told Decode."""

    def peer(self, run: int) -> str:
        return f"Decode at {self._endpoint}"

    def waits(self, now: float) -> list[Wait]:
        return [] if self._welcomed else [Wait("handshake", "this Prefill", f"Decode at {self._endpoint} to answer its HELLO")]

    def forgotten(self, run: int) -> None:
        """There is one way only, and it is known of no run."""

    def tick(self) -> None:
        if not self._welcomed:
            self._socket.send_multipart([control.HELLO, control.frame(self._hello)])

    def close(self) -> None:
        """The socket is the owner's."""

    def _take(self, message: Message) -> None:
        self._receiver.execute(self._receiver.receive(message))

    def _frames(self, frames: list[bytes]) -> None:
        if len(frames) == 2 and frames[0] == control.WELCOME:
            welcome = control.parse_welcome(frames[1])
            if welcome.refused:
                raise OSError(f"Decode refused this Prefill: {welcome.refused}")
            self._welcomed = welcome.digest == self._hello.digest
        elif len(frames) > 1 and frames[0] == control.MESSAGE:
            control.each(frames[1:], self._take, self._owner.drop)
        else:
            raise RemoteProtocolError("these frames are no message", machine="control", state=f"{len(frames)} frames",
                                      event=frames[0][:16] if frames else b"")  # fmt: skip
