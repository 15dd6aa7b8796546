"""Turns the nonces of a run into the numbers of System, and checks what a line says of itself.

Rules: runs are numbered in the order of their START, attempts in that of their Admit, each attempt with a block set of its own, lives
with the Decodes first; each life of a Prefill has lanes of its own; a nonce that comes twice, a name that was never introduced, what a
life says of another's work, and a message whose contents differ from what its sender must have said are refused; what System keeps of
a message is left to TLC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.protocol.topology import SlotPlan
from tidegate.spec.trace_files import Files, first, leader, leaders, lives_of
from tidegate.spec.trace_lines import Header, Line, TraceRefused
from tidegate.spec.trace_order import tag_of

__all__ = ["Names", "abstract", "check_nonces", "read_names"]

Step = tuple[int, int, int, int]


@dataclass
class Names:
    """runs, attempts: nonce -> number; chunks: attempt's nonce -> chunks of its prompt; started: run's nonce -> START; lanes: run's
    nonce -> lane; claims: of each life's members; lives: name -> number; called: incarnation -> name; of: nonce of a run or attempt ->
    life that began it; over: lives of which nothing more comes; decode, prefill: what the lives of a side have in common.
    """

    prefill: Header
    decode: Header
    plan: SlotPlan
    lives: dict[str, int] = field(default_factory=dict)
    called: dict[int, str] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)
    run_of: dict[int, str] = field(default_factory=dict)
    attempt_of: dict[int, str] = field(default_factory=dict)
    width: dict[str, int] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    told: dict[tuple[str, str, int], int] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    chunks: dict[int, int] = field(default_factory=dict)
    started: dict[int, Any] = field(default_factory=dict)
    lanes: dict[int, int] = field(default_factory=dict)
    claims: dict[tuple[str, int], int] = field(default_factory=dict)
    readies: dict[Step, Any] = field(default_factory=dict)

    @property
    def members(self) -> range:
        return range(self.prefill.ranks)

    def step(self, where: str, run: int, chunk: int, layer: int, member: int) -> Step:
        """The step in numbers. Raises TraceRefused for one that is no part of the run."""
        if run not in self.runs:
            raise TraceRefused(where, f"run {run} was never begun: no START with this run was delivered to Prefill")
        chunks = self.chunks[self.started[run].attempt]
        if not (1 <= chunk <= chunks and 1 <= layer <= self.prefill.layers and member in self.members):
            raise TraceRefused(where, f"chunk {chunk} layer {layer} member {member}: run {run} has {chunks} chunks of "
                               f"{self.prefill.layers} layers, and members 0 to {self.members[-1]}")  # fmt: skip
        return (self.runs[run], chunk, layer, member)

    def attempt(self, where: str, nonce: int) -> int:
        if nonce not in self.attempts:
            raise _unknown(where, nonce)
        return self.attempts[nonce]

    def member(self, where: str, member: int) -> int:
        if member not in self.members:
            raise TraceRefused(where, f"member {member}: this Prefill has members 0 to {self.members[-1]}")
        return member

    def life(self, where: str, incarnation: int) -> str:
        """What that life is called. Raises TraceRefused for one that has no file here."""
        if incarnation not in self.called:
            raise TraceRefused(where, f"life {incarnation}: no process of this trace is it")
        return self.called[incarnation]

    def lanes_of(self, life: str) -> range:
        """The lanes of System that a life has: each Prefill some of its own, a Decode none."""
        before = sum(width for other, width in self.width.items() if self.lives[other] < self.lives[life])
        return range(before + 1, before + 1 + self.width.get(life, 0))

    def check_own(self, line: Line, run: int = 0, attempt: int = 0) -> None:
        """A session speaks of its own runs, or attempts, and copies are made for it. Raises TraceRefused."""
        if line.role == "decode" and run in self.started:
            attempt = self.started[run].attempt
        about, of = (self.attempt_of, attempt) if line.role == "decode" else (self.run_of, run)
        if about.get(of, line.life) != line.life:
            what = "attempt" if line.role == "decode" else "run"
            raise TraceRefused(line.where, f"{line} in the trace of {line.life}: {what} {of} is {about[of]}'s")

    def check_slot(self, where: str, layer: int, slot: int, epoch: int, member: int, life: str) -> None:
        """Slots follow from the plan, and each claim begins one epoch at most."""
        if slot != self.plan.slot_of(layer):
            raise TraceRefused(where, f"slot {slot} of layer {layer}: the plan gives it slot {self.plan.slot_of(layer)}")
        if not 1 <= epoch <= (claims := self.claims.get((life, member), 0)):
            raise TraceRefused(where, f"epoch {epoch}: epochs begin at 1, and only {claims} claims can have begun one")


def check_nonces(files: Files) -> None:
    """No life, attempt or run has a nonce that another has, and each run is for an attempt. Raises TraceRefused."""
    places: dict[tuple[str, int], str] = {}
    for file in files.values():
        _new(places, "incarnation", file.header.incarnation, f"{file.path}:1")
    for line in [line for file in files.values() for line in file.lines]:
        if line.op == "Admit":
            _new(places, "attempt", line.arguments["attempt"], line.where)
        elif _starts(line):
            _new(places, "run", line.arguments["run"], line.where)
    for line in [line for file in leaders(files, "prefill") for line in file.lines if _starts(line)]:
        if ("attempt", nonce := line.arguments["message"].attempt) not in places:
            raise _unknown(line.where, nonce)


def read_names(files: Files, lines: Sequence[Line]) -> Names:
    """Number the nonces of a trace, whose merged lines are `lines`. Raises TraceRefused."""
    prefill, decode = first(files, "prefill").header, first(files, "decode").header
    plan = SlotPlan(layers=prefill.layers, shared=frozenset(prefill.shared), shared_slots=prefill.shared_slots)
    names = Names(prefill, decode, plan)
    for life in [*lives_of(files, "decode"), *lives_of(files, "prefill")]:
        incarnation = files[leader(life)].header.incarnation
        names.lives[life], names.called[incarnation], names.incarnations[life] = len(names.lives) + 1, life, incarnation
    for file in leaders(files, "prefill"):
        names.width[file.life] = max([1, *(line.arguments["lane"] for line in file.lines if _starts(line))])
    for line in lines:
        if line.op == "Admit":
            nonce = line.arguments["attempt"]
            names.attempts[nonce], names.attempt_of[nonce] = len(names.attempts) + 1, line.life
    for line in lines:
        if line.op == "Claim":
            member = line.life, line.arguments["member"]
            names.claims[member] = names.claims.get(member, 0) + 1
        elif _starts(line):
            _number_run(names, line)
    return names


def _starts(line: Line) -> bool:
    """Does it begin a run?  A START of a life that is over begins none."""
    return line.op == "Deliver" and tag_of(line.arguments["message"]) == "START" and line.arguments["run"] != 0


def _number_run(names: Names, line: Line) -> None:
    start, run = line.arguments["message"], line.arguments["run"]
    names.attempt(line.where, start.attempt)
    names.runs[run], names.started[run], names.run_of[run] = len(names.runs) + 1, start, line.life
    if not line.arguments["lane"] >= 1:
        raise TraceRefused(line.where, f"lane {line.arguments['lane']}: lanes count from 1")
    names.lanes[run] = names.lanes_of(line.life)[line.arguments["lane"] - 1]
    chunks = -(-start.tokens // names.prefill.chunk_tokens)
    if names.chunks.setdefault(start.attempt, chunks) != chunks or start.tokens < 1:
        raise TraceRefused(line.where, f"START of {start.tokens} tokens: an earlier START of this attempt had others")


def _unknown(where: str, attempt: int) -> TraceRefused:
    return TraceRefused(where, f"attempt {attempt} was never admitted by Decode")


def _new(places: dict[tuple[str, int], str], what: str, nonce: int, where: str) -> None:
    if nonce < 1:
        raise TraceRefused(where, f"{what} {nonce}: nonces are positive")
    if (what, nonce) in places:
        raise TraceRefused(where, f"{what} {nonce} is used again: its nonce was taken at {places[what, nonce]}, and nonces never repeat")
    places[what, nonce] = where


def abstract(names: Names, line: Line) -> dict[str, Any]:
    """The message of a Deliver as System keeps it. Raises TraceRefused where the rest of it is not what was said, or where it was for
    another life, which is still there.
    """
    message, where = line.arguments["message"], line.where
    tag = tag_of(message)
    if tag in ("START", "ABORT", "RETIRE", "RETIRED"):
        out = {"op": tag, "attempt": names.attempt(where, message.attempt)}
        asked = names.attempt_of[message.attempt]
        if tag == "START":
            _expect(where, tag, "incarnation", message.incarnation, names.incarnations[asked])
        _for_another(names, line, asked)
        return out | {"member": names.member(where, message.member)} if tag == "ABORT" else out
    if tag == "RUN_FAILED":
        names.step(where, message.run, 1, 1, 0)
        _expect(where, tag, "attempt", message.attempt, names.started[message.run].attempt)
        _for_another(names, line, names.attempt_of[message.attempt])
        return {"op": tag, "run": names.runs[message.run], "attempt": names.attempt(where, message.attempt),
                "member": names.member(where, message.member)}  # fmt: skip
    t = message.transfer
    step, start = names.step(where, t.run, t.chunk, t.layer, t.member), names.started[t.run]
    of = names.run_of[t.run]
    _for_another(names, line, of if line.role == "prefill" else names.attempt_of[start.attempt])
    if tag in ("COMMITTED", "REVOKED"):
        return {"op": tag, "transfer": step}
    names.check_slot(where, t.layer, message.slot, message.epoch, t.member, of)
    _expect(where, tag, "incarnation", message.incarnation, names.incarnations[of])
    if tag != "READY":
        if ready := names.readies.get(step):
            _expect(where, tag, "epoch", message.epoch, ready.epoch)
        return {"op": tag, "transfer": step, "reader": names.lives[names.life(where, message.reader)]}
    size = names.prefill.chunk_tokens
    said = {"request": start.request, "attempt": start.attempt, "start": (t.chunk - 1) * size,
            "stop": min(t.chunk * size, start.tokens)}  # fmt: skip
    for name, value in said.items():
        _expect(where, tag, name, getattr(message, name), value)
    names.readies[step] = message
    return {"op": tag, "transfer": step, "attempt": names.attempt(where, message.attempt), "epoch": message.epoch,
            "final": message.final}  # fmt: skip


def _for_another(names: Names, line: Line, life: str) -> None:
    """What a dead life was to hear may come to the one in its place, and means nothing to it; what a living one is to hear may not."""
    tag = tag_of(line.arguments["message"])
    if life != line.life and life.partition(".")[0] == line.role and life not in names.over:
        raise TraceRefused(line.where, f"{tag} is delivered to {line.life}, and is about work of {life}: a life hears of its own only")


def _expect(where: str, tag: str, name: str, found: Any, due: Any) -> None:
    if found != due:
        raise TraceRefused(where, f"{tag} with {name} {found!r}: its sender said {due!r}")
