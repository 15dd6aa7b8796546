"""Reads a file of a recorded run (docs/trace.md) and checks each line by itself; `trace_files` puts the files together.

Rules: a line that is no line of the format is Unreadable, with file and line; a well-formed one that cannot belong to an honest
run (a gap in seq, no header) is a TraceRefused, likewise; nothing is guessed and nothing is repaired.  A file without `end` is that of
a process that died: a line of which the end is missing was never written, and nothing can have followed from it.  Only docs/trace.md
is shared with the program that writes traces, so FORMAT is given here again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from tidegate.protocol.messages import VERSION, Message
from tidegate.spec.errors import SpecError

FORMAT = 3
Tag = str
Transfer = tuple[int, int, int, int]


class Unreadable(SpecError):
    """Not a trace: a folder, file or line that cannot be read as docs/trace.md describes it."""


class TraceRefused(SpecError):
    """A trace that no correct run leaves behind.  where: file:line; why: the reason; more: further lines of explanation."""

    def __init__(self, where: str, why: str, more: tuple[str, ...] = ()) -> None:
        self.where, self.why, self.more = where, why, more
        super().__init__("\n".join([f"{where}: {why}", *more]))


class Header(msgspec.Struct, frozen=True):
    """The first line of a file.  ranks: how many the instance has; members: the ranks of Prefill, as either side knows them."""

    format: int
    protocol: int
    role: Literal["prefill", "decode"]
    rank: int
    ranks: int
    members: int
    incarnation: int
    layers: int
    shared: tuple[int, ...] = ()
    shared_slots: int = 0
    chunk_tokens: int = 0
    read_lease: bool = False
    memories: dict[str, str] = {}  # of Decode: region -> the file that it lies in, "" where no other process has it
    table: tuple[int, ...] = ()  # of layers of several kinds, where events are recorded alone


class Physical(msgspec.Struct, frozen=True):
    """What the data path did.  ranges: [[offset, length], ...] for a write, else [[source, destination, length], ...]; tags: of each
    of them, where there are several ranks.
    """

    run: int
    chunk: int
    layer: int
    slot: int
    epoch: int
    member: int = 0
    pool_chunk: int | None = None
    tag: Tag | None = None
    tags: tuple[Tag, ...] | None = None
    landed: Tag | None = None
    ok: bool | None = None
    ranges: tuple[tuple[int, ...], ...] | None = None
    regions: tuple[str, ...] = ()  # of a write: what lies in each range; of a read: the region of each range's destination


PHYSICAL = {
    "write_begin": ("ranges",), "write_end": ("ok", "tag"), "attend_begin": (), "attend_end": ("ok", "tag"),
    "save_begin": ("pool_chunk", "tag", "ranges"), "save_end": ("pool_chunk", "ok", "tag"),
    "load_begin": ("pool_chunk", "ranges"), "load_end": ("pool_chunk", "ok"),
    "read_begin": ("tag", "ranges"), "read_end": ("ok", "tag"),
}  # fmt: skip
"""Kind -> the fields that it must have besides the step, slot and epoch."""

ROLE_OF = {
    "Admit": "decode", "Registered": "decode", "Schedule": "decode", "Finish": "decode", "Abort": "decode",
    "ReadEnd": "decode", "Landed": "decode", "ResendReport": "decode", "Claim": "prefill", "Write": "prefill",
    "Miss": "prefill", "GiveWay": "prefill", "Join": "prefill", "Stop": "prefill", "LayerDone": "prefill", "Revoke": "prefill",
    "ResendReady": "prefill",
    "SaveEnd": "prefill", "LoadEnd": "prefill", "Evict": "prefill", "Retire": "decode", "Heed": "prefill", "Forget": "prefill",
    "ResendFailed": "prefill", "PrefillGone": "decode", "PeerGone": "prefill", "PeerFenced": "prefill", "PeerLost": "prefill",
    "Deliver": "both",
}  # fmt: skip
_A, _R, _T, _L = {"attempt": int}, {"run": int, "member": int}, {"transfer": Transfer}, {"life": int}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "Admit": _A, "Registered": _A, "Schedule": _A, "Finish": _A, "Abort": _A, "Retire": _A, "Claim": _R, "Write": _R, "Miss": _R,
    "GiveWay": _R, "Join": _R, "Stop": _R, "Heed": _R, "Forget": _R, "ResendFailed": {"run": int},
    "LayerDone": _T, "Revoke": _T, "ResendReady": _T, "ResendReport": _T, "Landed": _T | _A,
    "SaveEnd": _T | {"ok": bool}, "LoadEnd": _T | {"ok": bool}, "Evict": {"object": tuple[int, int]},
    "ReadEnd": _T | _A | {"how": Literal["ok", "quiet", "unknown"]}, "Deliver": {"message": dict[str, Any]},
    "PrefillGone": {"lives": tuple[int, ...]}, "PeerGone": _L, "PeerFenced": _L, "PeerLost": _L,
}  # fmt: skip
MESSAGES = {kind.__struct_config__.tag: kind for kind in Message.__args__}
RECEIVED = {
    "prefill": ("START", "READ_DONE", "READ_FAILED", "ABORT", "RETIRE"),
    "decode": ("READY", "COMMITTED", "REVOKED", "RUN_FAILED", "RETIRED"),
}  # fmt: skip


@dataclass
class Line:
    """One line.  kind: a physical kind, "event", or "end"; arguments: of the event, a message decoded; physical: or that; rank: of
    the process; life: what it and the other ranks of its instance are called.
    """

    where: str
    role: str
    kind: str
    op: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    physical: Physical | None = None
    rank: int = 0
    life: str = ""

    def __str__(self) -> str:
        if self.physical:
            p = self.physical
            whose = f" of rank {p.member}" if p.member else ""
            return f"{self.kind} of run {p.run} chunk {p.chunk} layer {p.layer} in slot {p.slot}{whose} epoch {p.epoch}"
        shown = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.op}({shown})" if self.op else self.kind


@dataclass
class File:
    """One process's trace: its header, and its lines without header and `end`.  end: where its last line is; ended: is that `end`?
    Otherwise the process died.
    """

    path: Path
    header: Header
    lines: list[Line]
    end: str
    ended: bool = True

    @property
    def life(self) -> str:
        """What the instance is called, until it ends: "prefill", or, beside others, "prefill.1", ..."""
        return self.path.stem.rpartition("-")[0]


def read_file(path: Path) -> File:
    """One process's file. Raises Unreadable, TraceRefused."""
    try:
        raw = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from None
    if raw and not raw[-1].endswith(b"\n"):
        del raw[-1]  # the process died in it
    if not raw:
        raise TraceRefused(f"{path}:1", "the file is empty: a trace begins with a header")
    dicts = [_json(path, number, line) for number, line in enumerate(raw, 1)]
    for number, one in enumerate(dicts, 1):
        if one.get("seq") != number - 1:
            raise TraceRefused(f"{path}:{number}", f"seq is {one.get('seq')!r}, {number - 1} is due: a line is missing or moved")
        if one.get("process") != path.stem:
            raise TraceRefused(f"{path}:{number}", f"process is {one.get('process')!r} in the file of {path.stem}: a line of another")
    header = _header(path, dicts[0])
    lines = [_line(f"{path}:{number}", header, one) for number, one in enumerate(dicts[1:], 2)]
    ended = bool(lines) and lines[-1].kind == "end"
    file = File(path, header, lines[:-1] if ended else lines, f"{path}:{len(dicts)}", ended)
    for line in file.lines:
        line.life = file.life
        if line.kind == "end":
            raise TraceRefused(line.where, "`end` is the last line of a trace, and lines follow")
    return file


