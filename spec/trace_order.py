"""Merges the processes' lines into one order that the messages, and what ranks of one instance tell each other, allow.

Rules: a process's lines keep their order; a message is delivered after the first line that may have sent it; a rank begins what its
leader's sessions have decided, and they hear of an end after it; nothing of a life comes after somebody has said that it is gone; no
clock is asked.  Lines of different processes that nothing orders commute in System, so any such order does.  A delivery that nothing
sent, and lines that wait for each other in a circle, are refused.
"""

from __future__ import annotations

from typing import Any

from tidegate.protocol.topology import Topology
from tidegate.spec.trace_files import Files, died, leader, leaders, lives_of, topology_of
from tidegate.spec.trace_lines import File, Line, TraceRefused

__all__ = ["PEERS", "Key", "key_of", "merge", "steps_of", "tag_of"]

Key = tuple[Any, ...]
Place = tuple[str, int]
"""Process, and index in its lines."""
Some = tuple[Place, ...]
"""Lines of which one is enough: any of several may have sent a message."""
PEERS = ("PeerGone", "PeerFenced", "PeerLost")
PHRASES = {
    "READY": "no Write of that step", "COMMITTED": "no READ_DONE of it was delivered to Prefill",
    "REVOKED": "no report of it was delivered to Prefill", "RUN_FAILED": "no Miss, failed LoadEnd, Revoke or ResendFailed of that run",
    "START": "no Registered of that attempt", "ABORT": "no Abort of that attempt",
    "RETIRE": "no Retire of that attempt, and no RUN_FAILED for it",
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
    """All lines but the headers and ends, in one order; where a life is over, if it died or is said to be gone, stands a line of its
    own, `Over`. Raises TraceRefused.
    """
    ends = _ends(files)
    lines = {name: file.lines for name, file in files.items()} | {f"{life} is over": [line] for life, line in ends.items()}
    waits = _Waits(files, ends).of_all()
    done = dict.fromkeys(lines, 0)
    out: list[Line] = []
    going = {name for name in lines if lines[name]}
    while going:
        ready = [name for name in going if all(any(done[other] > index for other, index in some) for some in waits[name][done[name]])]
        if not ready:
            raise _stuck(lines, done, waits)
        name = min(ready, key=lambda n: (done[n] / len(lines[n]), n))
        out.append(lines[name][done[name]])
        done[name] += 1
        if done[name] == len(lines[name]):
            going.remove(name)
    return out


def _ends(files: Files) -> dict[str, Line]:
    """Life -> the line that says where it is over, of those that died or are said to be gone."""
    called = {file.header.incarnation: file.life for role in ("decode", "prefill") for file in leaders(files, role)}
    said = set()
    for line in [line for file in files.values() for line in file.lines]:
        for incarnation in line.arguments["lives"] if line.op == "PrefillGone" else [line.arguments["life"]] if line.op in PEERS else []:
            if incarnation not in called:
                raise TraceRefused(line.where, f"{line}: no process of this trace is life {incarnation}")
            said.add(called[incarnation])
    out = {}
    for life in [*lives_of(files, "decode"), *lives_of(files, "prefill")]:
        if (killed := died(files, life)) or life in said:
            file = files[leader(life)]
            out[life] = Line(file.end, file.header.role, "over", "Over", {"life": file.header.incarnation, "killed": killed}, life=life)
    return out


class _Waits:
    """What each line comes after, of other processes' lines: of each tuple of places at least one."""

    def __init__(self, files: Files, ends: dict[str, Line]) -> None:
        self._files, self._ends, self._topology = files, ends, topology_of(files)
        prefills, decodes = leaders(files, "prefill"), leaders(files, "decode")
        self._sent: dict[str, dict[Key, list[Place]]] = {"decode": {}, "prefill": {}}  # by who hears it
        self._claims: dict[Key, Place] = {}
        self._writes: dict[Key, Place] = {}
        self._loaded: dict[Key, Place] = {}
        self._ready: dict[Key, Place] = {}
        for file in prefills:
            name = leader(file.life)
            self._add("decode", name, _sent_by_prefill(file))
            self._claims |= {step: (name, n) for step, n in steps_of(file, "Claim").items()}
            self._writes |= {step: (name, n) for step, n in steps_of(file, "Write").items()}
            self._loaded |= {tuple(line.arguments["transfer"]): (name, n) for n, line in enumerate(file.lines) if line.op == "LoadEnd"}
        for file in decodes:
            self._add("prefill", leader(file.life), _sent_by_decode(file))
            for n, line in enumerate(file.lines):
                if line.op == "Deliver" and tag_of(line.arguments["message"]) == "READY":
                    self._ready.setdefault(_step(line.arguments["message"].transfer), (leader(file.life), n))
        self._physical: dict[tuple[str, Key], Place] = {}  # the last of a kind, of a step
        for name, file in files.items():
            for n, line in enumerate(file.lines):
                if line.physical:
                    self._physical[line.kind, _step(line.physical)] = name, n
        self._written = {place: step for step, place in self._writes.items()}
        self._called = {line.arguments["life"]: life for life, line in ends.items()}
        self._begun: dict[int, tuple[str, int]] = {}  # run -> the life that began it, and for which attempt
        self._admitted: dict[int, str] = {}
        for line in [line for file in [*prefills, *decodes] for line in file.lines]:
            if line.op == "Admit":
                self._admitted[line.arguments["attempt"]] = line.life
            elif line.op == "Deliver" and "run" in line.arguments:
                self._begun[line.arguments["run"]] = line.life, line.arguments["message"].attempt

    def _add(self, to: str, name: str, found: dict[Key, int]) -> None:
        for key, n in found.items():
            self._sent[to].setdefault(key, []).append((name, n))

    def of_all(self) -> dict[str, list[list[Some]]]:
        """Raises TraceRefused for a delivery that nothing sent."""
        waits = {
            name: [[some for some in self._of((name, n), line) if all(place[0] != name for place in some)]
                   for n, line in enumerate(file.lines)]
            for name, file in self._files.items()
        }  # fmt: skip
        return waits | {f"{life} is over": [[((name, len(file.lines) - 1),) for name, file in self._files.items()
                                             if file.life == life and file.lines]] for life in self._ends}  # fmt: skip

    def _of(self, place: Place, line: Line) -> list[Some]:
        if line.op == "Deliver":
            other = self._for(line)
            return [self._senders(line), *([((f"{other} is over", 0),)] if other != line.life and other in self._ends else [])]
        if line.op in PEERS or line.op == "PrefillGone":
            lives = line.arguments["lives"] if line.op == "PrefillGone" else [line.arguments["life"]]
            return [((f"{self._called[life]} is over", 0),) for life in lives]
        return [(one,) for one in self._of_ranks(place, line)] if self._topology != Topology() else []

    def _of_ranks(self, place: Place, line: Line) -> list[Place]:
        if line.physical:
            return self._decided(line, _step(line.physical)) if line.rank else []
        if line.op == "Write":
            told = self._physical.get(("write_end", self._written[place]))
        elif line.op == "ReadEnd":
            kind = "read_begin" if line.arguments["how"] == "unknown" else "read_end"
            told = self._physical.get((kind, tuple(line.arguments["transfer"])))
        else:
            told = self._physical.get((BEFORE.get(line.op, ""), tuple(line.arguments.get("transfer", ()))))
        return [told] if told else []

    def _for(self, line: Line) -> str:
        """The life on this side whose work the message is about: the one in its place hears it when that one is over."""
        message = line.arguments["message"]
        run, attempt = getattr(getattr(message, "transfer", message), "run", 0), getattr(message, "attempt", 0)
        life, asked = self._begun.get(run, (line.life, attempt))
        return life if line.role == "prefill" else self._admitted.get(asked, line.life)

    def _senders(self, line: Line) -> Some:
        message = line.arguments["message"]
        key, role = key_of(message), line.role
        found = self._sent[role].get(key, [])
        if (reader := getattr(message, "reader", 0)):  # it says who it is
            found = [place for place in found if self._files[place[0]].header.incarnation == reader]
        if not found:
            other = "decode" if role == "prefill" else "prefill"
            cut = [file for file in leaders(self._files, other) if not file.ended]
            more = f" ({cut[0].end} is the last line of one that died)" if cut else ""
            raise TraceRefused(line.where, f"{key[0]} is delivered and was never sent: {PHRASES[key[0]]} in the other trace{more}")
        return tuple(found)

    def _decided(self, line: Line, step: Key) -> list[Place]:
        """What a rank was told before it began: by its leader's sessions, and by the leader, which begins each step with all."""
        found: list[Place | None] = []
        if line.kind == "read_begin":
            found = [self._ready.get(step)]
        elif line.kind in ("write_begin", "load_begin"):
            found = [self._claims.get(step)]
        elif line.kind in ("attend_begin", "save_begin"):
            found = [self._writes.get(step)]
        if line.kind == "write_begin":
            found += [self._loaded.get(step), self._physical.get(("write_begin", (*step[:3], 0)))]
        return [place for place in found if place is not None]


def _stuck(lines: dict[str, list[Line]], done: dict[str, int], waits: dict[str, list[list[Some]]]) -> TraceRefused:
    heads = []
    for name, mine in lines.items():
        if done[name] < len(mine):
            some = next(some for some in waits[name][done[name]] if all(done[other] <= index for other, index in some))
            other, index = some[0]
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
    ended, forgotten = set[Key](), set[int]()  # a READY of what was read is refused when its attempt is not known any more
    for index, line in enumerate(file.lines):
        a = line.arguments
        if line.op == "Registered":
            sent.setdefault(("START", a["attempt"]), index)
        elif line.op in ("Abort", "Retire"):
            sent.setdefault((line.op.upper(), a["attempt"]), index)
        elif line.op == "ReadEnd":
            sent.setdefault(("READ_DONE" if a["how"] == "ok" else "READ_FAILED", *a["transfer"]), index)
            refused.pop(("READ_FAILED", *a["transfer"]), None)
            ended.add(tuple(a["transfer"]))
        elif line.op == "Deliver" and tag_of(a["message"]) == "RETIRED":
            forgotten.add(a["message"].attempt)
        elif line.op == "Deliver" and tag_of(a["message"]) == "READY":
            if (step := _step(a["message"].transfer)) not in ended or a["message"].attempt in forgotten:
                refused.setdefault(("READ_FAILED", *step), index)
        elif line.op == "Deliver" and tag_of(a["message"]) == "RUN_FAILED":
            refused.setdefault(("RETIRE", a["message"].attempt), index)
    for key, index in refused.items():
        sent.setdefault(key, index)
    return sent
