"""The benchmarks run: their rig for several rounds in each of its ways, the other programs on something tiny; nothing is measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SECONDS = 240.0  # only ever used up by what hangs


def run(code: str) -> str:
    """What `code` prints in a process of its own beside the benchmarks; it ends with everything that it started."""
    with subprocess.Popen([sys.executable, "-c", code], cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          start_new_session=True) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"it hangs, and has said {process.communicate()[0]!r}") from None
    assert process.returncode == 0, said
    return said


@pytest.mark.parametrize(("copies", "batched"), [(False, False), (True, True)])
def test_the_rig_goes_round_after_round(copies: bool, batched: bool) -> None:
    """A round whose predecessor has not given everything back waits for ever."""
    said = run("import control_plane; control_plane.LAYERS = 3; "
               f"control_plane.case(2, 4, in_flight=2, copies={copies}, rounds=2, batched={batched})")  # fmt: skip
    assert said.startswith("all " if copies else "control "), said
    assert " layers/s" in said, said


def test_the_other_programs_run() -> None:
    said = run("""
import fetch, machine_step, paired, pool, prefill_overlap, pull, residency
from prefill_rig import Rig
machine_step.generated(3), machine_step.with_transitions(3)
case = pool.Case(4)
case.memcpy(), case.through_pool(), case.through_pool(), case.pool.close()
asked, said = residency.drifting(1, 3), {}
runs = {name: residency.contender(name, 1, asked, said) for name in residency.available()[:1]}
assert len(paired.measure(runs, rounds=2, warm=1).ratios(*2 * [*runs])) == 2
print("all run")
""")
    assert said == "all run\n"
