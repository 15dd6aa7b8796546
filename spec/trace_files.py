"""Which files make a recorded run: one for each rank of Prefill and of Decode.

Rules: an instance has the ranks that its headers say, all of them and no other, and what they say of the instance is one; a rank
moves bytes of its own memory, or into it, and the rank 0 of each side, whose every session is, also tells the machine events.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegate.protocol.topology import Topology
from tidegate.spec.trace_lines import File, Line, TraceRefused, Unreadable, read_file

__all__ = ["Files", "leader", "read_directory", "topology_of"]

Files = dict[str, File]
"""Process ("prefill-0", ...) -> its file."""


def leader(role: str) -> str:
    """The process that has the sessions of a side."""
    return f"{role}-0"


def read_directory(folder: Path) -> Files:
    """The files of one run. Raises Unreadable, TraceRefused."""
    if not folder.is_dir():
        raise Unreadable(f"{folder} is no directory: give the directory that `tidegate run --trace DIR` wrote")
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise Unreadable(f"{folder} holds no trace: there is no *.jsonl file in it; give what `tidegate run --trace DIR` wrote")
    files: Files = {}
    for path in paths:
        file = read_file(path)
        if path.stem != (due := f"{file.header.role}-{file.header.rank}"):
            raise TraceRefused(f"{path}:1", f"the header is that of {due}: the file of a process has its name")
        files[due] = file
    for role in ("prefill", "decode"):
        _whole(folder, files, role)
    layers = {role: files[leader(role)].header.layers for role in ("prefill", "decode")}
    if layers["prefill"] != layers["decode"]:
        raise TraceRefused(f"{files[leader('decode')].path}:1",
                           f"{layers['decode']} layers, Prefill has {layers['prefill']}: both run the same model")  # fmt: skip
    _same_members(files)
    _places(files)
    return files


def topology_of(files: Files) -> Topology:
    """How many ranks there are on each side. Raises TraceRefused where they do not fit."""
    prefill, decode = files[leader("prefill")], files[leader("decode")]
    try:
        return Topology(p_tp=prefill.header.ranks, d_tp=decode.header.ranks)
    except ValueError as error:
        raise TraceRefused(f"{decode.path}:1", str(error)) from None


def _whole(folder: Path, files: Files, role: str) -> None:
    """Every rank of a side is there, and all say the same of it."""
    if leader(role) not in files:
        raise TraceRefused(str(folder), f"the file of the {role} process is missing: a run has a Prefill and a Decode rank")
    first = files[leader(role)]
    due = [f"{role}-{rank}" for rank in range(first.header.ranks)]
    if missing := [name for name in due if name not in files]:
        raise TraceRefused(str(folder), f"the file of {missing[0]} is missing: {role} has {len(due)} ranks, each with a file of its own")
    for name in [name for name, file in files.items() if file.header.role == role]:
        header = files[name].header
        same = msgspec.structs.replace(first.header, rank=header.rank, incarnation=header.incarnation)
        if header != same or name not in due:
            raise TraceRefused(f"{files[name].path}:1", f"{name} says of its instance what {leader(role)} does not: {header}")


def _same_members(files: Files) -> None:
    ranks = files[leader("prefill")].header.ranks
    for file in files.values():
        if file.header.members != ranks:
            raise TraceRefused(f"{file.path}:1", f"{file.header.members} members, and Prefill has {ranks} ranks: one for each")


def _places(files: Files) -> None:
    topology = topology_of(files)
    for file in files.values():
        for line in file.lines:
            if (p := line.physical) is not None and 0 <= p.member < topology.p_tp:  # another is refused by name
                own = p.member if line.role == "prefill" else topology.d_rank(p.member)
                if own != line.rank:
                    raise _elsewhere(line, own)
        if topology.p_tp > 1:
            _tagged(file)


def _elsewhere(line: Line, own: int) -> TraceRefused:
    return TraceRefused(line.where, f"{line} in the trace of {line.role} rank {line.rank}: it is rank {own} that moves these bytes")


def _tagged(file: File) -> None:
    """Where a step is shared out, no tag of all its rows says what one rank moved."""
    for line in file.lines:
        if line.physical and line.kind in ("write_end", "save_begin", "save_end", "read_begin", "read_end") and line.physical.tags is None:
            raise Unreadable(f"{line.where}: {line.kind} without `tags`: where there are several ranks each range has its own")
