"""Where the running servers of this user are: each leaves a note in its own folder in shared memory, which goes with it.

Rule: a note names the process with its start time, so a dead one's, not swept yet, is not taken for a living one's.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from tidegate.engine.folders import run_folders
from tidegate.engine.pool_client import Client, is_alive, this_process

__all__ = ["Note", "leave_note", "running"]


class Note(msgspec.Struct, frozen=True):
    """A server that answers at `url`."""

    role: str
    url: str
    pid: int
    started: int


def leave_note(folder: str, role: str, url: str) -> None:
    """Say in `folder` that this process serves; nothing where there is none."""
    if not folder:
        return
    me = this_process()
    path = Path(folder) / f"{role}-{me.pid}.server"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(Note(role, url, me.pid, me.started)))


def running(state: Path | None = None) -> list[Note]:
    """The servers of this user that live, proxies first; state: the folder that TIDEGATE_SHARED_MEMORY named for them."""
    found = []
    for folder in run_folders(state):
        for path in folder.glob("*.server"):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                note = msgspec.json.decode(path.read_bytes(), type=Note)
                if is_alive(Client(note.pid, note.started)):
                    found.append(note)
    return sorted(found, key=lambda note: (note.role != "proxy", note.role, note.url))
