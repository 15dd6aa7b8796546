"""A worker that strikes itself at chosen labelled edges of its machines: the fault schedule of `strike_runs`, inside the process.

Rules: nothing of the product knows of it: it is installed by the command of a test's worker, over the generated machines and over what
says how often a message is sent; a strike happens once, at the nth time that its edge (or, for ANY, any edge) is taken: `before` is
before the session takes the step, `after` when it has accepted the event and none of its effects has begun; that it struck is written
to a file before anything else happens.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec

__all__ = ["ANY", "FAULTS", "Strike", "argv", "struck"]

ANY = "*"
FAULTS = ("kill", "stop", "cut", "lose", "double")
"""Of the process: -9, SIGSTOP and SIGCONT, its connections shut down; of the next message that it sends: lost, sent twice."""


class Strike(msgspec.Struct, frozen=True):
    """edge: `str(Edge)`, or ANY; seconds: of a stop."""

    edge: str
    when: Literal["before", "after"]
    fault: Literal["kill", "stop", "cut", "lose", "double"]
    nth: int = 1
    seconds: float = 0.3

    def __str__(self) -> str:
        return f"{self.fault} {self.when} {'step' if self.edge == ANY else self.edge} #{self.nth}"


def argv(role: str, strikes: Sequence[Strike], notes: Path) -> list[str]:
    """The command of a worker that does so.  notes: where it writes its strikes."""
    table = notes.with_suffix(".json")
    table.write_bytes(msgspec.json.encode(strikes))
    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import strike"
    return [sys.executable, "-c", f"{here}; strike.main({role!r}, {str(table)!r}, {str(notes)!r})"]


def struck(notes: Path) -> list[Strike]:
    """Those that happened."""
    return [msgspec.json.decode(line, type=Strike) for line in notes.read_bytes().splitlines()] if notes.exists() else []


def main(role: str, table: str, notes: str) -> None:
    worker = importlib.import_module(f"tidegate.engine.{role}_worker")
    Striker(msgspec.json.decode(Path(table).read_bytes(), type=list[Strike]), Path(notes)).install()
    worker.main()


class Striker:
    """copies: of the next messages, instead of one."""

    def __init__(self, strikes: Sequence[Strike], notes: Path) -> None:
        self._left, self._notes = list(strikes), notes
        self._seen: Counter[str] = Counter()
        self._due: list[Strike] = []  # once the event is accepted
        self._copies: list[int] = []

    def install(self) -> None:
        from tidegate.engine.fault_spec import MessageFaults
        from tidegate.protocol.session import Session
        from tidegate.spec.edges import machines

        for name, module in machines().items():
            for guard in [guard for guard in vars(module) if guard.startswith("Can") and guard[3:] in vars(module)]:
                setattr(module, guard[3:], self._watching(name, guard[3:], module))
        did, message = Session._did, MessageFaults.message

        def accepted(session: Any, op: str, effects: list[Any], **arguments: Any) -> list[Any]:
            did(session, op, effects, **arguments)
            due, self._due = self._due, []
            for strike in due:
                self._do(strike)
            return effects

        def copies(faults: Any, tag: str) -> tuple[int, float]:
            return (self._copies.pop(), 0.0) if self._copies else message(faults, tag)

        Session._did = accepted  # type: ignore[method-assign]
        MessageFaults.message = copies  # type: ignore[method-assign]
        MessageFaults.copies_of = lambda faults, tag: copies(faults, tag)[0]  # type: ignore[method-assign]

    def _watching(self, machine: str, op: str, module: ModuleType) -> Any:
        from tidegate.spec.edges import Edge, label, shape

        real = getattr(module, op)

        def step(state: Any, *arguments: Any) -> Any:
            after = real(state, *arguments)
            if self._left:
                self._took(str(Edge(machine, shape(state), label(op, arguments), shape(after))))
            return after

        return step

    def _took(self, edge: str) -> None:
        for name in (edge, ANY):
            self._seen[name] += 1
        for strike in [s for s in self._left if s.edge in (edge, ANY) and s.nth == self._seen[s.edge]]:
            self._left.remove(strike)
            if strike.when == "before":
                self._do(strike)
            else:
                self._due.append(strike)

    def _do(self, strike: Strike) -> None:
        with self._notes.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(strike) + b"\n")
        match strike.fault:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                goes_on = f"sleep {strike.seconds}; kill -CONT {os.getpid()}"
                subprocess.Popen(["sh", "-c", goes_on], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                os.kill(os.getpid(), signal.SIGSTOP)
            case "cut":
                from tidegate.engine.soak.processes import cut

                cut(os.getpid())
            case "lose" | "double":
                self._copies.append(0 if strike.fault == "lose" else 2)
