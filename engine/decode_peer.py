"""The Prefill that a Decode rank reads from: its handshake, its mapped memory, and where the bytes of a READY lie in it.

Rules: both sides page KV in blocks of one size; a peer's memory is mapped and its layout checked before it is answered, so WELCOME
is this very process's word that it holds the layout; one Prefill at a time; what READY says is compared with that layout and with
the destination, to the byte, before anything is copied, and the error names both sides.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from tidegate.engine import control
from tidegate.engine.pull_shm import Part, ShmPull
from tidegate.engine.row_pool import Place
from tidegate.engine.slots import SharedMemory, fetch_memory
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import VERSION, Ready

__all__ = ["PEER", "Peer", "region"]

PEER = "prefill-0"
"""Its name with the pull backend."""


def region(name: str, place: Place) -> str:
    """The pull backend's name for the `name` rows of a place: one name for the same bytes, whoever owns them."""
    return f"{name}-{place.number}"


class Peer:
    """The one Prefill of this Decode rank; nobody, until it has introduced itself."""

    def __init__(self, backend: ShmPull, *, incarnation: int, layers: int, block_size: int) -> None:
        self._backend, self._own, self._layers, self._block_size = backend, incarnation, layers, block_size
        self.address = b""
        self.incarnation = 0
        self.memory: SharedMemory | None = None

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
        layout = memory.layout
        why = ""
        if layout.digest != hello.digest:
            why = f"layout {layout.digest} is served where {hello.digest} was announced"
        elif len(layout.slot_of_layer) != self._layers:
            why = f"Prefill has {len(layout.slot_of_layer)} layers, Decode {self._layers}: run both with one configuration"
        elif layout.block_size != self._block_size:
            why = f"Prefill has blocks of {layout.block_size} tokens, Decode of {self._block_size}: give both one block_size"
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

    def parts(self, ready: Ready, places: Mapping[str, Place], tokens: int) -> list[Part]:
        """The ranges to copy into `places` (by name, of the attempt, whose prompt has `tokens`): out of each source block, and one
        after the other into the destination.  ValueError where READY does not fit; then nothing may be copied.
        """
        layer = ready.transfer.layer - 1
        if self.memory is None or ready.incarnation != self.incarnation:
            raise ValueError(f"READY is of incarnation {ready.incarnation}, the mapped memory of {self.incarnation}")
        layout = self.memory.layout
        if (slot := layout.slot_of_layer[layer]) != ready.slot:
            raise ValueError(f"layer {layer + 1} is announced in slot {ready.slot}; by the layout it uses slot {slot}")
        if not 0 <= ready.start < ready.stop <= tokens:
            raise ValueError(f"tokens {ready.start}..{ready.stop} are announced; the prompt has {tokens}")
        areas = layout.areas_of(slot)
        if (names := [area.name for area in areas]) != list(places):
            raise ValueError(f"slot {slot} of Prefill holds {names}, the destination {list(places)}")
        parts = []
        for area in areas:
            pieces = layout.token_ranges(area, ready.blocks, ready.start, ready.stop)
            target, room = places[area.name].byte_range(layer, ready.start, ready.stop - ready.start)
            size = sum(length for _, length in pieces)
            if size != room:
                raise ValueError(
                    f"{area.name}: {ready.stop - ready.start} rows are {size} bytes of {area.dtype} at Prefill and {room} bytes here"
                )
            begin = target - places[area.name].byte_range(0, 0, 0)[0]
            lengths = [length for _, length in pieces]
            to = [begin + before for before in itertools.accumulate(lengths[:-1], initial=0)]
            parts.append(Part(region(area.name, places[area.name]), [at for at, _ in pieces], to, lengths))
        return parts
