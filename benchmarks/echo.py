"""What a layer's three messages take by themselves: the yardstick of control_plane.py.

A process of its own answers each READY with a READ_DONE over the sockets that the engines use, as they use them; `Echo` sends COMMITTED for
it.  The messages are the product's, encoded once; nobody looks into them.
"""

from __future__ import annotations

import subprocess
import sys
import time

import zmq

from tidegate.engine import control, multipart
from tidegate.protocol.messages import Committed, ReadDone, Ready, TransferId, encode

BIG = 1 << 61  # as large as the nonces are
STEP = TransferId(BIG, 1, 40)
READY = encode(Ready("cmpl-" + 32 * "0" + "-0", BIG, STEP, 3, 1000, BIG, 0, 512, True, BIG))
DONE, COMMITTED = encode(ReadDone(STEP, 3, 1000, BIG, BIG)), encode(Committed(STEP))


class Echo:
    """This process sends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = control.connect(self._context, int(self._process.stdout.readline()))

    def layers(self, count: int, *, in_flight: int, together: int = 1) -> float:
        """Seconds until `count` layers of `together` requests each are acked, those of all requests said in one breath."""
        began, sent = time.perf_counter(), min(count, in_flight)
        ready, committed = [READY] * together, [COMMITTED] * together
        for _ in range(sent):
            multipart.send(self._socket, [control.MESSAGE, *ready])
        for _ in range(count):
            multipart.receive(self._socket, wait=True)
            more = sent < count
            sent += more
            multipart.send(self._socket, [control.MESSAGE, *committed, *(ready if more else ())])
        return time.perf_counter() - began

    def close(self) -> None:
        self._socket.send_multipart([b"end"])
        self._process.wait()
        self._socket.close()
        self._context.term()


def main() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket, port = control.bind(context, 0)
    print(port, flush=True)
    while (frames := multipart.receive(socket, wait=True))[1] != b"end":
        if ready := frames.count(READY):
            multipart.send(socket, [frames[0], control.MESSAGE, *[DONE] * ready])
    socket.close()
    context.term()


if __name__ == "__main__":
    main()
