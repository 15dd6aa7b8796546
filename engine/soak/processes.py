"""What the system says of a process: what it holds, and how its connections are cut from outside.

Rules: everything is read from /proc, so it is true of a process that cannot answer too; a connection is cut by shutting down a
duplicate of the very socket (pidfd_getfd), so both ends see what they would see of a broken network; only processes that this one
started, as its own user, are touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import socket
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

__all__ = ["Holding", "alive", "children", "cut", "holding", "outliving", "resident"]

PIDFD_GETFD = 438
"""The system call's number, the same on every architecture that has it (Linux 5.6)."""
ESTABLISHED = "01"
_libc = ctypes.CDLL(None, use_errno=True)


class Holding(msgspec.Struct, frozen=True):
    """What a process has open.  files: what else than TCP connections, by kind, with how many of each; connections: established ones;
    threads, memory_files: how many; resident: bytes of memory of its own.
    """

    files: dict[str, int]
    connections: int
    threads: int
    memory_files: int
    resident: int = 0


def _links(pid: int) -> list[tuple[int, str]]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append((int(fd), os.readlink(f"/proc/{pid}/fd/{fd}")))
    return found


def _tcp(pid: int) -> dict[str, str]:
    """Inode of each TCP socket of the name space -> its state."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    return {row[9]: row[3] for row in rows}


def holding(pid: int) -> Holding:
    """OSError where there is no such process."""
    tcp, files, connections = _tcp(pid), Counter[str](), 0
    for _, link in _links(pid):
        match = re.fullmatch(r"socket:\[(\d+)\]", link)
        if match and match[1] in tcp and tcp[match[1]] != "0A":
            connections += 1
        else:
            files[re.sub(r"\[\d+\]|\(deleted\)|[0-9a-f]{8,}", "", link).strip()] += 1
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return Holding(dict(files), connections, len(os.listdir(f"/proc/{pid}/task")), sum("memfd:tidegate" in line for line in maps),
                   resident(pid))  # fmt: skip


def resident(pid: int) -> int:
    """Bytes of memory that it has for itself; what it shares is there from the beginning, and counted as it is touched."""
    return int(re.findall(r"RssAnon:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) << 10


def alive(pid: int) -> bool:
    """Not gone, and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def outliving(pids: Iterable[int], seconds: float) -> list[int]:
    """Those of `pids` that have not ended in `seconds`; returns as soon as all have."""
    ends, until = select.poll(), time.monotonic() + seconds
    left: dict[int, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                ends.register(handle := os.pidfd_open(pid), select.POLLIN)
                left[handle] = pid
        while left and (found := ends.poll(1000 * max(0.0, until - time.monotonic()))):
            for handle, _ in found:
                ends.unregister(handle)
                os.close(handle)
                del left[handle]
        return sorted(left.values())
    finally:
        for handle in left:
            os.close(handle)


def children(pid: int) -> list[int]:
    """Of all its threads, and theirs."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += [int(word) for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found + [one for child in found for one in children(child)]


def cut(pid: int, port: int = 0) -> int:
    """Shut down every established TCP connection of `pid`, or those with `port` at either end; how many.  OSError where the system does
    not let us.
    """
    tcp, count = _tcp(pid), 0
    handle = os.pidfd_open(pid)
    try:
        for fd, link in _links(pid):
            match = re.fullmatch(r"socket:\[(\d+)\]", link)
            if not match or tcp.get(match[1]) != ESTABLISHED:
                continue
            got = _libc.syscall(PIDFD_GETFD, handle, fd, 0)
            if got < 0:
                code = ctypes.get_errno()
                if code in (9, 3):  # closed meanwhile
                    continue
                raise OSError(code, f"the connections of process {pid} cannot be cut: {os.strerror(code)}; leave 'cut' out of --faults")
            with socket.socket(fileno=got) as one, contextlib.suppress(OSError):
                if port in (0, one.getsockname()[1], one.getpeername()[1]):
                    one.shutdown(socket.SHUT_RDWR)
                    count += 1
    finally:
        os.close(handle)
    return count
