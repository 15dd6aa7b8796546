"""Host memory that is read row by row, anywhere in it: huge pages and pinning are asked for, and what came of it is read back.

Rules: what the system gave stands in /proc/self/smaps, and nothing else is believed (madvise succeeds where nothing was done); memory
is touched before it is reported, so that no request pays for it; without huge pages, or the right to pin, it works all the same, and
the report says so.  Anonymous memory where one
process has it, because shared memory gets huge pages only where the host's administrator allowed it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import resource

import msgspec
import numpy as np
import torch

__all__ = ["Got", "HostMemory", "file_at", "shared_file", "smaps"]

HUGE = 2 << 20
POPULATE_WRITE = 23  # Linux 5.14; not in the mmap module of Python 3.11
FIELDS = ("Rss", "AnonHugePages", "ShmemPmdMapped", "Locked")


class Got(msgspec.Struct, frozen=True):
    """What the system really gave, in bytes.  refusal: why it is not pinned; "" if it is."""

    size: int
    resident: int
    huge: int
    pinned: int
    refusal: str = ""

    def __str__(self) -> str:
        pinned = "pinned" if self.pinned >= self.size else f"{_mib(self.pinned)} of it pinned ({self.refusal or 'the rest was let go'})"
        return f"{_mib(self.size)}, {_mib(self.huge)} of it in huge pages, {pinned}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


class HostMemory:
    """`size` zeroed bytes, all touched.  Freed when the last tensor over it is gone.

    bytes: a tensor uint8 [size] that begins at a huge page; got: how it is backed, as of now.  file: of `shared_file` for that size, to
    be one memory with the other ranks that have it; then where it begins is the kernel's choice.  OSError where the system has no such
    room.
    """

    def __init__(self, size: int, *, file: int = -1) -> None:
        if size < 1:
            raise ValueError(f"host memory of {size} bytes: at least 1")
        self._room, self._shared = -(-size // HUGE) * HUGE, file >= 0
        try:
            if self._shared:
                area = mmap.mmap(file, self._room)
            else:
                area = mmap.mmap(-1, self._room + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise OSError(
                error.errno, f"a host pool of {_mib(size)} cannot be had: {error.strerror}; give Decode fewer or shorter requests at once"
            ) from error
        begin = 0 if self._shared else -np.frombuffer(area, np.uint8).ctypes.data % HUGE
        self.bytes = torch.frombuffer(area, dtype=torch.uint8, count=size, offset=begin)
        self._at = self.bytes.data_ptr()
        self._advise(area, mmap.MADV_HUGEPAGE, begin)
        self._refusal = self._pin()
        if self._refusal:
            self._advise(area, POPULATE_WRITE, begin)
            if not self._shared:  # somebody may have written there
                self.bytes[:: mmap.PAGESIZE] = 0  # where the kernel is older than that

    @property
    def got(self) -> Got:
        """Read from smaps now; the kernel may make huge pages later, too."""
        found = smaps(self._at, self._room)
        size = self.bytes.numel()
        resident, pinned = min(size, found["Rss"]), min(size, found["Locked"])
        huge = min(size, found["AnonHugePages"] + found["ShmemPmdMapped"])
        if self._shared and not self._refusal:  # of a page that n processes have locked, smaps counts an nth
            pinned = resident
        return Got(size, resident, huge, pinned, self._refusal)

    def _advise(self, area: mmap.mmap, advice: int, begin: int) -> None:
        try:
            area.madvise(advice, begin, self._room)
        except OSError:
            return  # it is a wish; smaps tells

    def _pin(self) -> str:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlock(ctypes.c_void_p(self._at), ctypes.c_size_t(self._room)) == 0:
            return ""
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        allowed = "no limit" if limit == resource.RLIM_INFINITY else f"RLIMIT_MEMLOCK of {_mib(limit)}"
        return f"mlock: {os.strerror(ctypes.get_errno())}, {allowed}"


def shared_file(size: int) -> int:
    """The descriptor of new zeroed memory for `HostMemory` of `size` bytes, which processes may share; OSError where there is no room."""
    file = os.memfd_create("tidegate-host", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(file, 0, -(-size // HUGE) * HUGE)
    except OSError as error:
        os.close(file)
        raise OSError(error.errno, f"a shared host pool of {_mib(size)} cannot be had: {error.strerror}") from error
    return file


def file_at(address: int) -> str:
    """Which file the memory at `address` is, by device and inode, as the kernel says; "" for memory that this process alone has."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, _, _, device, inode, *_ = line.split()
            begin, end = (int(number, 16) for number in span.split("-"))
            if begin <= address < end:
                return f"{device} {inode}" if int(inode) else ""
    return ""


def smaps(address: int, size: int) -> dict[str, int]:
    """Bytes of each of `FIELDS` in the mappings of this process that lie wholly in [address, address + size)."""
    found, inside = dict.fromkeys(FIELDS, 0), False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if header := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                inside = address <= int(header[1], 16) and int(header[2], 16) <= address + size
            elif inside and (name := line.partition(":")[0]) in found:
                found[name] += int(line.split()[1]) * 1024
    return found
