"""Has TLC judge merged traces, several in one run.

Rules: traces of one plan of slots are judged together, for starting TLC costs more than a short trace; a long one has a JVM of its
own, which compiles well; where a group cannot be judged, or TLC does not say where one of it stopped, each is judged alone, so that a
trace never hides behind another.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidegate.spec import tlc
from tidegate.spec.errors import SpecError
from tidegate.spec.paths import library, root
from tidegate.spec.tlc_output import Result
from tidegate.spec.trace_lines import Line, TraceRefused
from tidegate.spec.trace_names import Names
from tidegate.spec.trace_refusal import refusal

__all__ = ["Case", "judge", "tla"]

STACK = "-Xss64m"  # a long trace is one long literal, which SANY reads by recursion
LONG = 3000  # lines from which on a JVM that compiles well is worth its start
PROGRESS = re.compile(r"Progress\((\d+)\)")  # the depth, which is the line: each line is one step
BUDGETS = ("Loss", "Dup", "Fail", "Unknown", "SaveFail", "LoadFail", "Evict", "Abort", "Revoke")


@dataclass(frozen=True)
class Case:
    """One trace: its names, its lines with `Rest` at the end, and the records of RunTrace's Log (without Rest).  refused: the
    index of a line that is refused for what TLC does not look at, and why; its record, and those after it, may be missing."""

    names: Names
    lines: list[Line]
    records: list[dict[str, Any]]
    refused: tuple[int, str] | None = None

    @property
    def log(self) -> list[dict[str, Any]]:
        """What TLC gets: the records to the end, or to the line that is refused, of which only the state is asked."""
        if self.refused is None:
            return [*self.records, {"op": "Rest", "life": 0}]
        line = self.lines[self.refused[0]]
        step = line.physical or getattr(line.arguments.get("message"), "transfer", None)
        show: dict[str, Any] = {"op": "Show", "life": 0}
        chunks, layers = range(1, max(self.counts) + 1), range(1, self.names.plan.layers + 1)
        if step and step.run in self.names.runs and step.chunk in chunks and step.layer in layers:
            show["transfer"] = (self.names.runs[step.run], step.chunk, step.layer, step.member if step.member in self.names.members else 0)
        return [*self.records[: self.refused[0]], show]

    @property
    def shape(self) -> tuple[Any, ...]:
        """What traces judged together have in common."""
        plan = self.names.plan
        alone = id(self) if len(self.records) >= LONG else 0
        return plan.layers, plan.shared, plan.shared_slots, self.names.prefill.read_lease, self.names.prefill.ranks, alone

    @property
    def lineage(self) -> dict[str, Any]:
        """Of which life each attempt and each run is, and the lanes of each life, by number."""
        names = self.names

        def numbers(of: Mapping[int, str], order: Mapping[int, int]) -> list[int]:
            return [names.lives[of[nonce]] for nonce in sorted(order, key=order.__getitem__)]

        return {"decodes": sum(life.startswith("decode") for life in names.lives), "born": numbers(names.attempt_of, names.attempts),
                "began": numbers(names.run_of, names.runs), "lanes": [names.lanes_of(life) for life in names.lives]}  # fmt: skip

    @property
    def counts(self) -> list[int]:
        """Chunks of attempt 1, 2, ..."""
        by_number = sorted((number, nonce) for nonce, number in self.names.attempts.items())
        return [self.names.chunks.get(nonce, 1) for _, nonce in by_number]


def judge(cases: Sequence[Case], on_progress: Callable[[int, int], None]) -> list[TraceRefused | SpecError | None]:
    """What is wrong with each trace: None, the refusal, or why it could not be judged."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, case in enumerate(cases):
        groups.setdefault(case.shape, []).append(number)
    out: dict[int, TraceRefused | SpecError | None] = {}
    for members in groups.values():
        out |= zip(members, _together([cases[n] for n in members], on_progress), strict=True)
    return [out[number] for number in range(len(cases))]


