"""Fault schedules from the model: every edge that real processes reach, every fault before and after it; and faults at random steps.

    python tests/e2e/strike_runs.py [--state FILE] [--edges] [--random N] [--returns N] [--seed S]

Rules: what is to be done is a list that the model and a seed decide; a run does one kill at most, which ends it, and beside it several
faults that a run must survive; an edge that a run did not come to is tried in the other shapes of runs (`edge_tools`), and told at the
end if none comes to it; with a state file an interrupted list goes on where it was.  A run is right if it ends in time with a clear
verdict: each answer right or refused with a reason, or, where a worker was killed, the error that names it; and if nothing is left of
it, neither process nor file, nor memory of Decode that was not given back.  What comes after a kill, where whoever died returns and the
others go on, is `strike_returns`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from edge_tools import SHAPES, overlapping
from strike import ANY, Strike, argv, struck
from strike_returns import returns

from tidegate.engine import pair
from tidegate.engine.pair import PairError, run_pair
from tidegate.engine.report import compare
from tidegate.engine.soak.processes import alive
from tidegate.spec.coverage import believed, unwalked
from tidegate.spec.walks import Traced

__all__ = ["ROLES", "one_run", "random_strikes", "schedule"]

ROLES = {"PhysicalBuffer": "prefill", "Transfer": "prefill", "PrefillRun": "prefill", "PoolObject": "prefill"}
"""Whose machines they are; Decode's, the others."""
SHARED = "TIDEGATE_SHARED_MEMORY"
TOGETHER, LIMIT, LIVES = 12, 300.0, 8
"""Faults beside a kill in one run; seconds that a run may say nothing; kills in a deployment that goes on."""


def role_of(strike: Strike) -> str:
    return ROLES.get(strike.edge.partition(":")[0], "decode")


def schedule() -> list[Strike]:
    """Of every edge that a pair can reach."""
    edges = sorted(map(str, believed(unwalked(), Traced(set(), set())).pair))
    ways = [(when, fault) for when in ("before", "after") for fault in ("kill", "stop", "cut")] + [("after", "lose"), ("after", "double")]
    return [Strike(edge, when, fault) for edge in edges for when, fault in ways]  # type: ignore[arg-type]


