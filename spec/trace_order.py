"""Merges the processes' lines into one order that the messages, and what ranks of one instance tell each other, allow.

Rules: a process's lines keep their order; a message is delivered after the first line that may have sent it; a rank begins what its
leader's sessions have decided, and they hear of an end after it; no clock is asked.  Lines of different processes that nothing
orders commute in System, so any such order does.  A delivery that nothing sent, and lines that wait for each other in a circle,
are refused.
"""

from __future__ import annotations

from typing import Any

from tidegate.protocol.topology import Topology
from tidegate.spec.trace_files import Files, leader, topology_of
from tidegate.spec.trace_lines import File, Line, TraceRefused

__all__ = ["Key", "key_of", "merge", "steps_of", "tag_of"]

Key = tuple[Any, ...]
Place = tuple[str, int]
"""Process, and index in its lines."""
PHRASES = {
    "READY": "no Write of that step", "COMMITTED": "no READ_DONE of it was delivered to Prefill",
    "REVOKED": "no report of it was delivered to Prefill", "RUN_FAILED": "no Miss, failed LoadEnd, Revoke or ResendFailed of that run",
    "START": "no Registered of that attempt", "ABORT": "no Abort of that attempt", "RETIRE": "no Retire of that attempt",
    "RETIRED": "no RETIRE of it was delivered to Prefill",
    "READ_DONE": "no ReadEnd ok of it", "READ_FAILED": "neither a failed ReadEnd of it nor a READY of it that could be refused",
}  # fmt: skip
"""Why a message of this type cannot have been sent."""
BEFORE = {"LayerDone": "attend_end", "SaveEnd": "save_end", "LoadEnd": "load_end", "Landed": "read_end"}
"""Event -> the physical line, of a rank that has no sessions, of which it tells."""


def tag_of(message: Any) -> str:
    tag: str = message.__struct_config__.tag
    return tag


def key_of(message: Any) -> Key:
    """What a message is about: its type and the work it names."""
    tag = tag_of(message)
    if hasattr(message, "transfer"):
        return (tag, *_step(message.transfer))
    return (tag, message.run, message.member) if tag == "RUN_FAILED" else (tag, message.attempt)


def _step(named: Any) -> Key:
    return named.run, named.chunk, named.layer, named.member


def steps_of(file: File, op: str) -> dict[Key, int]:
    """Step (run, chunk, layer, member) -> index of its Claim or Write: the k-th of a run at a member is that of its k-th step."""
    found: dict[Key, int] = {}
    count: dict[tuple[int, int], int] = {}
    for index, line in enumerate(file.lines):
        if line.op == op:
            run, member = line.arguments["run"], line.arguments["member"]
            chunk, layer = divmod(count.get((run, member), 0), file.header.layers)
            count[run, member] = count.get((run, member), 0) + 1
            found[run, chunk + 1, layer + 1, member] = index
    return found


def merge(files: Files) -> list[Line]:
    """All lines but the headers and ends, in one order. Raises TraceRefused."""
    lines = {name: file.lines[:-1] for name, file in files.items()}
    waits = _Waits(files).of_all()
    done = dict.fromkeys(lines, 0)
    out: list[Line] = []
    going = {name for name in lines if lines[name]}
    while going:
        ready = [name for name in going if all(done[other] > index for other, index in waits[name][done[name]])]
        if not ready:
            raise _stuck(lines, done, waits)
        name = min(ready, key=lambda n: (done[n] / len(lines[n]), n))
        out.append(lines[name][done[name]])
        done[name] += 1
        if done[name] == len(lines[name]):
            going.remove(name)
    return out


