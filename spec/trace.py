"""`tidegate trace`: is a recorded run a behaviour of tla/system/System.tla, and did the bytes do what the machines said?

Rules: TLC judges (tla/trace/RunTrace.tla), Python only reads, merges and numbers; each line is one step, so the cost grows with
the length of the trace; a refused trace names the first line that does not fit, the rules that it breaks, what they speak of and
what was possible instead; a trace in which no attempt was scheduled or failed is no evidence, and refused.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.spec import tlc
from tidegate.spec.errors import SpecError
from tidegate.spec.paths import library, root
from tidegate.spec.tlc_output import Result
from tidegate.spec.trace_lines import File, Line, TraceRefused, read_directory
from tidegate.spec.trace_names import Names, abstract, read_names
from tidegate.spec.trace_order import merge
from tidegate.spec.trace_ranges import check_ranges
from tidegate.spec.trace_refusal import refusal

__all__ = ["Accepted", "check"]

STACK = "-Xss64m"  # a long trace is one long literal, which SANY reads by recursion
LONG = 3000  # lines from which on a JVM that compiles well is worth its start
PROGRESS = re.compile(r"Progress\((\d+)\)")  # the depth, which is the line: each line is one step
BUDGETS = ("Loss", "Dup", "Fail", "Unknown", "SaveFail", "LoadFail", "Evict", "Abort", "Revoke")


@dataclass
class Accepted:
    """An accepted trace.  events, physical: lines by op and by kind; runs, attempts, steps: how many; left: messages that were
    delivered more than once, as a hint at duplicates and resends."""

    folder: Path
    events: Counter[str] = field(default_factory=Counter)
    physical: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    attempts: int = 0
    steps: int = 0
    repeated: int = 0


def check(folder: Path, on_progress: Callable[[int, int], None] = lambda done, lines: None) -> Accepted:
    """Judge one run. Raises TraceRefused; Unreadable or SpecError where it cannot be judged.

    on_progress: told how many lines there are and how many of them TLC has judged: at its start, then about once a minute.
    """
    files = read_directory(folder)
    names = read_names(files)
    lines = merge(files)
    _substance(files)
    records, repeated = encode(names, lines)
    check_ranges(lines)
    result = run(names, records, on_progress)
    last = files["prefill"].lines[-1]
    if problem := refusal(result, [*lines, Line(last.where, "both", "end", "Rest")], names):
        raise problem
    events = Counter(line.op for line in lines if line.op)
    physical = Counter(line.kind for line in lines if line.physical)
    return Accepted(folder, events, physical, len(names.runs), len(names.attempts), events["Write"], repeated)


def _substance(files: dict[str, File]) -> None:
    """A run in which nothing came to an end shows nothing."""
    ops = Counter(line.op for file in files.values() for line in file.lines if line.op)
    if not ops["Admit"]:
        raise TraceRefused(str(files["decode"].path), "the trace is trivial: no attempt was ever admitted")
    if not ops["Schedule"] + ops["Abort"] + sum(
        (line.op == "ReadEnd" and line.arguments["how"] != "ok") or (line.op == "Deliver"
        and line.arguments["message"].__struct_config__.tag in ("RUN_FAILED", "REVOKED"))
        for line in files["decode"].lines
    ):  # fmt: skip
        raise TraceRefused(str(files["decode"].path), "the trace is trivial: no attempt was scheduled, and none failed")


# ---- the trace in TLA+ ------------------------------------------------------------------------------------------------


def tla(value: Any) -> str:
    """A value as TLA+ writes it."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "[" + ", ".join(f"{name} |-> {tla(v)}" for name, v in value.items()) + "]"
    if isinstance(value, tuple | list):
        return "<<" + ", ".join(map(tla, value)) + ">>"
    if isinstance(value, frozenset | set | range):
        return "{" + ", ".join(map(tla, sorted(value))) + "}"
    return str(value)


