"""Which processes use a pool, and which of them are dead.

Rules: a process is its id and the time it began, for ids return; it is dead only when no thread of it can run any more, and
whatever cannot be read about it counts as alive: what a living one uses is never taken.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["Client", "is_alive", "pid_namespace", "process_of", "this_process"]


class Client(NamedTuple):
    """A process of this machine: its id, and when it began, in clock ticks since the machine did."""

    pid: int
    started: int

    def pack(self) -> bytes:
        """16 bytes, the same for the same process only."""
        return self.pid.to_bytes(8, "big") + self.started.to_bytes(8, "big")

    @classmethod
    def unpack(cls, raw: bytes) -> Client:
        return cls(int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:16], "big"))


def this_process() -> Client:
    """OSError without a /proc."""
    return process_of(os.getpid())


def process_of(pid: int) -> Client:
    """The process that has this id now.  OSError if there is none, or no /proc."""
    return Client(pid, _stat(pid)[1])


def pid_namespace() -> int:
    """Ids of another name space say nothing about the processes of this one."""
    return os.stat("/proc/self/ns/pid").st_ino


def is_alive(client: Client) -> bool:
    """May any thread of it still run?"""
    try:
        state, started, threads = _stat(client.pid)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:  # it is there, and hidden
        return True
    if started != client.started:
        return False
    # A zombie has only its exit code left, unless its first thread alone has ended.
    return state not in "ZX" or threads > 1


def _stat(pid: int) -> tuple[str, int, int]:
    """State, start time and number of threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()  # the name may hold anything
    return fields[0], int(fields[19]), int(fields[17])
