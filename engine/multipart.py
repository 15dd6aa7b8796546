"""Multipart messages over pyzmq, as cheap as it lets them be: each layer of each prompt is several.

Rules: every socket is made here, and knows from the first how long it may take to end; `send` and `receive` do what pyzmq's
`send_multipart` and `recv_multipart` do, which make an enumeration of every flag and option, for every frame: that takes longer than the
frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import zmq

__all__ = ["LINGER", "has_frames", "new_socket", "receive", "send"]

EVENTS = zmq.EVENTS  # by its enumeration: for an option that is a bare number pyzmq looks that up, which takes longer than to ask
POLLIN, NOBLOCK, SNDMORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.SNDMORE)
LINGER = 500
"""Milliseconds that what was said may take to leave when its socket is closed."""


def new_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """One whose context can be ended once it is closed.

    Each connection takes the time to linger from its socket when it is made: where that was "for ever" until the socket was closed, a
    peer that left at that moment could keep the context waiting for ever.
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, LINGER)
    return socket


def has_frames(socket: zmq.Socket[bytes]) -> bool:
    """Can a message be received now?"""
    return bool(cast(int, socket.get(EVENTS)) & POLLIN)


def receive(socket: zmq.Socket[bytes], *, wait: bool = False) -> list[bytes]:
    """The frames of the next message; if there is none, wait for it, or raise zmq.Again."""
    frame = socket.recv(0 if wait else NOBLOCK, copy=False)
    frames = [frame.bytes]
    while frame.more:
        frame = socket.recv(NOBLOCK, copy=False)  # a message comes whole
        frames.append(frame.bytes)
    return frames


def send(socket: zmq.Socket[bytes], frames: Sequence[bytes]) -> None:
    """At least one frame, as one message."""
    last = len(frames) - 1
    for number, frame in enumerate(frames):
        socket.send(frame, SNDMORE if number < last else 0)
