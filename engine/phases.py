"""Each machine as a `transitions` machine over its phases: for callbacks, introspection and diagrams.

Rules: states and transitions come from the phase graph that `tidegate draw` computes from the machine's reachable graph
(phase_table.py); whether an event is allowed, and where it leads, is asked of the generated machine alone; an event that stays
in its phase is an internal transition, so `on_enter_free` of a slot's gate is called when the gate opens, and only then.
The engine itself runs the generated functions, which are many times faster.  Needs the extra `phases` (the package `transitions`).
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
from types import ModuleType
from typing import Any

from tidegate.engine.phase_table import PHASES
from tidegate.protocol.phase import phase_of

__all__ = ["Life", "phase_machine"]


class Life:
    """The model of such a machine: `value` is the machine's whole state, `state` its phase, set by `transitions`.

    `life.trigger("Claim", run=7, load=False)`: the event's fields by name, as in the machine's Events.  It answers True if the
    machine took the event, False if its guard refused it; transitions.MachineError if no state of this phase allows it.
    """

    state: str

    def __init__(self, module: ModuleType, value: Any) -> None:
        self.module, self.value = module, value
        bounds = inspect.signature(module.Enabled).parameters.values()
        self._unbounded = {p.name: math.inf for p in bounds if p.kind is p.KEYWORD_ONLY}

    def after(self, op: str, **fields: Any) -> Any | None:
        """The state that the event leads to; None if the guard refuses it. TypeError for fields that no event has."""
        try:
            event = self.module.RECORDS[frozenset(("op", *fields))](op=op, **fields)
            return self.module.Step(self.value, event) if self.module.Enabled(self.value, event, **self._unbounded) else None
        except (KeyError, AttributeError):
            given = ", ".join(fields) or "no fields"
            raise TypeError(f"{op} with {given}: no event of {self.module.__name__} has just these; see its Events") from None

    def leads(self, event: Any) -> bool:
        """Condition of every transition: the machine allows the event, and it leads to this phase."""
        found = self.after(event.event.name, **event.kwargs)
        return found is not None and phase_of(found) == (event.transition.dest or event.transition.source)

    def move(self, event: Any) -> None:
        """Before the phase changes: the machine takes the event."""
        self.value = self.after(event.event.name, **event.kwargs)


def phase_machine(name: str, value: Any = None, **options: Any) -> Any:
    """A `transitions.Machine` of the machine `name` (as in tla/machines); its model is a Life.

    value: the state to begin with, the machine's Initial() if absent (ContributorGroup, whose group has members, needs one).
    options: for transitions.Machine.  Callbacks: `machine.on_enter_free(f)`, or any other that `transitions` knows; they get its
    EventData.  KeyError for an unknown machine.  Call it, and the Life, from one thread.
    """
    from transitions import Machine

    first, moves = PHASES[name]
    stem = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    module = importlib.import_module(f"tidegate.protocol.machines.{stem}")
    life = Life(module, module.Initial() if value is None else value)
    phases = list(dict.fromkeys([first, *(phase for _, a, b in moves for phase in (a, b))]))
    return Machine(
        life, states=phases, initial=phase_of(life.value), auto_transitions=False, send_event=True,
        transitions=[
            {"trigger": op, "source": a, "dest": None if a == b else b, "conditions": "leads", "before": "move"} for op, a, b in moves
        ],
        **options,
    )  # fmt: skip
