"""Runs the parts of the test suite one after another and adds them up.

Rules: every part runs even if an earlier one failed; a part without a single test fails; the last line is the total, a part
that is not pytest counting as one test; a part that prints nothing for SILENCE seconds hangs: it is killed with all that it
started, and has failed; the exit code is 1 if anything failed.  What the sessions of real processes are told is kept while the parts
run, and `coverage` compares it with tla/coverage.toml: it judges the parts before it, and needs e2e.

    python tests/run_parts.py [--long] [PART...]
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

SILENCE = {False: 900.0, True: 3600.0}  # s, by --long
ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
FOLDERS = ("unit", "conformance", "stateful", "simulation", "trace", "e2e")


def pytest_part(folder: str) -> list[list[str]]:
    """Two files at a time: most tests wait, for a process, TLC or a compiler; a file's fixtures are made once."""
    return [[str(BIN / "python"), "-m", "pytest", f"tests/{folder}", "--durations=3", "--numprocesses=2", "--dist=loadfile"]]


def parts(long: bool, folder: str) -> dict[str, list[list[str]]]:
    """Name -> commands; a part ends at its first command that fails.  folder: for what processes leave."""
    table = {
        "lint": [
            [str(BIN / "ruff"), "check", "."],
            [str(BIN / "mypy")],
            [str(BIN / "lint-imports")],
        ],
        "gen": [[str(BIN / "tidegate"), "gen", "--check"]],
    }
    table |= {folder: pytest_part(folder) for folder in FOLDERS}
    soak = [str(BIN / "tidegate"), "soak", "--minutes"]
    judged = [*soak, "10", "--trace", f"{folder}/soak"]
    table["soak"] = [judged, [*soak, "5", "--faults", "wire,strangers"]] if long else [[*soak, "1"]]
    table["coverage"] = [[str(BIN / "tidegate"), "coverage", f"{folder}/traces", "--processes", "--names", *([] if long else ["--some"])]]
    table["induction"] = [[str(BIN / "tidegate"), "check", "--induction", *(["--mutants"] if long else [])]]
    table["check"] = [[str(BIN / "tidegate"), "check", "--full" if long else "--quick"]]
    if long:
        table["strikes"] = [[str(BIN / "python"), "tests/e2e/strike_runs.py", "--edges", "--random", "1000", "--returns", "200"]]
        table["mutants"] = [[str(BIN / "tidegate"), "check", "--mutants"]]
        table["properties"] = [[str(BIN / "tidegate"), "check", "--properties"]]
    return table


def run_command(command: list[str], env: dict[str, str], silence: float) -> tuple[int, str]:
    """(exit code, last line) of a command; the output goes through as it comes."""
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def hangs() -> None:
        print(f"\n{' '.join(command)} printed nothing for {silence:g} s: killed", flush=True)
        os.killpg(process.pid, signal.SIGKILL)

    assert process.stdout is not None
    last = b""
    try:
        for chunk in in_time(process.stdout, silence, hangs):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            last = (last + chunk)[-10_000:]
        return process.wait(), (last.decode(errors="replace").strip().splitlines() or [""])[-1]
    finally:
        if process.poll() is None:  # we are interrupted: a session of its own gets no Ctrl-C
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def in_time(stream: IO[bytes], silence: float, hangs: Callable[[], None]) -> Iterator[bytes]:
    """What comes from a stream; `hangs` is called when nothing came for `silence` seconds."""
    while True:
        timer = threading.Timer(silence, hangs)
        timer.daemon = True
        timer.start()
        try:
            chunk = stream.read1(65536)  # type: ignore[attr-defined]
        finally:
            timer.cancel()
        if not chunk:
            return
        yield chunk


def run(commands: list[list[str]], env: dict[str, str], silence: float) -> tuple[int, int]:
    """(passed, failed) of one part."""
    for command in commands:
        code, last = run_command(command, env, silence)
        if "pytest" in command:
            counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", last)}
            failed = counts.get("failed", 0) + counts.get("error", 0)
            return counts.get("passed", 0), max(failed, 1) if code else failed
        if code:
            print(f"exit code {code}: {' '.join(map(os.path.basename, command[:1])) + ' ' + ' '.join(command[1:])}")
            return 0, 1
    return 1, 0


def run_all(names: list[str], table: dict[str, list[list[str]]], env: dict[str, str], silence: float) -> list[tuple[str, float, int, int]]:
    """(part, seconds, passed, failed) of each."""
    rows: list[tuple[str, float, int, int]] = []
    for name in names:
        print(f"== {name}", flush=True)
        begin = time.monotonic()
        passed, failed = run(table[name], env, silence)
        rows.append((name, time.monotonic() - begin, passed, failed))
        print(f"== {name}: {rows[-1][1]:.1f} s, {passed} passed, {failed} failed\n", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="larger bounds: TIDEGATE_LONG=1 for pytest, `tidegate check --full`")
    parser.add_argument("part", nargs="*", help="only these parts")
    args = parser.parse_args()
    names = [*parts(args.long, "")]
    if unknown := set(args.part) - set(names):
        parser.error(f"no part named {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    if "coverage" in args.part and "e2e" not in args.part[: args.part.index("coverage")]:
        parser.error("coverage judges what the processes of e2e walked: name e2e before it")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="parts-") as folder:
        (traces := Path(folder) / "traces").mkdir()
        env = os.environ | {"TIDEGATE_TRACES": str(traces)} | ({"TIDEGATE_LONG": "1"} if args.long else {})
        rows = run_all(args.part or names, parts(args.long, folder), env, SILENCE[args.long])
    for name, seconds, passed, failed in rows:
        print(f"{name:12} {seconds:7.1f} s  {passed:5} passed  {failed:3} failed")
    passed, failed = sum(r[2] for r in rows), sum(r[3] for r in rows)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