def _json(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path}:{number}: no JSON object: {error}") from None


def _header(path: Path, raw: dict[str, Any]) -> Header:
    where = f"{path}:1"
    if raw.get("kind") != "header":
        raise TraceRefused(where, f"a trace begins with a header, this line is {raw.get('kind')!r}")
    if raw.get("format") != FORMAT or raw.get("protocol") != VERSION:
        raise TraceRefused(where, f"format {raw.get('format')!r} of protocol {raw.get('protocol')!r}: this release reads format "
                           f"{FORMAT} of protocol {VERSION}; use the release that wrote it")  # fmt: skip
    header: Header = _convert(where, raw, Header)
    strange = [layer for layer in header.shared if not 1 <= layer <= header.layers]
    if not 0 <= header.rank < header.ranks or header.members < 1:
        raise Unreadable(f"{where}: rank {header.rank} of {header.ranks}, {header.members} members: ranks count from 0")
    if header.layers < 1 or strange or (header.shared and header.shared_slots < 1):
        raise Unreadable(f"{where}: layers {header.layers}, shared {header.shared} over {header.shared_slots} slots is no plan")
    if header.role == "prefill" and header.chunk_tokens < 1:
        raise Unreadable(f"{where}: chunk_tokens is {header.chunk_tokens}: a chunk has at least one token")
    return header