def _together(cases: list[Case], on_progress: Callable[[int, int], None]) -> list[TraceRefused | SpecError | None]:
    try:
        result = run(cases, on_progress)
    except SpecError as error:
        return [error] if len(cases) == 1 else [one for case in cases for one in _together([case], on_progress)]
    out: list[TraceRefused | SpecError | None] = []
    for which, case in enumerate(cases, 1):
        if f'<<"ENDED", {which}, "">>' in result.printed:
            out.append(None)
        elif problem := refusal(result.printed, which, case.lines, case.names, case.refused[1] if case.refused else ""):
            broken = case.refused is None and problem.why.startswith("after ")
            out.append(_with_before(case, problem) if broken else problem)
        elif len(cases) > 1:
            out += _together([case], on_progress)
        elif case.refused:
            out.append(TraceRefused(case.lines[case.refused[0]].where, case.refused[1]))
        else:
            index = min(result.distinct, len(case.lines)) - 1
            out.append(shown(case, index, f"{case.lines[index]} is no step of System here"))
    return out


def _with_before(case: Case, problem: TraceRefused) -> TraceRefused:
    """A property was found broken after a line: what stood before it, and what else was possible, is asked for anew."""
    index = next(n for n, line in enumerate(case.lines) if line.where == problem.where)
    return TraceRefused(problem.where, problem.why, (*problem.more, *shown(case, index, problem.why).more))


def shown(case: Case, index: int, why: str) -> TraceRefused:
    """The refusal of line `index` for a reason that was found elsewhere, with the state before it and what was possible; an
    earlier line's refusal if TLC does not come so far."""
    (found,) = _together([replace(case, refused=(index, why))], lambda done, lines: None)
    return found if isinstance(found, TraceRefused) else TraceRefused(case.lines[index].where, why)


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


def run(cases: Sequence[Case], on_progress: Callable[[int, int], None]) -> Result:
    """TLC's result for traces of one shape. Raises SpecError where it cannot judge them."""
    longest = max(len(case.records) for case in cases)

    def line(text: str) -> None:
        if found := PROGRESS.search(text):
            on_progress(min(int(found[1]), longest), longest)

    on_progress(0, longest)
    with tempfile.TemporaryDirectory(prefix="tidegate-trace-") as folder:
        data, config = Path(folder) / "TraceData.tla", Path(folder) / "trace.cfg"
        logs = ",\n".join("<<\n" + ",\n".join(map(tla, case.log)) + "\n>>" for case in cases)
        counts = tla([case.counts for case in cases])
        lineage = tla([case.lineage for case in cases])
        data.write_text(f"---- MODULE TraceData ----\nChunkCounts == {counts}\nLineage == {lineage}\nLogs == <<\n{logs}\n>>\n====\n")
        config.write_text(
            "SPECIFICATION TraceSpec\nCONSTANTS\n" + "".join(f"    {name} = {v}\n" for name, v in _constants(cases).items())
            + "    ChunksOf <- TraceChunks\nCONSTRAINT Judge\nVIEW TraceView\n"
        )  # fmt: skip
        module = root() / "tla" / "trace" / "RunTrace.tla"
        if not module.exists():
            raise SpecError(f"{module} is missing: run from a source checkout")
        jvm = tlc.LIGHT if sum(len(case.records) for case in cases) < LONG else ("-XX:+UseSerialGC",)
        return tlc.run_tlc(module, config, library=[Path(folder), *library()], jvm=(STACK, *jvm), on_line=line)


def _constants(cases: Sequence[Case]) -> dict[str, Any]:
    """The constants of System, large enough for each of the traces."""
    plan, lease = cases[0].names.plan, cases[0].names.prefill.read_lease
    attempts = tla(range(1, max(len(case.counts) for case in cases) + 1))
    lanes = [sum(case.names.width.values()) for case in cases]
    return {
        "Layers": tla(range(1, plan.layers + 1)), "Shared": tla(plan.shared), "SharedSlots": plan.shared_slots,
        "NumChunks": max(max(case.counts) for case in cases), "Runs": tla(range(1, max(len(case.names.runs) for case in cases) + 1)),
        "Attempts": attempts, "Blocks": attempts, "ReadLease": tla(lease), "Retiring": tla(True),
        "GivingWay": tla(True), "Members": tla(cases[0].names.members),
        "IndexerBlocks": len(cases[0].names.members), "Lanes": tla(range(1, max(lanes) + 1)),
    } | {f"Max{fault}": sum(len(case.records) for case in cases) for fault in BUDGETS}  # fmt: skip
