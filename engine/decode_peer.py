"""The Prefill that a Decode rank reads from: its handshake, its mapped memory, and where the bytes of a READY lie in it.

Rules: both sides page KV in blocks of one size; a peer's memory is mapped and its layout checked before it is answered, so WELCOME
is this very process's word that it holds the layout; one Prefill at a time; what READY says is compared, before anything is copied
(`decode_checks`), with that layout and no other.
"""

from __future__ import annotations

from tidegate.engine import control
from tidegate.engine.decode_checks import Announced, checked_parts
from tidegate.engine.decode_memory import DecodeMemory, Destination
from tidegate.engine.pull_shm import Part, ShmPull
from tidegate.engine.slots import SharedMemory, fetch_memory
from tidegate.engine.step_blocks import StepTables
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import VERSION, Ready

__all__ = ["PEER", "Peer"]

PEER = "prefill-0"
"""Its name with the pull backend."""


class Peer:
    """The one Prefill of this Decode rank; nobody, until it has introduced itself.  own_memory: where its rows are to go."""

    def __init__(self, backend: ShmPull, own_memory: DecodeMemory, *, incarnation: int) -> None:
        self._backend, self._own_memory, self._own = backend, own_memory, incarnation
        self.address = b""
        self.incarnation = 0
        self.memory: SharedMemory | None = None
        self.tables = StepTables()
        self._compared: dict[int, dict[str, int]] = {}

    def meet(self, address: bytes, hello: control.Hello) -> control.Welcome:
        """The answer to a HELLO; `refused` is set, and nothing has changed, where its memory cannot be used."""
        if self.memory is not None and hello.incarnation == self.incarnation:  # repeated: it had not heard the answer
            return self._answer(self.memory.layout.digest)
        if self.memory is not None:
            return self._answer("", f"this Decode serves Prefill {self.incarnation} already")
        try:
            memory = self._mapped(hello)
        except (OSError, ValueError) as error:
            return self._answer("", str(error))
        self.memory, self.address, self.incarnation = memory, address, hello.incarnation
        self._backend.connect(PEER, memory)
        return self._answer(memory.layout.digest)

    def _mapped(self, hello: control.Hello) -> SharedMemory:
        memory = fetch_memory(hello.memory)
        layout, why = memory.layout, ""
        layers, block_size = self._own_memory.layers, self._own_memory.allocator.block_size
        if layout.digest != hello.digest:
            why = f"layout {layout.digest} is served where {hello.digest} was announced"
        elif len(layout.slot_of_layer) != layers:
            why = f"Prefill has {len(layout.slot_of_layer)} layers, Decode {layers}: run both with one configuration"
        elif layout.block_size != block_size:
            why = f"Prefill has blocks of {layout.block_size} tokens, Decode of {block_size}: give both one block_size"
        if why:
            memory.close()
            raise ValueError(why)
        return memory

    def _answer(self, digest: str, refused: str = "") -> control.Welcome:
        return control.Welcome(VERSION, self._own, digest, refused)

    def check_sender(self, address: bytes) -> None:
        """RemoteProtocolError for a message of anyone but the peer."""
        if not self.address or address != self.address:
            raise RemoteProtocolError("a message of somebody who has not introduced himself",
                                      machine="control", state=self.incarnation, event=address)  # fmt: skip

    def parts(self, ready: Ready, destination: Destination, prompt: int) -> list[Part]:
        """The ranges to copy to `destination`, whose prompt has `prompt` tokens.  ValueError where READY does not fit; then nothing
        may be copied.
        """
        if self.memory is None or ready.incarnation != self.incarnation:
            raise ValueError(f"READY is of incarnation {ready.incarnation}, the mapped memory of {self.incarnation}")
        table = self.tables.of(ready)
        return checked_parts(Announced(ready, table, self.memory.layout, self._own_memory, destination, prompt, self._compared))
