"""Turns the nonces of a run into the numbers of System, and checks what a line says of itself.

Rules: runs are numbered in the order of their START, attempts in that of their Admit, each attempt with a block set of its own;
a nonce that comes twice, a name that was never introduced, and a message whose contents differ from what its sender must have
said are refused; what System keeps of a message is left to TLC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidegate.protocol.topology import SlotPlan
from tidegate.spec.trace_lines import File, Header, Line, TraceRefused
from tidegate.spec.trace_order import tag_of

__all__ = ["Names", "read_names"]

Step = tuple[int, int, int, int]


@dataclass
class Names:
    """runs, attempts: nonce -> number; chunks: attempt's nonce -> chunks of its prompt; started: run's nonce -> START."""

    prefill: Header
    decode: Header
    plan: SlotPlan
    runs: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    chunks: dict[int, int] = field(default_factory=dict)
    started: dict[int, Any] = field(default_factory=dict)
    claims: int = 0
    readies: dict[Step, Any] = field(default_factory=dict)

    def step(self, where: str, run: int, chunk: int, layer: int, member: int) -> Step:
        """The step in numbers. Raises TraceRefused for one that is no part of the run."""
        if run not in self.runs:
            raise TraceRefused(where, f"run {run} was never begun: no START with this run was delivered to Prefill")
        chunks = self.chunks[self.started[run].attempt]
        if not (1 <= chunk <= chunks and 1 <= layer <= self.prefill.layers and member == 0):
            raise TraceRefused(where, f"chunk {chunk} layer {layer} member {member}: run {run} has {chunks} chunks of "
                               f"{self.prefill.layers} layers, and one member, 0")  # fmt: skip
        return (self.runs[run], chunk, layer, member)

    def attempt(self, where: str, nonce: int) -> int:
        if nonce not in self.attempts:
            raise TraceRefused(where, f"attempt {nonce} was never admitted by Decode")
        return self.attempts[nonce]

    def check_slot(self, where: str, layer: int, slot: int, epoch: int) -> None:
        """Slots follow from the plan, and each claim begins one epoch at most."""
        if slot != self.plan.slot_of(layer):
            raise TraceRefused(where, f"slot {slot} of layer {layer}: the plan gives it slot {self.plan.slot_of(layer)}")
        if not 1 <= epoch <= self.claims:
            raise TraceRefused(where, f"epoch {epoch}: epochs begin at 1, and only {self.claims} claims can have begun one")


def read_names(files: dict[str, File]) -> Names:
    """Number the nonces of a trace. Raises TraceRefused."""
    prefill, decode = files["prefill"].header, files["decode"].header
    plan = SlotPlan(layers=prefill.layers, shared=frozenset(prefill.shared), shared_slots=prefill.shared_slots)
    names, places = Names(prefill, decode, plan), dict[tuple[str, int], str]()
    for line in files["decode"].lines:
        if line.op == "Admit":
            _new(places, "attempt", line.arguments["attempt"], line.where)
            names.attempts[line.arguments["attempt"]] = len(names.attempts) + 1
    for line in files["prefill"].lines:
        names.claims += line.op == "Claim"
        if line.op == "Deliver" and tag_of(line.arguments["message"]) == "START":
            start, run = line.arguments["message"], line.arguments["run"]
            _new(places, "run", run, line.where)
            names.attempt(line.where, start.attempt)
            names.runs[run], names.started[run] = len(names.runs) + 1, start
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
        return out | {"member": _member(where, tag, message.member)} if tag == "ABORT" else out
    if tag == "RUN_FAILED":
        names.step(where, message.run, 1, 1, 0)
        _expect(where, tag, "attempt", message.attempt, names.started[message.run].attempt)
        return {"op": tag, "run": names.runs[message.run], "attempt": names.attempt(where, message.attempt),
                "member": _member(where, tag, message.member)}  # fmt: skip
    t = message.transfer
    step = names.step(where, t.run, t.chunk, t.layer, t.member)
    if tag in ("COMMITTED", "REVOKED"):
        return {"op": tag, "transfer": step}
    names.check_slot(where, t.layer, message.slot, message.epoch)
    _expect(where, tag, "incarnation", message.incarnation, names.prefill.incarnation)
    if tag != "READY":
        if ready := names.readies.get(step):
            _expect(where, tag, "epoch", message.epoch, ready.epoch)
        return {"op": tag, "transfer": step}
    start, size = names.started[t.run], names.prefill.chunk_tokens
    said = {"request": start.request, "attempt": start.attempt, "start": (t.chunk - 1) * size,
            "stop": min(t.chunk * size, start.tokens)}  # fmt: skip
    for name, value in said.items():
        _expect(where, tag, name, getattr(message, name), value)
    names.readies[step] = message
    return {"op": tag, "transfer": step, "attempt": names.attempt(where, message.attempt), "epoch": message.epoch,
            "final": message.final}  # fmt: skip


def _member(where: str, tag: str, member: int) -> int:
    _expect(where, tag, "member", member, 0)
    return member


def _expect(where: str, tag: str, name: str, found: Any, due: Any) -> None:
    if found != due:
        raise TraceRefused(where, f"{tag} with {name} {found!r}: its sender said {due!r}")
