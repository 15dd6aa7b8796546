"""One Prefill that a Decode rank reads from: its mapped memory, and where the bytes of a READY lie in it.

Rules: both sides page KV in blocks of one size; the memory of every rank of a Prefill is mapped and its layout checked before it is
answered, so WELCOME is this very process's word that it holds the layout, which is one for all ranks; a Prefill is one life, named by
its incarnation; what READY says is compared, before anything is copied (`decode_checks`), with that life's layout and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tidegate.engine import control
from tidegate.engine.decode_checks import Announced, checked_parts
from tidegate.engine.decode_memory import DecodeMemory, Destination
from tidegate.engine.pull_shm import Part, ShmPull
from tidegate.engine.slots import SharedMemory, is_served
from tidegate.engine.step_blocks import StepTables
from tidegate.protocol.messages import Ready
from tidegate.protocol.topology import ALONE, Topology

__all__ = ["Peer", "peer_name"]


@lru_cache(maxsize=256)
def peer_name(life: int, rank: int) -> str:
    """What the pull backend calls a rank of that life of a Prefill."""
    return f"prefill-{life:x}-{rank}"


class Peer:
    """The Prefill that said `hello`.  own_memory: where its rows are to go; memories: those of its ranks, which are let go of with it;
    topology: how many ranks it has, and which of them sends what; address: where it is spoken to, the latest one.

    ValueError, with nothing mapped, where its memory cannot be used.
    """

    def __init__(
        self, backend: ShmPull, own_memory: DecodeMemory, hello: control.Hello, address: bytes, memories: Sequence[SharedMemory],
        topology: Topology = ALONE,
    ) -> None:  # fmt: skip
        self._backend, self._own_memory, self._hello, self.topology = backend, own_memory, hello, topology
        self.address, self.incarnation = address, hello.incarnation
        self.memories = list(memories)
        self.tables = StepTables()
        self._compared: dict[int, dict[str, int]] = {}
        try:
            self._check()
        except BaseException:
            self.close()
            raise
        for rank, memory in enumerate(self.memories):
            backend.connect(peer_name(self.incarnation, rank), memory)

    @property
    def digest(self) -> str:
        """Of its layout."""
        return self._hello.digest

    @property
    def served(self) -> tuple[str, ...]:
        """Where each of its ranks serves its memory."""
        return self._hello.memories

    @property
    def is_there(self) -> bool:
        """Has its process not ended?"""
        return is_served(self._hello.memory)

    def close(self) -> None:
        """Read no more of it, and let go of what is mapped; a pull that is under way holds what it reads until it ends."""
        for rank, memory in enumerate(self.memories):
            self._backend.disconnect(peer_name(self.incarnation, rank))
            memory.close()

    def _check(self) -> None:
        layers, block_size = self._own_memory.layers, self._own_memory.allocator.block_size
        for layout in (memory.layout for memory in self.memories):
            if layout.digest != self.digest:
                raise ValueError(f"layout {layout.digest} is served where {self.digest} was announced")
            if len(layout.slot_of_layer) != layers:
                raise ValueError(f"Prefill has {len(layout.slot_of_layer)} layers, Decode {layers}: run both with one configuration")
            if layout.block_size != block_size:
                raise ValueError(f"Prefill has blocks of {layout.block_size} tokens, Decode of {block_size}: give both one block_size")

    def parts(self, ready: Ready, destination: Destination, prompt: int) -> list[Part]:
        """The ranges to copy to `destination`, whose prompt has `prompt` tokens.  ValueError where READY does not fit; then nothing
        may be copied.
        """
        if ready.incarnation != self.incarnation:
            of, mapped = control.public_name(ready.incarnation), control.public_name(self.incarnation)
            raise ValueError(f"READY is of Prefill {of}, the mapped memory of {mapped}")
        table, layout = self.tables.of(ready), self.memories[0].layout  # every rank's: one digest
        return checked_parts(
            Announced(ready, table, layout, self._own_memory, destination, prompt, self._compared, self.topology)
        )
