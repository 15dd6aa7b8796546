"""Runs the parts of the test suite one after another and adds them up.

Rules: every part runs even if an earlier one failed; a part without a single test fails; the last line is the total, a part
that is not pytest counting as one test; the exit code is 1 if anything failed.

    python tests/run_parts.py [--long] [PART...]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
FOLDERS = ("unit", "conformance", "stateful", "simulation", "trace", "e2e")


def pytest_part(folder: str) -> list[list[str]]:
    """Two files at a time: most tests wait, for a process, TLC or a compiler; a file's fixtures are made once."""
    return [[str(BIN / "python"), "-m", "pytest", f"tests/{folder}", "--durations=3", "--numprocesses=2", "--dist=loadfile"]]


def parts(long: bool) -> dict[str, list[list[str]]]:
    """Name -> commands; a part ends at its first command that fails."""
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
    table["soak"] = [[*soak, "10"], [*soak, "5", "--faults", "wire,strangers"]] if long else [[*soak, "1"]]
    table["induction"] = [[str(BIN / "tidegate"), "check", "--induction", *(["--mutants"] if long else [])]]
    table["check"] = [[str(BIN / "tidegate"), "check", "--full" if long else "--quick"]]
    if long:
        table["mutants"] = [[str(BIN / "tidegate"), "check", "--mutants"]]
        table["properties"] = [[str(BIN / "tidegate"), "check", "--properties"]]
    return table


def run(commands: list[list[str]], env: dict[str, str]) -> tuple[int, int]:
    """(passed, failed) of one part; the output goes through as it comes."""
    for command in commands:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            sys.stdout.write(line)
            last = line if line.strip() else last
        code = process.wait()
        if "pytest" in command:
            counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", last)}
            failed = counts.get("failed", 0) + counts.get("error", 0)
            return counts.get("passed", 0), max(failed, 1) if code else failed
        if code:
            print(f"exit code {code}: {' '.join(map(os.path.basename, command[:1])) + ' ' + ' '.join(command[1:])}")
            return 0, 1
    return 1, 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--long", action="store_true", help="larger bounds: TIDEGATE_LONG=1 for pytest, `tidegate check --full`"
    )
    parser.add_argument("part", nargs="*", help="only these parts")
    args = parser.parse_args()
    table = parts(args.long)
    if unknown := set(args.part) - set(table):
        parser.error(f"no part named {', '.join(sorted(unknown))}: there are {', '.join(table)}")
    env = os.environ | ({"TIDEGATE_LONG": "1"} if args.long else {})
    rows: list[tuple[str, float, int, int]] = []
    for name in args.part or table:
        print(f"== {name}", flush=True)
        begin = time.monotonic()
        passed, failed = run(table[name], env)
        rows.append((name, time.monotonic() - begin, passed, failed))
        print(f"== {name}: {rows[-1][1]:.1f} s, {passed} passed, {failed} failed\n", flush=True)
    for name, seconds, passed, failed in rows:
        print(f"{name:12} {seconds:7.1f} s  {passed:5} passed  {failed:3} failed")
    passed, failed = sum(r[2] for r in rows), sum(r[3] for r in rows)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
