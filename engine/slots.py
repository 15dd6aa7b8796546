"""Prefill's layer buffers in memory that Decode can map: a sealed memfd, handed over a Unix socket, read-only.

Rules: a layout is data that the reader checks before it maps a byte; the memory is sealed against shrinking (a short
file would be a SIGBUS in the reader) and against new writers before anyone else gets it; nothing has a name in a file
system (the socket is abstract), so a killed process leaves nothing behind; only processes of the same user are
served.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Self

import msgspec
import numpy as np
import torch

from tidegate.engine.slot_layout import DTYPES, SlotLayout, check_layout
from tidegate.kernels.copy import Bytes

log = logging.getLogger(__name__)
F_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1; not in the fcntl module of Python 3.11
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
MAX_LAYOUT_BYTES = 1 << 20


class Served(msgspec.Struct, frozen=True):
    """What goes with the descriptor.  life: incarnation of the Prefill whose memory it is; 0 where nobody asks."""

    layout: SlotLayout
    life: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0


class SharedMemory:
    """Layer memory: `allocate` makes it (writable, Prefill), `map` reads what another process made (Decode).

    life: of whom it is, as the one who served it says.
    """

    def __init__(self, fd: int, layout: SlotLayout, mapping: mmap.mmap) -> None:
        self.layout, self._fd, self._map = layout, fd, mapping
        self.life = 0
        self.bytes: Bytes = np.frombuffer(mapping, np.uint8)
        self._views: dict[tuple[int, int | None], dict[str, torch.Tensor]] = {}

    @classmethod
    def allocate(cls, layout: SlotLayout) -> Self:
        """New zeroed memory, sealed; OSError where the system has none left or cannot seal (Linux 5.1 can)."""
        fd = os.memfd_create("tidegate-slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, layout.size)  # really: what is not there is an error now and no SIGBUS later
            mapping = mmap.mmap(fd, layout.size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)  # after the one writable mapping there will ever be
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                why = f"layer buffers of {layout.size} bytes cannot be had: {error.strerror}; give fewer shared buffers or shorter prompts"
                raise OSError(error.errno, why) from error
            raise
        return cls(fd, layout, mapping)

    @classmethod
    def map(cls, fd: int, layout: SlotLayout) -> Self:
        """Map `fd` read-only after checking `layout` against it; takes `fd` over.  ValueError for memory that could
        shrink.
        """
        try:
            check_layout(layout, os.fstat(fd).st_size)
            try:
                seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            except OSError:
                seals = 0
            if not seals & fcntl.F_SEAL_SHRINK:
                raise ValueError("the peer's memory is not sealed against shrinking: reading it could kill this process")
            mapping = mmap.mmap(fd, layout.size, prot=mmap.PROT_READ)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, layout, mapping)

    @property
    def writable(self) -> bool:
        return bool(self.bytes.flags.writeable)

    def view(self, slot: int, name: str) -> torch.Tensor:
        """The area as a tensor [blocks, block_size, width] over the memory itself; ValueError on the reading side, which
        copies `bytes`.
        """
        if not self.writable:
            raise ValueError("memory of another process is read-only: pull from it instead of viewing it")
        area = self.layout.area(slot, name)
        flat = torch.from_numpy(self.bytes[area.offset : area.offset + self.layout.area_bytes(area)])
        return flat.view(DTYPES[area.dtype]).view(self.layout.blocks, self.layout.block_size, area.width)

    def views(self, slot: int, layer: int | None = None) -> dict[str, torch.Tensor]:
        """Every area of `slot` (in which `layer` has rows), by name; as `view`.  Made once: do not change it."""
        if (found := self._views.get((slot, layer))) is None:
            found = self._views[slot, layer] = {area.name: self.view(slot, area.name) for area in self.layout.areas_of(slot, layer)}
        return found

    def token_views(self, slot: int, blocks: Sequence[int], start: int, stop: int, *, layer: int | None = None) -> list[torch.Tensor]:
        """Tokens [start, stop) as views [rows, width] over the memory, one per block, area by area (in which `layer` has rows);
        ValueError as `view`, and as `SlotLayout.token_pieces`.
        """
        pieces = self.layout.token_pieces(blocks, start, stop)
        return [
            view[block, first : first + count]
            for area in self.layout.areas_of(slot, layer)
            for view in (self.view(slot, area.name),)
            for block, first, count in pieces
        ]

    def token_ranges(
        self, slot: int, blocks: Sequence[int], start: int, stop: int, *, layer: int | None = None
    ) -> list[tuple[int, int]]:
        """(offset, length), in bytes, of what `token_views` shows."""
        return [
            piece for area in self.layout.areas_of(slot, layer) for piece in self.layout.token_ranges(area, blocks, start, stop)
        ]

    def reader_fd(self) -> int:
        """A new descriptor of the memory, open for reading only; the caller closes it."""
        return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the memory; it is freed once the last view and the last reader let go too.  Again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.bytes = np.empty(0, np.uint8)
            self._views = {}
            with contextlib.suppress(BufferError):  # a view is still about: the mapping goes with it
                self._map.close()


def layer_memory(layout: SlotLayout, buffers: Sequence[torch.Tensor] | None = None) -> SharedMemory:
    """Layer buffers of `layout` that the `shm` pull backend can serve, zeroed.

    buffers: memory of the embedder's own to be served instead, where the backend can: `shm` cannot, because another process maps
    only what was made to be mapped, so this is refused with a ValueError.  OSError where the system has no memory left.
    """
    if buffers is not None:
        raise ValueError(
            f"{len(buffers)} buffers of other origin cannot be registered with the shm backend: another process can map only memory "
            "that was allocated for it; leave them out, and let the model write into the views that wait_for_layer gives"
        )
    return SharedMemory.allocate(layout)


class MemoryServer:
    """Hands the memory to whoever of the same user connects to `address` (an abstract Unix socket), and says whose it is.

    life: the incarnation of this Prefill, which nobody else is told: who names this address and another life does not speak for it.
    """

    def __init__(self, memory: SharedMemory, address: str, life: int = 0) -> None:
        self.address, self._memory, self._life = address, memory, life
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind("\0" + address)
        except OSError as error:
            self._socket.close()
            raise OSError(
                error.errno, f"address {address!r}: {error.strerror}; give each process an address of its own"
            ) from error
        self._socket.listen()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="memory-server", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                log.warning("memory server %s: %s; trying on", self.address, error.strerror)  # no descriptor is left, say
                self._closed.wait(0.2)
                continue
            with peer, contextlib.suppress(OSError):  # a peer that went away concerns nobody else
                peer.settimeout(5)
                if _user(peer) == os.geteuid():
                    send_memory(peer, self._memory, self._life)

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._thread.join()
        self._socket.close()


def is_served(address: str) -> bool:
    """Does anybody serve memory at `address`?  The system takes the address away when its process ends, and not before."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # one that is stopped takes nobody, and after a while no connection fits any more
            probe.connect("\0" + address)
    except ConnectionRefusedError:
        return False
    except OSError:  # busy, or stopped: it is there; or this process has no descriptor left to ask with, and will ask again
        return True
    return True


