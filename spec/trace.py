"""`tidegate trace`: is a recorded run a behaviour of tla/system/System.tla, and did the bytes do what the machines said?

Rules: TLC judges (`trace_judge`, tla/trace/RunTrace.tla), Python only reads, merges and numbers; each line is one step, so the cost
grows with the length of the trace; a refused trace names the first line that does not fit, the rules that it breaks, what they
speak of and what was possible instead; a trace in which no attempt was scheduled or failed is no evidence, and refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.spec.errors import SpecError
from tidegate.spec.trace_files import Files, died, leaders, lives_of, read_directory, topology_of
from tidegate.spec.trace_judge import Case, judge, tla
from tidegate.spec.trace_lines import Line, TraceRefused
from tidegate.spec.trace_names import Names, abstract, check_nonces, read_names
from tidegate.spec.trace_order import merge
from tidegate.spec.trace_ranges import check_ranges
from tidegate.spec.trace_shares import Shares

__all__ = ["Accepted", "check", "check_all"]

LIVES = ("Over", "PrefillGone", "PeerGone", "PeerFenced", "PeerLost")


@dataclass
class Accepted:
    """An accepted trace.  events, physical: lines by op and by kind; runs, attempts, steps: how many; repeated: messages that were
    delivered more than once, as a hint at duplicates and resends; lives, died: what the instances are called, and those of them that
    died, so that their traces end where that came."""

    folder: Path
    events: Counter[str] = field(default_factory=Counter)
    physical: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    attempts: int = 0
    steps: int = 0
    repeated: int = 0
    lives: tuple[str, ...] = ()
    died: tuple[str, ...] = ()


def check(folder: Path, on_progress: Callable[[int, int], None] = lambda done, lines: None) -> Accepted:
    """Judge one run. Raises TraceRefused; Unreadable or SpecError where it cannot be judged.

    on_progress: told how many lines there are and how many of them TLC has judged: at its start, then about once a minute.
    """
    (verdict,) = check_all([folder], on_progress)
    if isinstance(verdict, Exception):
        raise verdict
    return verdict


def check_all(
    folders: Sequence[Path], on_progress: Callable[[int, int], None] = lambda done, lines: None
) -> list[Accepted | SpecError | OSError | ValueError]:
    """Judge many runs, in one JVM where they have one plan of slots: for each folder what `check` would return or raise.

    on_progress: as in `check`, of the runs that are judged together; where several JVMs are needed, anew for each.
    """
    out: dict[int, Accepted | SpecError | OSError | ValueError] = {}
    cases: dict[int, Case] = {}
    for number, folder in enumerate(folders):
        try:
            cases[number], out[number] = _case(folder)
        except (SpecError, OSError, ValueError) as error:
            out[number] = error
    for number, problem in zip(cases, judge(list(cases.values()), on_progress), strict=True):
        if problem is not None:
            out[number] = problem
    return [out[number] for number in range(len(folders))]


def _case(folder: Path) -> tuple[Case, Accepted]:
    """What TLC is to judge of a run, and what will be said of it if it fits. Raises as `check`, before TLC is asked."""
    files = read_directory(folder)
    check_nonces(files)
    lines = merge(files)
    names = read_names(files, lines)
    _substance(files)
    shares = Shares(lines, topology_of(files))
    records, repeated, refused = encode(names, lines, shares)
    try:
        check_ranges(lines if refused is None else lines[: refused[0]], names.lanes, lease=names.prefill.read_lease)
        shares.check(lines if refused is None else lines[: refused[0]])
    except TraceRefused as error:
        refused = _index(lines, error)
    lives = [*lives_of(files, "decode"), *lives_of(files, "prefill")]
    events = Counter(line.op for line in lines if line.kind == "event")
    physical = Counter(line.kind for line in lines if line.physical)
    accepted = Accepted(folder, events, physical, len(names.runs), len(names.attempts), events["Write"], repeated,
                        tuple(lives), tuple(life for life in lives if died(files, life)))  # fmt: skip
    last = max(leaders(files, "prefill"), key=lambda file: file.ended).end
    return Case(names, [*lines, Line(last, "both", "end", "Rest")], records, refused), accepted


def _index(lines: list[Line], error: TraceRefused) -> tuple[int, str]:
    """The line that a refusal names, and the reason. Raises it again if it names none."""
    for index, line in enumerate(lines):
        if line.where == error.where:
            return index, error.why
    raise error


def _substance(files: Files) -> None:
    """A run in which nothing came to an end shows nothing."""
    decodes = leaders(files, "decode")
    lines = [line for file in decodes for line in file.lines]
    ops = Counter(line.op for line in lines if line.op)
    if not ops["Admit"]:
        raise TraceRefused(str(decodes[0].path), "the trace is trivial: no attempt was ever admitted")
    failed = sum(
        (line.op == "ReadEnd" and line.arguments["how"] != "ok") or (line.op == "Deliver"
        and line.arguments["message"].__struct_config__.tag in ("RUN_FAILED", "REVOKED"))
        for line in lines
    )  # fmt: skip
    if not (ops["Schedule"] or ops["Abort"] or ops["PrefillGone"] or failed or any(died(files, file.life) for file in decodes)):
        raise TraceRefused(str(decodes[0].path), "the trace is trivial: no attempt was scheduled, and none failed")


def encode(names: Names, lines: list[Line], shares: Shares) -> tuple[list[dict[str, Any]], int, tuple[int, str] | None]:
    """The lines as records of RunTrace's Log, how many deliveries repeat an earlier one, and the first line, if any, that says
    of itself what cannot be, with the reason: the records end before it."""
    records: list[dict[str, Any]] = []
    refused = None
    for line in lines:
        try:
            record = _physical(names, line, shares) if line.physical else _event(names, line, shares)
        except TraceRefused as error:
            refused = (len(records), error.why)
            break
        records.append(record | {"life": names.lives[line.life]})
    last: dict[str, int] = {}
    repeated = 0
    for index in range(len(records) - 1, -1, -1):
        record = records[index]
        if record["op"] == "Deliver":
            text = tla(record["message"])
            record["keep"] = text in last
            repeated += record["keep"]
            last[text] = index
    return records, repeated, refused


def _physical(names: Names, line: Line, shares: Shares) -> dict[str, Any]:
    p = line.physical
    assert p is not None
    step = names.step(line.where, p.run, p.chunk, p.layer, p.member)
    names.check_own(line, p.run)
    names.check_slot(line.where, p.layer, p.slot, p.epoch, p.member, names.run_of[p.run])
    if p.pool_chunk is not None:
        names.step(line.where, p.run, p.pool_chunk, p.layer, p.member)
    tag = p.landed if line.kind == "load_end" else shares.tag_of(line)
    landed = tag if p.landed == p.tag else p.landed
    return {"op": "physical", "kind": line.kind, "transfer": step, "slot": p.slot, "epoch": p.epoch, "chunk": p.pool_chunk or 0,
            "tag": tag or "", "landed": landed or "", "ok": bool(p.ok)}  # fmt: skip


def _event(names: Names, line: Line, shares: Shares) -> dict[str, Any]:
    if line.op == "Deliver":
        more = {"lane": names.lanes.get(line.arguments["run"], 0)} if "lane" in line.arguments else {}
        return {"op": "Deliver", "message": abstract(names, line), "keep": False} | more
    if line.op in LIVES:
        return _life(names, line)
    out: dict[str, Any] = {"op": line.op}
    a = line.arguments
    names.check_own(line, (a.get("transfer") or a.get("object") or (a.get("run", 0),))[0], a.get("attempt", 0))
    if line.op in ("SaveEnd", "ReadEnd"):
        out["empty"] = shares.is_empty(line)
    for name, value in line.arguments.items():
        if name == "attempt":
            out[name] = names.attempt(line.where, value)
        elif name == "transfer":
            out[name] = names.step(line.where, *value)
        elif name == "run":
            out[name] = names.step(line.where, value, 1, 1, 0)[0]
        elif name == "member":
            out[name] = names.member(line.where, value)
        elif name == "object":
            run, chunk = value
            out[name] = names.step(line.where, run, chunk, 1, 0)[:2]
        else:
            out[name] = value
    return out


def _life(names: Names, line: Line) -> dict[str, Any]:
    """A life is over, or another has heard of it."""
    a = line.arguments
    if line.op == "PrefillGone":
        return {"op": line.op, "about": frozenset(_number(names, line, life, "prefill") for life in a["lives"])}
    if line.op == "Over":
        names.over.add(line.life)
        return {"op": line.op, "about": names.lives[line.life], "killed": a["killed"]}
    told = names.told.setdefault((line.life, line.op, a["life"]), 0)
    names.told[line.life, line.op, a["life"]] = told + 1
    about = _number(names, line, a["life"], "decode")
    return {"op": "Same" if told % len(names.members) else line.op, "about": about}


def _number(names: Names, line: Line, incarnation: int, role: str) -> int:
    life = names.life(line.where, incarnation)
    if life.partition(".")[0] != role:
        raise TraceRefused(line.where, f"{line}: {life} is no {role.capitalize()}")
    return names.lives[life]
