"""The Prefill that a Decode rank reads from: its handshake, its mapped memory, and where the bytes of a READY lie in it.

Rules: both sides page KV in blocks of one size; the memory of every rank of a peer is mapped and its layout checked before it is
answered, so WELCOME is this very process's word that it holds the layout, which is one for all ranks; one Prefill at a time;
what READY says is compared, before anything is copied (`decode_checks`), with that layout and no other.
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
from tidegate.protocol.topology import ALONE, Topology

__all__ = ["PEER", "Peer", "peer_name"]


def peer_name(rank: int) -> str:
    """What the pull backend calls a rank of it."""
    return f"prefill-{rank}"


PEER = peer_name(0)


class Peer:
    """The one Prefill of this Decode rank; nobody, until it has introduced itself.  own_memory: where its rows are to go; topology: how
    many ranks it has, and which of them sends what.
    """

    def __init__(
        self, backend: ShmPull, own_memory: DecodeMemory, *, incarnation: int, topology: Topology = ALONE
    ) -> None:
        self._backend, self._own_memory, self._own, self.topology = backend, own_memory, incarnation, topology
        self.address = b""
        self.incarnation = 0
        self.memories: list[SharedMemory] = []
        self.tables = StepTables()
        self._compared: dict[int, dict[str, int]] = {}

    def meet(self, address: bytes, hello: control.Hello) -> control.Welcome:
        """The answer to a HELLO; `refused` is set, and nothing has changed, where its memory cannot be used."""
        if self.memories and hello.incarnation == self.incarnation:  # repeated: it had not heard the answer
            return self._answer(self.memories[0].layout.digest)
        if self.memories:
            return self._answer("", f"this Decode serves Prefill {self.incarnation} already")
        memories: list[SharedMemory] = []
        try:
            if len(hello.memories) != self.topology.p_tp:
                raise ValueError(f"Prefill has {len(hello.memories)} ranks, this Decode expects {self.topology.p_tp}: give both sides "
                                 "one tensor_parallel_size of Prefill")  # fmt: skip
            for address_of in hello.memories:
                memories.append(self._mapped(hello, address_of))
        except (OSError, ValueError) as error:
            for memory in memories:
                memory.close()
            return self._answer("", str(error))
        self.memories, self.address, self.incarnation = memories, address, hello.incarnation
        for rank, memory in enumerate(memories):
            self._backend.connect(peer_name(rank), memory)
        return self._answer(hello.digest)

    def close(self) -> None:
        """Let go of what is mapped."""
        for memory in self.memories:
            memory.close()

    def _mapped(self, hello: control.Hello, served: str) -> SharedMemory:
        memory = fetch_memory(served)
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
        if not self.memories or ready.incarnation != self.incarnation:
            raise ValueError(f"READY is of incarnation {ready.incarnation}, the mapped memory of {self.incarnation}")
        table, layout = self.tables.of(ready), self.memories[0].layout  # every rank's: one digest
        return checked_parts(
            Announced(ready, table, layout, self._own_memory, destination, prompt, self._compared, self.topology)
        )