def _convert(where: str, raw: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise Unreadable(f"{where}: {error}") from None


def _line(where: str, header: Header, raw: dict[str, Any]) -> Line:
    kind, role = raw.get("kind"), header.role
    if kind == "end":
        return Line(where, role, "end", rank=header.rank)
    if kind == "event":
        if header.rank:
            raise TraceRefused(where, f"{raw.get('op')} in the trace of rank {header.rank}: every session is rank 0's")
        return _event(where, role, raw)
    if kind not in PHYSICAL:
        raise Unreadable(f"{where}: kind {kind!r} is none of header, event, end, {', '.join(PHYSICAL)}")
    if (kind.startswith("read")) != (role == "decode"):
        raise TraceRefused(where, f"{kind} in the trace of {role}: Decode reads, Prefill does the rest")
    physical = _convert(where, raw, Physical)
    needed = [*PHYSICAL[kind], *(["landed"] if kind in ("read_end", "load_end") and physical.ok else [])]
    for name in needed:
        if getattr(physical, name) is None:
            raise Unreadable(f"{where}: {kind} without `{name}`")
    _ranges(where, kind, physical)
    return Line(where, role, kind, physical=physical, rank=header.rank)


def _ranges(where: str, kind: str, physical: Physical) -> None:
    width = 2 if kind == "write_begin" else 3
    if any(len(entry) != width or min(entry) < 0 for entry in physical.ranges or ()):
        raise Unreadable(f"{where}: ranges of a {kind} are lists of {width} numbers, none below 0")
    if kind in ("read_begin", "write_begin") and len(physical.regions) != len(physical.ranges or ()):
        raise Unreadable(f"{where}: {len(physical.regions)} regions for {len(physical.ranges or ())} ranges: one for each")
    if physical.ranges is not None and physical.tags is not None and len(physical.tags) != len(physical.ranges):
        raise Unreadable(f"{where}: {len(physical.tags)} tags for {len(physical.ranges)} ranges: one for each")


def _event(where: str, role: str, raw: dict[str, Any]) -> Line:
    op = raw.get("op")
    if not isinstance(op, str) or op not in ARGUMENTS:
        raise Unreadable(f"{where}: op {op!r} is no action of System.tla")
    if ROLE_OF[op] not in (role, "both"):
        raise TraceRefused(where, f"{op} in the trace of {role}: it is an action of {ROLE_OF[op]}")
    arguments: dict[str, Any] = {}
    for name, kind in ARGUMENTS[op].items():
        if name not in raw:
            raise Unreadable(f"{where}: {op} without `{name}`")
        arguments[name] = _convert(where, raw[name], kind)
    if op == "Deliver":
        arguments["message"] = message = _message(where, role, arguments["message"])
        if message.__struct_config__.tag == "START":
            arguments |= {name: _convert(where, raw.get(name), int) for name in ("run", "lane")}
    return Line(where, role, "event", op, arguments)


def _message(where: str, role: str, raw: dict[str, Any]) -> Any:
    tag = raw.get("type")
    if tag not in MESSAGES:
        raise Unreadable(f"{where}: message type {tag!r} is none of {', '.join(MESSAGES)}")
    kind = MESSAGES[tag]
    if tag not in RECEIVED[role]:
        raise TraceRefused(where, f"{tag} delivered to {role}: it receives {', '.join(RECEIVED[role])}")
    names = kind.__struct_fields__
    if set(raw) != {"type", *names}:
        raise Unreadable(f"{where}: {tag} has the fields {', '.join(names)}, this one {', '.join(sorted(set(raw) - {'type'}))}")
    return _convert(where, [tag, *(raw[name] for name in names)], kind)
