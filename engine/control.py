"""The control plane of one Prefill and one Decode rank: DEALER to ROUTER over TCP.

Rules: nothing is said before the handshake: Prefill's HELLO names its protocol version, its incarnation, its layout and where
its memory is served; Decode maps that memory, checks the layout, and only then answers WELCOME with the digest that it has
mapped.  So a WELCOME is the positive word of this very Decode process that it holds the layout; START follows it, and every
READY rests on it.  A peer of another version, or whose layout does not fit, is refused with the reason.  Messages that are due at one
moment go as one multipart, [MESSAGE, one, two, ...], and are taken one by one: what is wrong with one concerns no other.
A frame beyond MAX_BYTES, which none of ours can be, ends the connection that it comes by before it takes memory; a multipart of more
than MAX_FRAMES is dropped whole; and what is not taken yet waits at its sender.
A connection that broke is made anew, and is the same peer's: Prefill's address is its incarnation, which only those that it has greeted
know, and which nobody else is told: what strangers may read has `public_name` of it; what was under way is said again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
import zmq
from msgspec import Meta

from tidegate.engine.multipart import new_socket, send
from tidegate.engine.noise import Change
from tidegate.engine.token import configured_token, guard, present
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import VERSION, Message, decode, encode

__all__ = [
    "HELLO", "MAX_BYTES", "MAX_FRAMES", "MESSAGE", "WELCOME", "Hello", "Outbox", "Welcome", "bind", "connect", "each", "frame",
    "parse_hello", "parse_welcome", "public_name",
]  # fmt: skip

HELLO, WELCOME, MESSAGE = b"hello", b"welcome", b"message"
MAX_BYTES = 16 << 20
"""Of one frame; as of one HTTP body, which carries the longest prompt."""
MAX_UNREAD = 1000
"""Multiparts of one sender that wait here."""
MAX_FRAMES = 1000
"""Messages of one multipart; whoever has more to say says them in several."""


T = TypeVar("T", bound="Hello | Welcome")
Nonce = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Name = Annotated[str, Meta(max_length=200)]


class Hello(msgspec.Struct, frozen=True):
    """A Prefill instance introduces itself, all of its ranks at once: one owner speaks for them.

    memory: where the layer memory of rank 0 is served; others: that of rank 1, 2, ...  All are of the one layout of `digest`.
    """

    version: int
    incarnation: Nonce
    digest: Name
    memory: Name
    others: Annotated[tuple[Name, ...], Meta(max_length=1023)] = ()

    @property
    def memories(self) -> tuple[str, ...]:
        """Of every rank, in order."""
        return (self.memory, *self.others)


class Welcome(msgspec.Struct, frozen=True):
    """Decode's answer; `refused` is empty, or says why not.

    readers: id and start of each process whose threads read from Prefill, by which their death can be seen, where ids mean the same
    processes: within one `namespace` of ids.
    """

    version: int
    incarnation: int
    digest: str
    refused: str = ""
    readers: tuple[tuple[int, int], ...] = ()
    namespace: int = 0


def public_name(life: int) -> str:
    """What anybody may call the life of a server by: the same for the same, and no way back to its incarnation."""
    return hashlib.blake2b(life.to_bytes(16, "little", signed=True), digest_size=6).hexdigest()


def frame(value: Hello | Welcome) -> bytes:
    """The bytes of a handshake."""
    return msgspec.json.encode(value)


def parse_hello(data: bytes) -> Hello:
    """RemoteProtocolError unless `data` is a HELLO of our version."""
    return _checked(data, Hello)


def parse_welcome(data: bytes) -> Welcome:
    """RemoteProtocolError unless `data` is a WELCOME of our version."""
    return _checked(data, Welcome)


def _checked(data: bytes, kind: type[T]) -> T:
    try:
        value = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:  # nesting, even in a field that would be skipped
        raise RemoteProtocolError(f"not a {kind.__name__}: {error}", machine="control", state="-", event=data[:40]) from error
    if value.version != VERSION:
        raise RemoteProtocolError(
            f"the peer speaks protocol version {value.version}, this side {VERSION}: run the same release on both sides",
            machine="control", state="-", event=value.version,
        )  # fmt: skip
    return value


class Outbox:
    """Messages for one peer, until its owner has nothing else to do at the moment: they leave together, and wait for nobody.  changes: make
    of them, one after the other, what really leaves; for tests.
    """

    def __init__(self, socket: zmq.Socket[bytes], changes: Sequence[Change] = ()) -> None:
        self._socket, self._changes = socket, changes
        self._waiting: list[bytes] = []

    def add(self, message: Message) -> None:
        self._waiting.append(encode(message))

    def flush(self, *address: bytes) -> None:
        """Send them all.  address: the peer's, where the socket has several."""
        if self._waiting or self._changes:
            bodies, self._waiting = self._waiting, []
            for change in self._changes:
                bodies = change(bodies)
            for first in range(0, len(bodies), MAX_FRAMES):
                send(self._socket, [*address, MESSAGE, *bodies[first : first + MAX_FRAMES]])


def each(bodies: Sequence[bytes], take: Callable[[Message], None], drop: Callable[[RemoteProtocolError], None]) -> None:
    """`take` each message of one multipart; `drop` is told of those that break the protocol.  RemoteProtocolError, with nothing taken, for
    a multipart without measure.
    """
    if len(bodies) > MAX_FRAMES:
        raise RemoteProtocolError(f"{len(bodies)} messages at once: at most {MAX_FRAMES} are taken", machine="control", state="-",
                                  event=bodies[0][:16])  # fmt: skip
    for body in bodies:
        try:
            take(decode(body))
        except RemoteProtocolError as error:
            drop(error)


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """Takes what it is given to send at once, whoever is there to read it."""
    socket = new_socket(context, kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, MAX_UNREAD)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
    return socket


Guard = tuple["zmq.Socket[bytes]", Callable[[list[bytes]], None]]
"""A socket, and what is to be done with each thing that comes by it."""


def bind(context: zmq.Context[zmq.Socket[bytes]], port: int, guards: list[Guard] | None = None) -> tuple[zmq.Socket[bytes], int]:
    """(ROUTER, its port) on loopback; OSError naming the port if it is taken.

    guards: where the deployment has a token, gets what the ROUTER's owner must own beside it; left out: anybody may connect.
    """
    socket = _socket(context, zmq.ROUTER)
    if guards is not None and (made := guard(context, socket, configured_token())) is not None:
        guards.append(made)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # this side may not have noticed yet that the old connection is gone
    try:
        if not port:
            return socket, socket.bind_to_random_port("tcp://127.0.0.1")
        socket.bind(f"tcp://127.0.0.1:{port}")
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise OSError(error.errno, f"port {port} cannot be bound: {error}; choose another with --port, or 0") from error
    return socket, port


def connect(
    context: zmq.Context[zmq.Socket[bytes]], port: int, host: str = "127.0.0.1", *, incarnation: int = 0
) -> zmq.Socket[bytes]:
    """DEALER to the Decode rank at `host` (an IP address) and `port`.  incarnation: of the Prefill that connects; 0: a stranger, who is
    another one after each break.
    """
    socket = _socket(context, zmq.DEALER)
    present(socket, configured_token())
    if incarnation:
        socket.setsockopt(zmq.ROUTING_ID, b"prefill-%x" % incarnation)
    if ":" in host:
        socket.setsockopt(zmq.IPV6, 1)
        host = f"[{host}]"
    socket.connect(f"tcp://{host}:{port}")
    return socket