def _user(peer: socket.socket) -> int:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user


def send_memory(peer: socket.socket, memory: SharedMemory, life: int = 0) -> None:
    """Send layout, `life` and descriptor over a connected Unix socket."""
    body = msgspec.json.encode(Served(memory.layout, life))
    fd = memory.reader_fd()
    try:
        socket.send_fds(peer, [struct.pack("!I", len(body))], [fd])
        peer.sendall(body)
    finally:
        os.close(fd)


def receive_memory(peer: socket.socket, until: float | None = None) -> SharedMemory:
    """What `send_memory` sent, mapped read-only; ValueError for anything else, TimeoutError if not all is there when the monotonic clock
    says `until`.
    """
    _hurry(peer, until)
    head, fds, _, _ = socket.recv_fds(peer, 4, 1, socket.MSG_CMSG_CLOEXEC)
    if len(head) != 4 or len(fds) != 1:
        for fd in fds:
            os.close(fd)
        raise ValueError(
            f"{len(head)} bytes and {len(fds)} descriptors arrived where 4 and 1 are due: the peer refused, or is no Prefill"
        )
    try:
        size = struct.unpack("!I", head)[0]
        if size > MAX_LAYOUT_BYTES:
            raise ValueError(f"the peer announced a layout of {size} bytes: at most {MAX_LAYOUT_BYTES} are read")
        body = bytearray()
        while len(body) < size:
            _hurry(peer, until)
            piece = peer.recv(size - len(body))
            if not piece:
                raise ValueError(f"the peer closed after {len(body)} of {size} bytes of its layout")
            body += piece
        served = msgspec.json.decode(bytes(body), type=Served)
    except BaseException:
        os.close(fds[0])
        raise
    memory = SharedMemory.map(fds[0], served.layout)
    memory.life = served.life
    return memory


def _hurry(peer: socket.socket, until: float | None) -> None:
    """Each piece has the rest of the time, and no more: one byte now and then is no way to hold a reader."""
    if until is not None:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError("not all has come in time")
        peer.settimeout(left)


def fetch_memory(address: str, timeout: float = 10.0) -> SharedMemory:
    """Map the memory that a MemoryServer of this machine and user serves at `address`; OSError where nobody has served it in
    `timeout` s, or somebody else does.
    """
    until = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout)
        try:
            peer.connect("\0" + address)
        except OSError as error:
            raise OSError(
                error.errno, f"no memory server at {address!r}: {error.strerror}; is Prefill running here?"
            ) from error
        if (user := _user(peer)) != os.geteuid():
            why = f"memory at {address!r} is served by user {user}, this is user {os.geteuid()}: run both as one"
            raise PermissionError(errno.EPERM, why)
        try:
            return receive_memory(peer, until)
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, f"the memory server at {address!r} has not handed it over in {timeout:g} s") from None
