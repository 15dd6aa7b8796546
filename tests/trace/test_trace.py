"""`tidegate trace`: a real run is accepted; the same run, tampered with, is refused for the stated reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pair_tools import config, mutated, run, slow

from tidegate.engine.config import FaultSpec
from tidegate.spec import gen
from tidegate.spec.paths import root
from tidegate.spec.trace import check
from tidegate.spec.trace_lines import TraceRefused

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    _, compared = run(config(trace=str(folder), decode_faults=(FaultSpec(where="send", what="READ_DONE", mode="double", nth=2),)))
    assert all(one.equal for one in compared)
    return folder


def test_a_real_run_is_accepted(recorded: Path) -> None:
    accepted = check(recorded)
    assert accepted.attempts == 2
    assert accepted.steps == 7 * (4 + 3)
    assert accepted.physical["read_end"] == accepted.steps


def tampered(recorded: Path, tmp_path: Path, role: str, change: Callable[[Lines], Lines | None]) -> Path:
    """A copy of the run in which one file was changed and numbered anew."""
    folder = tmp_path / "tampered"
    shutil.copytree(recorded, folder)
    path = folder / f"{role}-0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = change(lines) or lines
    path.write_text("".join(json.dumps(line | {"seq": n}) + "\n" for n, line in enumerate(lines)))
    return folder


def first(lines: Lines, kind: str, **fields: Any) -> int:
    return next(n for n, x in enumerate(lines) if x["kind"] == kind and all(x.get(k) == v for k, v in fields.items()))


def drop(kind: str, **fields: Any) -> Callable[[Lines], None]:
    return lambda lines: lines.pop(first(lines, kind, **fields)) and None


def edit(kind: str, change: dict[str, Any], **fields: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[first(lines, kind, **fields)].update(change)


def early_claim(lines: Lines) -> None:
    """Layer 3 claims the slot of layer 1 before the machine was told that layer 1's save has ended."""
    told = first(lines, "event", op="SaveEnd")
    claims = [n for n, x in enumerate(lines) if x["kind"] == "event" and x["op"] == "Claim"]
    lines.insert(max(told, claims[2]) + 1, lines.pop(told))


def read_past_its_epoch(lines: Lines) -> None:
    lines[first(lines, "read_begin")]["epoch"] += 1
    lines[first(lines, "read_end")]["epoch"] += 1


def repeat_event(lines: Lines) -> None:
    at = first(lines, "event", op="SaveEnd")
    lines.insert(at, lines[at])


CASES: list[tuple[str, str, Callable[[Lines], Any]]] = [
    ("prefill", "a missing computation", drop("write_end")),
    ("prefill", "a missing save end", drop("save_end")),
    ("decode", "a missing physical read", drop("read_end")),
    ("decode", "a missing machine event", drop("event", op="ReadEnd")),
    ("prefill", "an answer that was never earned", drop("event", op="Write")),
    ("prefill", "other bytes computed", edit("write_end", {"tag": "0" * 16})),
    ("decode", "other bytes landed", edit("read_end", {"landed": "0" * 16})),
    ("prefill", "other bytes saved", edit("save_end", {"tag": "0" * 16})),
    ("prefill", "another epoch", edit("write_begin", {"epoch": 7})),
    ("decode", "a read past its epoch", read_past_its_epoch),
    ("prefill", "a gate opened before its save ended", early_claim),
    ("prefill", "an event twice", repeat_event),
    ("decode", "nothing but a header", lambda lines: [lines[0], lines[-1]]),
    ("decode", "a file cut off", lambda lines: lines[: len(lines) // 2]),
    ("prefill", "another format", edit("header", {"format": 99})),
]  # fmt: skip


@pytest.mark.parametrize(("role", "what", "change"), CASES, ids=[what for _, what, _ in CASES])
def test_a_tampered_run_is_refused(recorded: Path, tmp_path: Path, role: str, what: str, change: Callable[[Lines], Any]) -> None:
    folder = tampered(recorded, tmp_path, role, change)
    with pytest.raises((TraceRefused, ValueError)) as refused:
        check(folder)
    assert f"{role}-0.jsonl" in str(refused.value) or "-0.jsonl" in str(refused.value), refused.value


def test_a_real_run_over_a_gate_that_does_not_wait_is_refused(tmp_path: Path) -> None:
    """Planted in the real process: the gate forgets the transfers; a slow pull then reads what was overwritten."""
    text = (root() / "tla/machines/PhysicalBuffer.tla").read_text().replace("/\\ s.transfers = {}\nRelease", "\nRelease")
    source = gen.compile_text("PhysicalBuffer", text)
    c = config(trace=str(tmp_path), decode_faults=(slow("read", 0.3, layer=1, chunk=1),))
    _, compared = run(c, prefill_argv=mutated("prefill", "physical_buffer", source))
    assert not all(one.equal for one in compared)
    with pytest.raises(TraceRefused):
        check(tmp_path)
