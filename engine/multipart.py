"""Multipart messages over pyzmq, as cheap as it lets them be: each layer of each prompt is several.

Rule: what it does is what pyzmq's `send_multipart` and `recv_multipart` do; those make an enumeration of every flag and option, for every
frame, which takes longer than the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import zmq

__all__ = ["has_frames", "receive", "send"]

EVENTS = zmq.EVENTS  # by its enumeration: for an option that is a bare number pyzmq looks that up, which takes longer than to ask
POLLIN, NOBLOCK, SNDMORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.SNDMORE)


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
