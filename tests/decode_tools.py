"""A real DecodeEngine, and beside it the other end of its socket: a Prefill that says what a test wants, over real shared memory."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import zmq

from tidegate.engine import control
from tidegate.engine.decode_engine import DecodeEngine, RowKind
from tidegate.engine.faults import Injector
from tidegate.engine.slot_layout import VERSION as LAYOUT_VERSION
from tidegate.engine.slot_layout import Area, SlotLayout, layout_digest
from tidegate.engine.slots import MemoryServer, SharedMemory
from tidegate.engine.step_blocks import blocks_of
from tidegate.protocol.messages import VERSION, Blocks, Committed, Message, Ready, Retire, Retired, Start, TransferId, decode, encode

KINDS = (RowKind("main", "float32", 4), RowKind("index", "float32", 2))
BLOCK, SLOT_OF_LAYER, SOURCE_BLOCKS = 4, (0, 1, 0), 6
PROMPT = 6
COUNT = itertools.count()


def layout_of(slots: Mapping[int, Sequence[RowKind]], *, blocks: int = SOURCE_BLOCKS, block_size: int = BLOCK) -> SlotLayout:
    """Each slot with rows of its own kinds."""
    areas, offset = [], 0
    for slot, kinds in slots.items():
        for kind in kinds:
            areas.append(Area(slot, kind.name, kind.dtype, kind.width, offset))
            offset += -(-blocks * block_size * kind.row_bytes // 64) * 64
    layout = SlotLayout(LAYOUT_VERSION, offset, block_size, blocks, tuple(areas), SLOT_OF_LAYER, "")
    return msgspec.structs.replace(layout, digest=layout_digest(layout))


class Prefill:
    """memory: random bytes, in the layout that it announces; others than those of another `seed`."""

    def __init__(self, port: int, layout: SlotLayout, *, seed: int = 1) -> None:
        self.memory, self._port = SharedMemory.allocate(layout), port
        self.memory.bytes[:] = np.random.default_rng(seed).integers(0, 100, self.memory.bytes.size)
        self.incarnation = 11 + next(COUNT)
        self._server = MemoryServer(self.memory, f"tidegate-test-{os.getpid()}-{next(COUNT)}", self.incarnation)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.told: dict[int, Blocks] = {}
        self._heard: list[bytes] = []
        self._hello = control.Hello(VERSION, self.incarnation, layout.digest, self._server.address)
        self.sockets: list[zmq.Socket[bytes]] = []
        self.greet()

    @property
    def socket(self) -> zmq.Socket[bytes]:
        return self.sockets[-1]

    def greet(self) -> None:
        """Say HELLO from a new address."""
        self.sockets.append(control.connect(self._context, self._port))
        self.socket.send_multipart([control.HELLO, control.frame(self._hello)])
        self.welcome = control.parse_welcome(self._frames()[1])

    def _frames(self) -> list[bytes]:
        return self.socket.recv_multipart() if self.socket.poll(5000) else [b"", b""]

    def hear(self) -> Message | None:
        """The next message that a test asks for, or None: Decode is silent.  RETIRE is answered as Prefill does."""
        if not self._heard:
            _, *self._heard = self._frames()
        message = decode(data) if (data := self._heard.pop(0)) else None
        if not isinstance(message, Retire):
            return message
        self.say(Retired(message.attempt))
        return self.hear()

    def say(self, message: Message, *, told: bool = True) -> None:
        """told: with the list of blocks that a READY names before it."""
        blocks = [self.told[message.table]] if told and isinstance(message, Ready) else []
        self.socket.send_multipart([control.MESSAGE, *map(encode, (*blocks, message))])

    def ready(self, of: Start, layer: int, *, slot: int | None = None, blocks: tuple[int, ...] = (5, 2), run: int = 0,
              **changes: Any) -> Ready:  # fmt: skip
        where = SLOT_OF_LAYER[layer - 1] if slot is None else slot
        fields: dict[str, Any] = {"incarnation": self.incarnation, "start": 0, "stop": PROMPT, "epoch": layer, "final": True} | changes
        transfer = TransferId(run or of.attempt + 1, 1, layer)
        said = blocks_of(transfer, fields["incarnation"], blocks)
        self.told[said.table] = said
        return Ready(of.request, of.attempt, transfer, where, **{"table": said.table} | fields)

    def serve(self, start: Start, layer: int) -> Message | None:
        """Have `layer` read as it should be, and commit it; what Decode reported."""
        self.say(ready := self.ready(start, layer))
        heard = self.hear()
        self.say(Committed(ready.transfer))
        return heard

    def close(self) -> None:
        """Its process ends, as far as anybody can see.  Again does nothing."""
        for socket in self.sockets:
            socket.close(linger=0)
        self._context.term()
        if self.memory.bytes.size:
            self._server.close()
        self.memory.close()


@contextmanager
def both(
    layout: SlotLayout, kinds: Sequence[RowKind] = KINDS, *, faults: Injector | None = None
) -> Iterator[tuple[DecodeEngine, Prefill, threading.Event]]:
    """(engine, its Prefill, set if the engine crashed)"""
    crashed = threading.Event()
    engine = DecodeEngine(kinds, layers=3, blocks=9, block_size=BLOCK, rows=2, hot=4, resend_seconds=60, faults=faults,
                          on_crash=lambda error: crashed.set())  # fmt: skip
    for pages in engine.memory.pages.values():
        pages.memory.fill_(77)  # what nobody writes stays so: with `poison` what was failed would be filled again
    engine.open()
    prefill = Prefill(engine.port, layout)
    try:
        yield engine, prefill, crashed
    finally:
        engine.close()
        prefill.close()
