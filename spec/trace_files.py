"""Which files make a recorded run: one for each rank of each life of a Prefill or a Decode.

Rules: an instance that crashes and comes back is another life, with files of its own; a life has the ranks that its headers say, all of
them and no other (but for those that a crash came before), and what they say of it is one; a rank moves bytes of its own memory, or
into it, and the rank 0 of each life, whose every session is, also tells the machine events; all lives of a side are alike.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tidegate.protocol.topology import Topology
from tidegate.spec.trace_lines import File, Line, TraceRefused, Unreadable, read_file

__all__ = ["Files", "died", "first", "leader", "leaders", "lives_of", "read_directory", "topology_of"]

Files = dict[str, File]
"""Process ("prefill-0", "decode.1-0", ...) -> its file."""


def leader(life: str) -> str:
    """The process that has the sessions of a life."""
    return f"{life}-0"


def lives_of(files: Files, role: str) -> list[str]:
    """The lives of one side, in the order of their names."""
    found = {file.life for file in files.values() if file.header.role == role}
    return sorted(found, key=lambda life: int(life.partition(".")[2] or 0))


def leaders(files: Files, role: str) -> list[File]:
    """The files of their leaders."""
    return [files[leader(life)] for life in lives_of(files, role)]


def first(files: Files, role: str) -> File:
    """One of them: what all lives of a side have in common stands in it."""
    return leaders(files, role)[0]


def died(files: Files, life: str) -> bool:
    """Has a process of it died?  Then all of it has."""
    mine = [file for file in files.values() if file.life == life]
    return not all(file.ended for file in mine) or len(mine) < mine[0].header.ranks


def read_directory(folder: Path) -> Files:
    """The files of one run. Raises Unreadable, TraceRefused."""
    if not folder.is_dir():
        raise Unreadable(f"{folder} is no directory: give the directory that `tidegate run --trace DIR` wrote")
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise Unreadable(f"{folder} holds no trace: there is no *.jsonl file in it; give what `tidegate run --trace DIR` wrote")
    files: Files = {}
    silent = [path for path in paths if b"\n" not in path.read_bytes()]  # they died before they said who they are
    for path in paths:
        if path in silent:
            continue
        file = read_file(path)
        due = f"{file.header.role}-{file.header.rank}"
        if re.sub(r"\.[1-9][0-9]*-", "-", path.stem) != due:
            raise TraceRefused(f"{path}:1", f"the header is that of {due}: the file of a process has its name")
        files[path.stem] = file
    _unborn(files, silent)
    for role in ("prefill", "decode"):
        _alike(folder, files, role, silent)
    layers = {role: first(files, role).header.layers for role in ("prefill", "decode")}
    if layers["prefill"] != layers["decode"]:
        raise TraceRefused(f"{first(files, 'decode').path}:1",
                           f"{layers['decode']} layers, Prefill has {layers['prefill']}: both run the same model")  # fmt: skip
    _same_members(files)
    _memories(files)
    _places(files)
    return files


def topology_of(files: Files) -> Topology:
    """How many ranks there are on each side. Raises TraceRefused where they do not fit."""
    prefill, decode = first(files, "prefill"), first(files, "decode")
    try:
        return Topology(p_tp=prefill.header.ranks, d_tp=decode.header.ranks)
    except ValueError as error:
        raise TraceRefused(f"{decode.path}:1", str(error)) from None


def _unborn(files: Files, silent: list[Path]) -> None:
    """Leave out a life whose leader died before it had a session: nobody heard of it."""
    for path in silent:
        life, _, rank = path.stem.rpartition("-")
        mine = [name for name, file in files.items() if file.life == life]
        if rank == "0" and not any(files[name].lines for name in mine):
            for name in mine:
                del files[name]


def _alike(folder: Path, files: Files, role: str, silent: list[Path]) -> None:
    """Every life of a side is whole, and what they say of themselves is one."""
    lives = lives_of(files, role)
    if not lives and (mine := [path for path in silent if path.stem.startswith(role)]):
        raise TraceRefused(f"{mine[0]}:1", "the file is empty: a trace begins with a header")
    if not lives:
        raise TraceRefused(str(folder), f"the file of the {role} process is missing: a run has a Prefill and a Decode rank")
    for life in lives:
        _whole(folder, files, life)
    one = first(files, role).header
    for file in leaders(files, role):
        if msgspec.structs.replace(file.header, incarnation=one.incarnation, memories=one.memories) != one:
            raise TraceRefused(f"{file.path}:1", f"{file.life} is not what {lives[0]} is: {file.header}; the lives of one side have one "
                               "plan, one mode and one number of ranks")  # fmt: skip


def _whole(folder: Path, files: Files, life: str) -> None:
    """Every rank of a life is there, and all say the same of it."""
    mine = {name: file for name, file in files.items() if file.life == life}
    if leader(life) not in mine:
        raise TraceRefused(str(folder), f"the file of {leader(life)} is missing: every session is rank 0's")
    head = mine[leader(life)].header
    due = [f"{life}-{rank}" for rank in range(head.ranks)]
    missing = [name for name in due if name not in mine]
    if missing and all(file.ended for file in mine.values()):
        raise TraceRefused(str(folder), f"the file of {missing[0]} is missing: {life} has {len(due)} ranks, each with a file of its own")
    for name, file in mine.items():
        same = msgspec.structs.replace(head, rank=file.header.rank, incarnation=file.header.incarnation, memories=file.header.memories)
        if file.header != same or name not in due:
            raise TraceRefused(f"{file.path}:1", f"{name} says of its instance what {leader(life)} does not: {file.header}")


def _same_members(files: Files) -> None:
    ranks = first(files, "prefill").header.ranks
    for file in files.values():
        if file.header.members != ranks:
            raise TraceRefused(f"{file.path}:1", f"{file.header.members} members, and Prefill has {ranks} ranks: one for each")


def _memories(files: Files) -> None:
    """Main KV is one memory for the ranks of a Decode, and of no other: a DP rank has a pool of its own.  Of a life that died nothing is
    asked, for the system may give the next one its memory.
    """
    owner: dict[str, File] = {}
    for file in [file for file in files.values() if file.header.role == "decode" and not died(files, file.life)]:
        for region, place in file.header.memories.items():
            other = owner.setdefault(place, file) if place else file
            if other.life != file.life:
                raise TraceRefused(f"{file.path}:1", f"{region} of {file.life} lies in the same memory as that of {other.life} "
                                   f"(file {place}): a Decode, and each DP rank of one, reads into memory of its own")  # fmt: skip
        head = files[leader(file.life)].header
        for region, place in file.header.memories.items():
            if region.startswith("main") and place != head.memories.get(region):
                raise TraceRefused(f"{file.path}:1", f"{region} lies in file {place or 'of its own'}, and that of {leader(file.life)} "
                                   f"in {head.memories.get(region) or 'one of its own'}: the ranks of a Decode share one pool")  # fmt: skip


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
