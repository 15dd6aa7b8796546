"""The Decode side of the benchmarks of Prefill: takes rows as fast as it can and keeps nothing.

A process of its own: `python sink.py LAYERS BLOCK_SIZE TOKENS [--no-pull]`.  It prints its port; each line of standard input asks for
one prompt of TOKENS tokens, and is answered by a line: "ok", or what went wrong.  Session, sockets and pulls are the product's; with
--no-pull a read ends where it would begin, and what is left is the control plane.
"""

from __future__ import annotations

import secrets
import sys
from functools import partial

import numpy as np
import zmq

from tidegate.engine import control
from tidegate.engine.copying import Outcome, Work
from tidegate.engine.owner import Owner
from tidegate.engine.pull_shm import Part, ShmPull
from tidegate.engine.slots import SharedMemory, fetch_memory
from tidegate.engine.tracing import labels
from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import AttemptFailed, BeginRead, Completed, Effect, Register, Send
from tidegate.protocol.messages import VERSION, Ready, decode, encode


class Sink:
    """One prompt at a time, into one place."""

    def __init__(self, layers: int, block_size: int, tokens: int, *, pull: bool) -> None:
        self.tokens, self._pull, self._block_size = tokens, pull, block_size
        self._incarnation = secrets.randbits(62) + 1
        self.session = DecodeSession(layers=layers, incarnation=self._incarnation)
        self._backend = ShmPull()
        self._memory: SharedMemory | None = None
        self.places: dict[str, np.ndarray] = {}  # by area: [layers, tokens, bytes of a row]
        self._peer, self._asked = b"", 0
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket, self.port = control.bind(self.context, 0)
        self.owner = Owner("sink", self._socket, on_frames=self._frames, on_tick=lambda: None, after=self._admit,
                           on_crash=lambda error: print(repr(error), flush=True), tick=0.5)  # fmt: skip

    def ask(self) -> None:
        self._asked += 1

    def close(self) -> None:
        self._backend.close()
        self.owner.stop()
        if self._memory is not None:
            self._memory.close()
        self.context.term()

    def _admit(self) -> None:
        while self._peer and self._asked:
            self._asked -= 1
            self._do(self.session.admit(secrets.randbits(62) + 1, request="r", tokens=self.tokens))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message):
                    self._socket.send_multipart([self._peer, control.MESSAGE, encode(message)])
                case Register(attempt):
                    self.owner.post(partial(lambda a: self._do(self.session.registered(a)), attempt))
                case BeginRead(ready):
                    self._read(ready)
                case Completed(attempt):
                    self._do(self.session.schedule(attempt))
                    self._do(self.session.finish(attempt))
                    print("ok", flush=True)
                case AttemptFailed(_, reason):
                    print(reason, flush=True)

    def _read(self, ready: Ready) -> None:
        def ended(outcome: Outcome) -> None:
            self._do(self.session.read_end(ready.transfer, "ok" if outcome.ok else "quiet", outcome.reason))

        if self._pull:
            work = Work(ready.slot, ready.epoch, labels(ready.transfer))
            self._backend.submit("prefill", self._parts(ready), work, lambda outcome: self.owner.post(partial(ended, outcome)))
        else:
            ended(Outcome(True, True))

    def _parts(self, ready: Ready) -> list[Part]:
        assert self._memory is not None
        layout, parts = self._memory.layout, []
        for area in layout.areas_of(ready.slot):
            pieces = np.array(layout.token_ranges(area, ready.blocks, ready.start, ready.stop), np.int64)
            first = ((ready.transfer.layer - 1) * self.tokens + ready.start) * area.row_bytes
            parts.append(Part(area.name, pieces[:, 0], first + np.cumsum(pieces[:, 1]) - pieces[:, 1], pieces[:, 1]))
        return parts

    def _frames(self, frames: list[bytes]) -> None:
        if frames[1] == control.MESSAGE:
            self._do(self.session.receive(decode(frames[2])))
            return
        hello = control.parse_hello(frames[2])
        if self._memory is None:
            self._peer, self._memory = frames[0], fetch_memory(hello.memory)
            self._backend.connect("prefill", self._memory)
            for area in self._memory.layout.areas_of(0):
                self.places[area.name] = np.ones((self.session.layers, self.tokens, area.row_bytes), np.uint8)
                self._backend.register(area.name, self.places[area.name])
        self._socket.send_multipart([self._peer, control.WELCOME, control.frame(control.Welcome(VERSION, self._incarnation, hello.digest))])


def main(layers: str, block_size: str, tokens: str, *options: str) -> None:
    sink = Sink(int(layers), int(block_size), int(tokens), pull="--no-pull" not in options)
    sink.owner.start()
    print(sink.port, flush=True)
    for _ in sys.stdin:
        sink.owner.post(sink.ask)
    sink.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