def encode(names: Names, lines: list[Line]) -> tuple[list[dict[str, Any]], int]:
    """The lines as records of RunTrace's Log, and how many deliveries repeat an earlier one. Raises TraceRefused."""
    records = [_physical(names, line) if line.physical else _event(names, line) for line in lines]
    last: dict[str, int] = {}
    repeated = 0
    for index in range(len(records) - 1, -1, -1):
        record = records[index]
        if record["op"] == "Deliver":
            text = tla(record["message"])
            record["keep"] = text in last
            repeated += record["keep"]
            last[text] = index
    return records, repeated


def _physical(names: Names, line: Line) -> dict[str, Any]:
    p = line.physical
    assert p is not None
    step = names.step(line.where, p.run, p.chunk, p.layer, p.member)
    names.check_slot(line.where, p.layer, p.slot, p.epoch)
    if p.pool_chunk is not None:
        names.step(line.where, p.run, p.pool_chunk, p.layer, p.member)
    tag = p.landed if line.kind == "load_end" else p.tag
    return {"op": "physical", "kind": line.kind, "transfer": step, "slot": p.slot, "epoch": p.epoch, "chunk": p.pool_chunk or 0,
            "tag": tag or "", "landed": p.landed or "", "ok": bool(p.ok)}  # fmt: skip


def _event(names: Names, line: Line) -> dict[str, Any]:
    if line.op == "Deliver":
        return {"op": "Deliver", "message": abstract(names, line), "keep": False}
    out: dict[str, Any] = {"op": line.op}
    for name, value in line.arguments.items():
        if name == "attempt":
            out[name] = names.attempt(line.where, value)
        elif name == "transfer":
            out[name] = names.step(line.where, *value)
        elif name == "run":
            out[name] = names.step(line.where, value, 1, 1, 0)[0]
        elif name == "object":
            run, chunk = value
            out[name] = names.step(line.where, run, chunk, 1, 0)[:2]
        else:
            out[name] = value
    return out


def run(names: Names, records: list[dict[str, Any]], on_progress: Callable[[int, int], None]) -> Result:
    """Have TLC judge the records."""

    def line(text: str) -> None:
        if found := PROGRESS.search(text):
            on_progress(min(int(found[1]), len(records)), len(records))

    on_progress(0, len(records))
    by_number = sorted((number, nonce) for nonce, number in names.attempts.items())
    counts = [names.chunks.get(nonce, 1) for _, nonce in by_number]
    log = ",\n".join(map(tla, [*records, {"op": "Rest"}]))
    constants = {
        "Layers": tla(range(1, names.plan.layers + 1)), "Shared": tla(names.plan.shared), "SharedSlots": names.plan.shared_slots,
        "NumChunks": max(counts), "Runs": tla(range(1, len(names.runs) + 1)), "Attempts": tla(range(1, len(counts) + 1)),
        "Blocks": tla(range(1, len(counts) + 1)), "ReadLease": tla(names.prefill.read_lease),
    } | {f"Max{fault}": len(records) for fault in BUDGETS}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tidegate-trace-") as folder:
        data, config = Path(folder) / "TraceData.tla", Path(folder) / "trace.cfg"
        data.write_text(f"---- MODULE TraceData ----\nChunkCounts == {tla(counts)}\nLog == <<\n{log}\n>>\n====\n")
        config.write_text(
            "SPECIFICATION TraceSpec\nCONSTANTS\n" + "".join(f"    {name} = {value}\n" for name, value in constants.items())
            + "    ChunksOf <- TraceChunks\nCONSTRAINT Judge\nVIEW TraceView\n"
        )  # fmt: skip
        module = root() / "tla" / "trace" / "RunTrace.tla"
        if not module.exists():
            raise SpecError(f"{module} is missing: run from a source checkout")
        jvm = tlc.LIGHT if len(records) < LONG else ("-XX:+UseSerialGC",)
        return tlc.run_tlc(module, config, library=[Path(folder), *library()], jvm=(STACK, *jvm), on_line=line)
