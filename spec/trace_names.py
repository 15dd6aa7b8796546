"""Turns the nonces of a run into the numbers of System, and checks what a line says of itself.

Rules: runs are numbered in the order of their START, attempts in that of their Admit, each attempt with a block set of its own;
a nonce that comes twice, a name that was never introduced, and a message whose contents differ from what its sender must have
said are refused; what System keeps of a message is left to TLC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidegate.protocol.topology import SlotPlan
from tidegate.spec.trace_files import Files, leader
from tidegate.spec.trace_lines import Header, Line, TraceRefused
from tidegate.spec.trace_order import tag_of

__all__ = ["Names", "read_names"]

Step = tuple[int, int, int, int]


@dataclass
class Names:
    """runs, attempts: nonce -> number; chunks: attempt's nonce -> chunks of its prompt; started: run's nonce -> START; lanes: run's
    nonce -> lane; claims: of each member.
    """

    prefill: Header
    decode: Header
    plan: SlotPlan
    runs: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    chunks: dict[int, int] = field(default_factory=dict)
    started: dict[int, Any] = field(default_factory=dict)
    lanes: dict[int, int] = field(default_factory=dict)
    claims: dict[int, int] = field(default_factory=dict)
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
            raise TraceRefused(where, f"attempt {nonce} was never admitted by Decode")
        return self.attempts[nonce]

    def member(self, where: str, member: int) -> int:
        if member not in self.members:
            raise TraceRefused(where, f"member {member}: this Prefill has members 0 to {self.members[-1]}")
        return member

    def check_slot(self, where: str, layer: int, slot: int, epoch: int, member: int) -> None:
        """Slots follow from the plan, and each claim begins one epoch at most."""
        if slot != self.plan.slot_of(layer):
            raise TraceRefused(where, f"slot {slot} of layer {layer}: the plan gives it slot {self.plan.slot_of(layer)}")
        if not 1 <= epoch <= (claims := self.claims.get(member, 0)):
            raise TraceRefused(where, f"epoch {epoch}: epochs begin at 1, and only {claims} claims can have begun one")


def read_names(files: Files) -> Names:
    """Number the nonces of a trace. Raises TraceRefused."""
    prefill, decode = files[leader("prefill")].header, files[leader("decode")].header
    plan = SlotPlan(layers=prefill.layers, shared=frozenset(prefill.shared), shared_slots=prefill.shared_slots)
    names, places = Names(prefill, decode, plan), dict[tuple[str, int], str]()
    for file in files.values():
        _new(places, "incarnation", file.header.incarnation, f"{file.path}:1")
    for line in files[leader("decode")].lines:
        if line.op == "Admit":
            _new(places, "attempt", line.arguments["attempt"], line.where)
            names.attempts[line.arguments["attempt"]] = len(names.attempts) + 1
    for line in files[leader("prefill")].lines:
        if line.op == "Claim":
            member = line.arguments["member"]
            names.claims[member] = names.claims.get(member, 0) + 1
        if line.op == "Deliver" and tag_of(line.arguments["message"]) == "START":
            start, run = line.arguments["message"], line.arguments["run"]
            _new(places, "run", run, line.where)
            names.attempt(line.where, start.attempt)
            names.runs[run], names.started[run], names.lanes[run] = len(names.runs) + 1, start, line.arguments["lane"]
            chunks = -(-start.tokens // prefill.chunk_tokens)
            if names.chunks.setdefault(start.attempt, chunks) != chunks or start.tokens < 1:
                raise TraceRefused(line.where, f"START of {start.tokens} tokens: an earlier START of this attempt had others")
    return names


def _new(places: dict[tuple[str, int], str], what: str, nonce: int, where: str) -> None:
    if nonce < 1:
        raise TraceRefused(where, f"{what} {nonce}: nonces are positive")
    if (what, nonce) in places:
        raise TraceRefused(where, f"{what} {nonce} is used again: its nonce was taken at {places[what, nonce]}, and nonces never repeat")
    places[what, nonce] = where


def abstract(names: Names, line: Line) -> dict[str, Any]:
    """The message of a Deliver as System keeps it. Raises TraceRefused where the rest of it is not what was said."""
    message, where = line.arguments["message"], line.where
    tag = tag_of(message)
    if tag in ("START", "ABORT", "RETIRE", "RETIRED"):
        _expect(where, tag, "incarnation", getattr(message, "incarnation", names.decode.incarnation), names.decode.incarnation)
        out = {"op": tag, "attempt": names.attempt(where, message.attempt)}
        return out | {"member": names.member(where, message.member)} if tag == "ABORT" else out
    if tag == "RUN_FAILED":
        names.step(where, message.run, 1, 1, 0)
        _expect(where, tag, "attempt", message.attempt, names.started[message.run].attempt)
        return {"op": tag, "run": names.runs[message.run], "attempt": names.attempt(where, message.attempt),
                "member": names.member(where, message.member)}  # fmt: skip
    t = message.transfer
    step = names.step(where, t.run, t.chunk, t.layer, t.member)
    if tag in ("COMMITTED", "REVOKED"):
        return {"op": tag, "transfer": step}
    names.check_slot(where, t.layer, message.slot, message.epoch, t.member)
    _expect(where, tag, "incarnation", message.incarnation, names.prefill.incarnation)
    if tag != "READY":
        _expect(where, tag, "reader", message.reader, names.decode.incarnation)
        if ready := names.readies.get(step):
            _expect(where, tag, "epoch", message.epoch, ready.epoch)
        return {"op": tag, "transfer": step, "reader": 1}
    start, size = names.started[t.run], names.prefill.chunk_tokens
    said = {"request": start.request, "attempt": start.attempt, "start": (t.chunk - 1) * size,
            "stop": min(t.chunk * size, start.tokens)}  # fmt: skip
    for name, value in said.items():
        _expect(where, tag, name, getattr(message, name), value)
    names.readies[step] = message
    return {"op": tag, "transfer": step, "attempt": names.attempt(where, message.attempt), "epoch": message.epoch,
            "final": message.final}  # fmt: skip


def _expect(where: str, tag: str, name: str, found: Any, due: Any) -> None:
    if found != due:
        raise TraceRefused(where, f"{tag} with {name} {found!r}: its sender said {due!r}")
