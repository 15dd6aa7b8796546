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
from tidegate.engine.report import Comparison
from tidegate.spec import gen
from tidegate.spec.paths import root
from tidegate.spec.trace import check
from tidegate.spec.trace_lines import TraceRefused

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Comparison]]:
    folder = tmp_path_factory.mktemp("run")
    fault = FaultSpec(where="send", what="READ_DONE", mode="double", nth=2)
    return folder, run(config(trace=str(folder), decode_faults=(fault,)))[1]


@pytest.fixture
def recorded(told: tuple[Path, list[Comparison]]) -> Path:
    return told[0]


def test_a_real_run_is_accepted(told: tuple[Path, list[Comparison]]) -> None:
    """The trace is judged first: if bytes went wrong, it says which, and the tokens only that some did."""
    folder, compared = told
    accepted = check(folder)
    assert not [one for one in compared if not one.equal]
    assert accepted.attempts == 2
    assert accepted.steps == 7 * (4 + 3)
    assert accepted.physical["read_end"] == accepted.steps


def tampered(recorded: Path, tmp_path: Path, role: str, change: Callable[[Lines], None]) -> Path:
    """A copy of the run in which one file was changed and numbered anew."""
    folder = tmp_path / "tampered"
    shutil.copytree(recorded, folder)
    path = folder / f"{role}-0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line | {"seq": n}) + "\n" for n, line in enumerate(lines)))
    return folder


def first(lines: Lines, kind: str, **fields: Any) -> int:
    return next(n for n, x in enumerate(lines) if x["kind"] == kind and all(x.get(k) == v for k, v in fields.items()))


def never_written(lines: Lines) -> None:
    """Prefill answers a report about a transfer that it never published."""
    del lines[first(lines, "event", op="Write")]


def other_bytes(lines: Lines) -> None:
    lines[first(lines, "write_end")]["tag"] = "0" * 16


def read_past_its_epoch(lines: Lines) -> None:
    lines[first(lines, "read_begin")]["epoch"] += 1
    lines[first(lines, "read_end")]["epoch"] += 1


CASES: list[tuple[str, Callable[[Lines], None], str]] = [
    ("prefill", never_written, "READY is delivered and was never sent: no Write of that step"),
    ("prefill", other_bytes, "(what is (saved|read) is|its rows are still) what was computed"),  # whichever copy ends first
    ("decode", read_past_its_epoch, "the rows were computed in this epoch"),
]


@pytest.mark.parametrize(("role", "change", "reason"), CASES, ids=[change.__name__ for _, change, _ in CASES])
def test_a_real_run_that_was_tampered_with_is_refused(
    recorded: Path, tmp_path: Path, role: str, change: Callable[[Lines], None], reason: str
) -> None:
    """These need a real run; the other tamperings are in test_driven.py."""
    with pytest.raises(TraceRefused, match=reason):
        check(tampered(recorded, tmp_path, role, change))


def test_a_real_run_over_a_gate_that_does_not_wait_is_refused(tmp_path: Path) -> None:
    """Planted in the real process: the gate forgets the transfers; a slow pull then reads what was overwritten."""
    text = (root() / "tla/machines/PhysicalBuffer.tla").read_text().replace("/\\ s.transfers = {}\nRelease", "\nRelease")
    source = gen.compile_text("PhysicalBuffer", text)
    c = config(trace=str(tmp_path), decode_faults=(slow("read", 0.3, layer=1, chunk=1),))
    _, compared = run(c, prefill_argv=mutated("prefill", "physical_buffer", source))
    assert not all(one.equal for one in compared)
    with pytest.raises(TraceRefused):
        check(tmp_path)
