"""Runs of the two real processes over a machine that lacks one conjunct, and what harm that does.

Each scenario makes the moment that a guard is for come for certain (a slow copy, a failure, an answer that is lost); over the
machines as they are, every scenario is harmless, which is tested too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from pair_tools import MODEL, TEXT, mutated, slow

from tidegate.engine.config import FaultSpec, Request, RunConfig
from tidegate.engine.pair import PairError, run_pair
from tidegate.engine.report import compare
from tidegate.protocol.messages import TransferId
from tidegate.spec.mutants import Mutant, all_mutants
from tidegate.spec.trace import check
from tidegate.spec.trace_lines import TraceRefused
from tidegate.spec.world import Label, World

MACHINES = {"PhysicalBuffer": "prefill", "Transfer": "prefill", "ContributorGroup": "decode"}


def small(**changes: Any) -> RunConfig:
    """Two requests of 3 chunks each, 7 layers over 2 shared slots and an independent one."""
    settings: dict[str, Any] = {
        "requests": (Request("first", tuple(TEXT[:150])), Request("second", tuple(TEXT[11:150]))), "chunk": 50,
        "hot_buffer": 16, "block_size": 16, "poison": True,
        "new_tokens": 4, "resend_seconds": 0.1, "shared_buffers": 2, "independent_layers": (-1,),
        "deadline_seconds": 8.0, "model": MODEL | {"dtype": "float32"}, "tags": True,
    }  # fmt: skip
    return RunConfig(**(settings | changes)).checked()


def failing(where: str, mode: str, delay: float = 0.0, **names: Any) -> FaultSpec:
    return FaultSpec(where=where, mode=mode, delay=delay, **names)  # type: ignore[arg-type]


ASKS = "a thread that asks before it is told of the step ahead"
BEFORE = {ASKS: """
from tidegate.engine.prefill_core import PrefillCore
class Unseen(dict):
    def __setitem__(self, step, at): pass
begin = PrefillCore.__init__
def init(self, *arguments, **options):
    begin(self, *arguments, **options)
    self.open = Unseen()