class _Waits:
    """What each line comes after, of other processes' lines."""

    def __init__(self, files: Files) -> None:
        self._files, self._topology = files, topology_of(files)
        prefill, decode = files[leader("prefill")], files[leader("decode")]
        self._sent = {"decode": _sent_by_prefill(prefill), "prefill": _sent_by_decode(decode)}
        self._claims, self._writes = steps_of(prefill, "Claim"), steps_of(prefill, "Write")
        self._loaded = {tuple(line.arguments["transfer"]): n for n, line in enumerate(prefill.lines) if line.op == "LoadEnd"}
        self._ready: dict[Key, int] = {}
        for n, line in enumerate(decode.lines):
            if line.op == "Deliver" and tag_of(line.arguments["message"]) == "READY":
                self._ready.setdefault(_step(line.arguments["message"].transfer), n)
        self._physical: dict[tuple[str, Key], Place] = {}  # the last of a kind, of a step
        for name, file in files.items():
            for n, line in enumerate(file.lines):
                if line.physical:
                    self._physical[line.kind, _step(line.physical)] = name, n
        self._written = {n: step for step, n in self._writes.items()}

    def of_all(self) -> dict[str, list[list[Place]]]:
        """Raises TraceRefused for a delivery that nothing sent."""
        return {
            name: [[place for place in self._of(n, line) if place[0] != name] for n, line in enumerate(file.lines[:-1])]
            for name, file in self._files.items()
        }

    def _of(self, number: int, line: Line) -> list[Place]:
        if line.op == "Deliver":
            return [self._sender(line)]
        if self._topology == Topology():
            return []
        if line.physical:
            return self._decided(line, _step(line.physical)) if line.rank else []
        if line.op == "Write":
            told = self._physical.get(("write_end", self._written[number]))
        elif line.op == "ReadEnd":
            kind = "read_begin" if line.arguments["how"] == "unknown" else "read_end"
            told = self._physical.get((kind, tuple(line.arguments["transfer"])))
        else:
            told = self._physical.get((BEFORE.get(line.op, ""), tuple(line.arguments.get("transfer", ()))))
        return [told] if told else []

    def _sender(self, line: Line) -> Place:
        key, role = key_of(line.arguments["message"]), line.role
        if key not in self._sent[role]:
            raise TraceRefused(line.where, f"{key[0]} is delivered and was never sent: {PHRASES[key[0]]} in the other trace")
        return leader("decode" if role == "prefill" else "prefill"), self._sent[role][key]

    def _decided(self, line: Line, step: Key) -> list[Place]:
        """What a rank was told before it began: by its leader's sessions, and by the leader, which begins each step with all."""
        found: list[int | None] = []
        if line.kind == "read_begin":
            found = [self._ready.get(step)]
        elif line.kind in ("write_begin", "load_begin"):
            found = [self._claims.get(step)]
        elif line.kind in ("attend_begin", "save_begin"):
            found = [self._writes.get(step)]
        places = [(leader(line.role), n) for n in found if n is not None]
        if line.kind == "write_begin":
            loaded, begun = self._loaded.get(step), self._physical.get(("write_begin", (*step[:3], 0)))
            places += [(leader("prefill"), loaded)] if loaded is not None else []
            places += [begun] if begun else []
        return places


def _stuck(lines: dict[str, list[Line]], done: dict[str, int], waits: dict[str, list[list[Place]]]) -> TraceRefused:
    heads = []
    for name, mine in lines.items():
        if done[name] < len(mine):
            other, index = next(place for place in waits[name][done[name]] if done[place[0]] <= place[1])
            heads.append((mine[done[name]], lines[other][index]))
    more = tuple(f"{line.where}: {line} comes after {first.where}: {first}, which caused it" for line, first in heads)
    return TraceRefused(heads[0][0].where, "the lines wait for each other in a circle: a message is delivered before it is sent, or a "
                        "rank acts before it is told", more)  # fmt: skip


def _sent_by_prefill(file: File) -> dict[Key, int]:
    """Key of a message -> the first line of Prefill that may have sent it."""
    sent: dict[Key, int] = {("READY", *step): index for step, index in steps_of(file, "Write").items()}
    for index, line in enumerate(file.lines):
        a = line.arguments
        if line.op == "Miss":
            sent.setdefault(("RUN_FAILED", a["run"], a["member"]), index)
        elif line.op == "ResendFailed":  # the leader alone says it again
            sent.setdefault(("RUN_FAILED", a["run"], 0), index)
        elif line.op == "Revoke" or (line.op == "LoadEnd" and not a["ok"]):
            sent.setdefault(("RUN_FAILED", a["transfer"][0], a["transfer"][3]), index)
        elif line.op == "Deliver" and tag_of(a["message"]) in ("READ_DONE", "READ_FAILED"):
            tag, *step = key_of(a["message"])
            sent.setdefault(("REVOKED", *step), index)
            if tag == "READ_DONE":
                sent.setdefault(("COMMITTED", *step), index)
        elif line.op == "Deliver" and tag_of(a["message"]) == "RETIRE":
            sent.setdefault(("RETIRED", a["message"].attempt), index)
    return sent


def _sent_by_decode(file: File) -> dict[Key, int]:
    """Key of a message -> the first line of Decode that may have sent it."""
    sent: dict[Key, int] = {}
    refused: dict[Key, int] = {}
    for index, line in enumerate(file.lines):
        a = line.arguments
        if line.op == "Registered":
            sent.setdefault(("START", a["attempt"]), index)
        elif line.op in ("Abort", "Retire"):
            sent.setdefault((line.op.upper(), a["attempt"]), index)
        elif line.op == "ReadEnd":
            sent.setdefault(("READ_DONE" if a["how"] == "ok" else "READ_FAILED", *a["transfer"]), index)
        elif line.op == "Deliver" and tag_of(a["message"]) == "READY":
            refused.setdefault(("READ_FAILED", *key_of(a["message"])[1:]), index)
    for key, index in refused.items():
        sent.setdefault(key, index)
    return sent
