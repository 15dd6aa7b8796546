"""The process of a hand: where it hears its leader from, and how it ends.

Rules: the configuration is one line of standard input; when that ends, the leader is gone and so is the hand, with the exit code that
every rank of a failed group has; an error is said to the leader, and then ends the process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

import msgspec
import zmq

from tidegate.engine.endings import FAILED, end_with_any_thread
from tidegate.engine.hands import HandConfig
from tidegate.engine.multipart import new_socket
from tidegate.engine.rank_words import Failed, HandWord, pack

__all__ = ["Leader", "run_hand"]

T = TypeVar("T")


class Leader:
    """The other end.  `say` in the thread that owns `socket`, once there is one."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the leader drains, and says when
        self._leaving = threading.Lock()
        self.told = msgspec.json.decode(sys.stdin.buffer.readline(), type=HandConfig)
        threading.Thread(target=self._watch, name="leader", daemon=True).start()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._connect(str(self.told.rank).encode())

    def _connect(self, identity: bytes) -> zmq.Socket[bytes]:
        socket = new_socket(self.context, zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, identity)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(self.told.address)
        return socket

    def _watch(self) -> None:
        while os.read(0, 1 << 12):
            pass
        self._leaving.acquire()
        os._exit(FAILED)

    def config(self, kind: type[T]) -> T:
        """What the whole instance is told."""
        return msgspec.json.decode(self.told.config, type=kind)

    def say(self, word: HandWord) -> None:
        self.socket.send(pack(word))

    def fail(self, reason: str) -> NoReturn:
        """Say why, and end the process now, from whatever thread."""
        self._leaving.acquire()
        logging.getLogger(__name__).error("%s", reason)
        own = zmq.Context()  # the socket is its owner's: an error of another thread goes a way of its own
        socket = new_socket(own, zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, b"%d" % -self.told.rank)
        socket.connect(self.told.address)
        socket.send(pack(Failed(reason)))
        socket.close()
        own.term()
        os._exit(FAILED)

    def left(self) -> None:
        """Nothing more is to be said; what was said is on its way."""
        self._leaving.acquire()
        self.context.term()


def run_hand(role: str, body: Callable[[Leader], None]) -> None:
    """A hand's main: `body` to its end, or one word about why not."""
    import torch

    torch.set_num_threads(1)
    leader = Leader()
    end_with_any_thread(leader.fail)
    logging.basicConfig(level=logging.WARNING, format=f"{role} rank {leader.told.rank}: %(message)s")
    try:
        body(leader)
    except Exception as error:
        if not isinstance(error, OSError):
            logging.getLogger(__name__).exception("the hand failed")
        leader.fail(str(error))