def random_strikes(draw: random.Random, kill: bool) -> dict[str, list[Strike]]:
    """Of one run, by role: stops and cuts at random steps, and a kill of one of them."""
    def one(fault: str, most: int) -> Strike:
        return Strike(ANY, draw.choice(("before", "after")), fault, draw.randint(1, most), round(draw.uniform(0.05, 1.0), 2))  # type: ignore[arg-type]

    out = {role: [one(draw.choice(("stop", "cut")), 1500) for _ in range(TOGETHER // 2)] for role in ("prefill", "decode")}
    if kill:
        out[draw.choice(("prefill", "decode"))].append(one("kill", 2500))
    return out


def one_run(strikes: dict[str, list[Strike]], seed: int) -> tuple[list[Strike], str]:
    """(the strikes that happened, what is wrong; "" if nothing).  strikes: by role; seed: of `overlapping`."""
    with tempfile.TemporaryDirectory(prefix="strikes-") as folder:
        shared, pids = Path(folder) / "shared", dict[str, int]()
        shared.mkdir()
        before = os.environ.get(SHARED)
        os.environ[SHARED] = str(shared)
        notes = {role: Path(folder) / f"{role}.jsonl" for role in strikes}
        try:
            said = _verdict(seed, pids, {f"{role}_argv": argv(role, mine, notes[role]) for role, mine in strikes.items()}, notes)
        finally:
            os.environ.pop(SHARED) if before is None else os.environ.update({SHARED: before})
        left = [str(path.relative_to(shared)) for path in shared.rglob("*")]
        happened = [strike for path in notes.values() for strike in struck(path)]
        if not said and left:
            said = f"files are left: {', '.join(left)}"
        if not said and (there := [f"{name} ({pid})" for name, pid in pids.items() if alive(pid)]):
            said = f"processes are left: {', '.join(there)}"
    return happened, said


def _verdict(seed: int, pids: dict[str, int], commands: dict[str, list[str]], notes: dict[str, Path]) -> str:
    c = overlapping(seed)
    try:
        result = run_pair(c, timeout=LIMIT, on_started=pids.update, **commands)  # type: ignore[arg-type]
    except PairError as error:
        killed = [role for role, path in notes.items() if any(strike.fault == "kill" for strike in struck(path))]
        named = any(f"the {role} worker was killed by SIGKILL" in str(error) for role in killed)
        return "" if named else f"the run failed: {error}"
    compared = compare(c, result)
    if wrong := [one.request for n, one in enumerate(compared) if result.results[n].ok and not one.equal]:
        return f"WRONG ANSWERS: {', '.join(wrong)}"
    if dumb := [one.request for n, one in enumerate(compared) if not result.results[n].ok and not result.results[n].text]:
        return f"refused without a reason: {', '.join(dumb)}"
    d = result.stats["decode"]  # Prefill is stopped at once, and may not have heard of every end: the soak waits for its rest
    due = {"hot buffers": (d["places_free"], d["places"]), "blocks of Decode": (d["blocks_free"], d["blocks"])}
    return "; ".join(f"{free:g} of {all_:g} {name} came back" for name, (free, all_) in due.items() if free != all_)


class State(msgspec.Struct):
    """Of a long list.  done: strikes that happened, as words; tried: how often each that did not; struck: of the random ones, how many;
    returned: kills after which the killed came back."""

    seed: int
    done: list[str] = []
    tried: dict[str, int] = {}
    struck: int = 0
    returned: int = 0
    runs: int = 0
    found: list[str] = []


class Long:
    """All of it, to its end."""

    def __init__(self, state: State, path: Path | None) -> None:
        self.state, self._path, self._began = state, path, time.monotonic()

    def _after(self, text: str, wrong: str, seed: int, strikes: dict[str, list[Strike]]) -> None:
        what = "; ".join(f"{role}: {s}" for role, mine in strikes.items() for s in mine)
        self._did(text, [f"run {seed} with {what}: {wrong}"] if wrong else [])

    def _did(self, text: str, found: Sequence[str]) -> None:
        self.state.runs += 1
        for one in found:
            self.state.found.append(one)
            print(f"FOUND: {one}", flush=True)
        if self._path is not None:
            new = self._path.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(self.state))
            new.replace(self._path)
        print(f"{time.monotonic() - self._began:7.0f} s, run {self.state.runs}: {text}", flush=True)

    def edges(self) -> None:
        """Every strike of the schedule that can be made to happen."""
        state, everything = self.state, schedule()
        by_words = {str(strike): strike for strike in everything}
        while todo := [s for words, s in by_words.items() if words not in state.done and state.tried.get(words, 0) < 2 * len(SHAPES)]:
            first = min(todo, key=lambda s: (state.tried.get(str(s), 0), str(s)))
            shape = state.tried.get(str(first), 0)
            kill = [s for s in todo if s.fault == "kill"][:1]
            rest = [s for s in todo if s.fault != "kill" and state.tried.get(str(s), 0) == shape]
            random.Random(f"{state.seed}/{state.runs}").shuffle(rest)
            chosen = ([first] if first.fault == "kill" else kill) + rest[:TOGETHER]
            strikes = {role: [s for s in chosen if role_of(s) == role] for role in ("prefill", "decode")}
            happened, wrong = one_run(strikes, shape)
            state.done += [str(s) for s in happened]
            killed = any(s.fault == "kill" for s in happened)
            for s in chosen:
                if s not in happened and not (killed and s.fault != "kill"):  # it may not have come to it yet
                    state.tried[str(s)] = state.tried.get(str(s), 0) + 1
            self._after(f"{len(state.done)} of {len(everything)} faults before and after edges done", wrong, shape, strikes)
        if never := [words for words in by_words if words not in state.done]:
            print(f"{len(never)} were not come to: {'; '.join(never)}", flush=True)

    def random(self, most: int) -> None:
        """Until `most` random ones happened."""
        state = self.state
        while state.struck < most:
            draw = random.Random(f"{state.seed}/random/{state.runs}")
            strikes, seed = random_strikes(draw, kill=draw.random() < 0.7), draw.randrange(1000)
            happened, wrong = one_run(strikes, seed)
            state.struck += len(happened)
            self._after(f"{state.struck} of {most} random kills, stops and cuts done", wrong, seed, strikes)

    def returns(self, most: int) -> None:
        """Until `most` of those that were killed came back."""
        state = self.state
        while state.returned < most:
            found = returns(random.Random(f"{state.seed}/returns/{state.runs}").randrange(1 << 32), min(LIVES, most - state.returned))
            state.returned += min(LIVES, most - state.returned)
            self._did(f"{state.returned} of {most} kills after which the killed came back done", found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", action="store_true", help="every fault before and after every edge")
    parser.add_argument("--random", type=int, default=0, help="so many random kills, stops and cuts")
    parser.add_argument("--returns", type=int, default=0, help="so many random kills of servers that are started again while others go on")
    parser.add_argument("--state", type=Path, help="goes on from there, and keeps there how far it is")
    parser.add_argument("--seed", type=int, help="of what is random [a new one, which is told]")
    args = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    state = msgspec.json.decode(args.state.read_bytes(), type=State) if args.state and args.state.exists() else State(seed)
    print(f"seed {state.seed}", flush=True)
    pair.STOP_SECONDS = LIMIT  # this runs for hours, beside other things: whoever is slow to end then has not failed
    long = Long(state, args.state)
    if args.edges:
        long.edges()
    long.random(args.random)
    long.returns(args.returns)
    for one in state.found:
        print(f"FOUND: {one}")
    return 1 if state.found else 0


if __name__ == "__main__":
    sys.exit(main())
