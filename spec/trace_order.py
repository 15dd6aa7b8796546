"""Merges the two processes' lines into one order that the messages allow.

Rules: a process's lines keep their order; a message is delivered after the first line that may have sent it; no clock is
asked.  Lines of different processes that no message orders commute in System, so any such order does.  A delivery that nothing
sent, and lines that wait for each other in a circle, are refused.
"""

from __future__ import annotations

from typing import Any

from tidegate.spec.trace_lines import File, Line, TraceRefused

__all__ = ["merge"]

Key = tuple[Any, ...]
PHRASES = {
    "READY": "no Write of that step", "COMMITTED": "no READ_DONE of it was delivered to Prefill",
    "REVOKED": "no report of it was delivered to Prefill", "RUN_FAILED": "no Miss, failed LoadEnd, Revoke or ResendFailed of that run",
    "START": "no Registered of that attempt", "ABORT": "no Abort of that attempt", "RETIRE": "no Retire of that attempt",
    "RETIRED": "no RETIRE of it was delivered to Prefill",
    "READ_DONE": "no ReadEnd ok of it", "READ_FAILED": "neither a failed ReadEnd of it nor a READY of it that could be refused",
}  # fmt: skip
"""Why a message of this type cannot have been sent."""


def tag_of(message: Any) -> str:
    tag: str = message.__struct_config__.tag
    return tag


def key_of(message: Any) -> Key:
    """What a message is about: its type and the work it names."""
    tag = tag_of(message)
    if hasattr(message, "transfer"):
        return (tag, message.transfer.run, message.transfer.chunk, message.transfer.layer)
    return (tag, message.run) if tag == "RUN_FAILED" else (tag, message.attempt)


def merge(files: dict[str, File]) -> list[Line]:
    """All lines but the headers and ends, in one order. Raises TraceRefused."""
    lines = {role: file.lines[:-1] for role, file in files.items()}
    sent = {"decode": _sent_by_prefill(files["prefill"]), "prefill": _sent_by_decode(files["decode"])}
    other = {"prefill": "decode", "decode": "prefill"}
    done = {"prefill": 0, "decode": 0}
    waits = {role: [_wait(line, sent[role]) for line in lines[role]] for role in lines}
    out: list[Line] = []

    def ready(role: str) -> bool:
        return done[role] < len(lines[role]) and waits[role][done[role]] < done[other[role]]

    while any(done[role] < len(lines[role]) for role in lines):
        roles = [role for role in ("prefill", "decode") if ready(role)]
        if not roles:
            raise _stuck(lines, done, waits)
        role = min(roles, key=lambda r: done[r] / len(lines[r]))
        out.append(lines[role][done[role]])
        done[role] += 1
    return out


def _wait(line: Line, sent: dict[Key, int]) -> int:
    """Index of the other process's line after which this one comes, or -1. Raises TraceRefused."""
    if line.op != "Deliver":
        return -1
    key = key_of(line.arguments["message"])
    if key not in sent:
        raise TraceRefused(line.where, f"{key[0]} is delivered and was never sent: {PHRASES[key[0]]} in the other trace")
    return sent[key]


def _stuck(lines: dict[str, list[Line]], done: dict[str, int], waits: dict[str, list[int]]) -> TraceRefused:
    heads = []
    for role, peer in (("prefill", "decode"), ("decode", "prefill")):
        if done[role] < len(lines[role]):
            line = lines[role][done[role]]
            heads.append((line, lines[peer][waits[role][done[role]]]))
    more = tuple(f"{line.where}: {line} comes after {sender.where}: {sender}, which sent it" for line, sender in heads)
    return TraceRefused(heads[0][0].where, "the lines wait for each other in a circle: a message is delivered before it is sent", more)


def _sent_by_prefill(file: File) -> dict[Key, int]:
    """Key of a message -> the first line of Prefill that may have sent it."""
    sent: dict[Key, int] = {}
    written: dict[int, int] = {}
    for index, line in enumerate(file.lines):
        a = line.arguments
        if line.op == "Write":
            count = written[a["run"]] = written.get(a["run"], 0) + 1
            chunk, layer = divmod(count - 1, file.header.layers)
            sent.setdefault(("READY", a["run"], chunk + 1, layer + 1), index)
        elif line.op in ("Miss", "ResendFailed"):
            sent.setdefault(("RUN_FAILED", a["run"]), index)
        elif line.op == "Revoke" or (line.op == "LoadEnd" and not a["ok"]):
            sent.setdefault(("RUN_FAILED", a["transfer"][0]), index)
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
            sent.setdefault(("READ_DONE" if a["how"] == "ok" else "READ_FAILED", *a["transfer"][:3]), index)
        elif line.op == "Deliver" and tag_of(a["message"]) == "READY":
            refused.setdefault(("READ_FAILED", *key_of(a["message"])[1:]), index)
    for key, index in refused.items():
        sent.setdefault(key, index)
    return sent
