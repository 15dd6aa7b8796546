"""What real processes open: sockets on loopback only, files for their user only, names that nobody guesses."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from pair_tools import config

from tidegate.engine.folders import run_folders
from tidegate.engine.pair import run_pair

LOOPBACK = {"0100007F", "00000000000000000000000001000000"}
LISTEN = "0A"


def tree(pid: int) -> Iterator[int]:
    """A process and all that it started."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from tree(int(child))


def inodes(pid: int) -> set[str]:
    """Of the sockets that it has open."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(fd)))
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


def listening(pid: int) -> set[str]:
    """The addresses, as the system writes them, at which a process listens for TCP."""
    mine, found = inodes(pid), set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in mine:
                found.add(fields[1].split(":")[0])
    return found


def named(pid: int) -> set[str]:
    """The names of the Unix sockets that a process is bound to."""
    mine = inodes(pid)
    lines = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    return {fields[7] for fields in lines if len(fields) > 7 and fields[6] in mine}


def open_to_others(path: Path) -> dict[str, str]:
    """What of `path` somebody else may read, write or enter: nothing of what lies in a folder that he cannot enter."""
    mode = stat.S_IMODE(path.lstat().st_mode)
    if path.is_symlink() or not mode & 0o077:
        return {}
    inside = [found for one in path.iterdir() for found in open_to_others(one).items()] if path.is_dir() else []
    return {str(path): oct(mode)} | dict(inside)


def test_all_that_a_run_opens_is_its_users_alone() -> None:
    tcp: dict[str, set[str]] = {}
    names: set[str] = set()
    modes: dict[str, str] = {}

    def look(pids: dict[str, int]) -> None:
        for role, first in pids.items():
            for pid in tree(first):
                tcp.setdefault(role, set()).update(listening(pid))
                names.update(named(pid))
        for folder in run_folders():
            modes.update(open_to_others(folder))
        modes["folders"] = str(bool(run_folders()))

    run_pair(config(p_tp=2, d_tp=2), on_started=look)
    assert tcp == {role: {"0100007F"} for role in ("prefill", "decode", "proxy")}
    assert modes == {"folders": "True"}
    ours = {name for name in names if name.startswith("@tidegate-")}
    assert len(ours) >= 4, "two ranks that serve memory, two leaders"
    assert [name for name in ours if not re.search(r"[0-9a-f]{15,16}", name)] == [], "a name is known to those who are told it"


def test_planted_a_socket_for_everybody_and_a_file_for_everybody_are_found(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)), socket.create_server(("127.0.0.1", 0)):
        assert listening(os.getpid()) - LOOPBACK == {"00000000"}
    for mode in (0o600, 0o640):
        (tmp_path / f"{mode:o}").touch(mode)
        (tmp_path / f"{mode:o}").chmod(mode)
    tmp_path.chmod(0o711)
    assert open_to_others(tmp_path) == {str(tmp_path): "0o711", str(tmp_path / "640"): "0o640"}
    tmp_path.chmod(0o700)
    assert open_to_others(tmp_path) == {}