PrefillCore.__init__ = init
"""}
"""Which code a Prefill worker runs first, so that a race has one end: here its computing thread always looks too early."""

SCENARIOS: dict[str, Callable[[], RunConfig]] = {
    "nothing special": small,
    ASKS: small,
    "a slow read": lambda: small(decode_faults=(slow("read", 0.8, layer=1, chunk=1),)),
    "a slow save": lambda: small(prefill_faults=(slow("save", 0.8, layer=1, chunk=1),)),
    "a slow load": lambda: small(prefill_faults=(slow("load", 0.5, layer=2, chunk=2, nth=1),)),
    "a slow attention over one slot": lambda: small(
        shared_buffers=1, prefill_faults=(slow("attend", 0.5, layer=1, chunk=2),)),
    "a run that fails while it loads": lambda: small(
        prefill_faults=(slow("load", 1.5, layer=2, chunk=2, nth=1),),
        decode_faults=(failing("read", "quiet", layer=1, chunk=2, nth=1),)),
    "a run that fails while the next one owns a slot": lambda: small(
        independent_layers=(-2, -1), decode_faults=(failing("read", "quiet", 2.0, layer=7, chunk=3, nth=1),)),
    "a revoked read whose answer comes late": lambda: small(
        read_lease=1.5, decode_faults=(slow("read", 4.0, layer=6, chunk=3, nth=1),),
        prefill_faults=(failing("send", "lose", what="RUN_FAILED"),)),
    "a read that lands after it failed": lambda: small(
        concurrency=1, decode_faults=(failing("read", "unknown", 2.5, layer=2, chunk=1, nth=1), slow("read", 4.0, layer=3, chunk=3))),
}  # fmt: skip


@cache
def mutants() -> dict[str, Mutant]:
    return {m.name: m for machine in MACHINES for m in all_mutants(machine)}


def listening(role: str, watched: Mapping[str, Mutant], notes: Path) -> list[str]:
    """The command of a worker that writes into `notes` the name of each watched conjunct that decides anything there."""
    table = notes.with_name(f"watched-{role}.json")
    mine = {name: m for name, m in watched.items() if MACHINES[m.machine] == role}
    table.write_text(json.dumps([(name, m.module.__name__, m.conjunct.guard, m.python()) for name, m in mine.items()]))
    return [
        sys.executable, "-c",
        "import contextlib, functools, importlib, json, pathlib\n"
        "from tidegate.spec.decisive import asked\n"
        "def note(name):\n"
        f"    with open({str(notes)!r}, 'a') as file:\n"
        "        file.write(name + '\\n')\n"
        "with contextlib.ExitStack() as stack:\n"
        f"    for name, module, guard, source in json.loads(pathlib.Path({str(table)!r}).read_text()):\n"
        "        stack.enter_context(asked(importlib.import_module(module), guard, source, functools.partial(note, name)))\n"
        f"    importlib.import_module('tidegate.engine.{role}_worker').main()\n",
    ]  # fmt: skip


class AsTheEngine(World):
    """A World driven as the Prefill worker drives its session: it asks about the first run that is not over and about no other,
    for one thread computes; and its leases are those of transfers for which READY is still worth repeating."""

    def worker(self) -> Iterator[Label]:
        every, going = self.running, (r for r in self.running if self.prefill.runs[r[1]].phase == "running")
        self.running = dict.fromkeys(list(going)[:1])
        labels = list(super().worker())
        self.running = every
        return iter(labels)

    def faults(self) -> Iterator[Label]:
        every = self.readies
        self.readies = {t: ready for t, ready in every.items() if self.prefill.is_held(TransferId(*t))}
        labels = list(super().faults())
        self.readies = every
        return iter(labels)


def harm(scenario: str, mutant: str = "", trace: str = "", watched: Mapping[str, Mutant] = {}) -> str:
    """What the run does that it must not, in words; "" if all is as it should be.  mutant: its name, or "" for none.
    trace: a folder for the run's trace; TLC judges it if nothing else is wrong.  watched: conjuncts that must not decide
    anything in either process (needs trace)."""
    c = msgspec.structs.replace(SCENARIOS[scenario](), trace=trace)
    argv: dict[str, list[str]] = {}
    if mutant:
        m = mutants()[mutant]
        role = MACHINES[m.machine]
        argv[f"{role}_argv"] = mutated(role, m.module.__name__.rsplit(".", 1)[1], m.python(), BEFORE.get(scenario, ""))
    notes = Path(trace) / "decided.txt"
    if watched:
        argv = {f"{role}_argv": listening(role, watched, notes) for role in ("prefill", "decode")}
    if scenario in BEFORE and not mutant:
        argv["prefill_argv"] = [sys.executable, "-c", f"{BEFORE[scenario]}\nfrom tidegate.engine.prefill_worker import main\nmain()\n"]
    due = {"first"} if "fail" in scenario or "revoked" in scenario else set()
    try:
        result = run_pair(c, timeout=30, **argv)
    except PairError as error:
        return f"died: {str(error).splitlines()[0]}"
    compared = compare(c, result)
    wrong = [one.request for n, one in enumerate(compared) if result.results[n].ok and not one.equal]
    failed = {one.request: one.reason for n, one in enumerate(compared) if not result.results[n].ok}
    if wrong:
        return f"wrong bytes: {', '.join(wrong)}"
    if failed.keys() != due:
        return f"failed: {failed}"
    free = result.stats["decode"]["places_free"], result.stats["prefill"]["slots_free"]
    if free != (c.concurrency, result.stats["prefill"]["slots"]):
        return f"leak: {free} places and slots are free"
    if watched and notes.exists():
        return f"decided: {', '.join(sorted(set(notes.read_text().split())))}"
    try:
        if trace:
            check(Path(trace))
    except TraceRefused as refused:
        return f"refused: {refused}"
    return ""
