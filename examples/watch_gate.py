"""A callback on a gate: be told when a slot may be overwritten.

The slot is written by run 7 and then needed by its attention, its save and one remote read; the gate opens when the last of them
has ended, whichever that is.  Run: `python examples/watch_gate.py`; needs `pip install 'tidegate[phases]'`.
"""

from __future__ import annotations

from typing import Any

from tidegate.engine.phases import Life, phase_machine


def opened(event: Any) -> None:
    print(f"{event.event.name}: the gate of epoch {event.model.value.epoch} is open")


def main() -> None:
    gate = phase_machine("PhysicalBuffer")
    gate.on_enter_free(opened)
    slot: Life = gate.model
    print(f"from {slot.state} there is {', '.join(gate.get_triggers(slot.state))}")
    slot.trigger("Claim", run=7, load=False)
    slot.trigger("Write", run=7, work="layer 1", transfers=frozenset(("read 1",)), keep=False)
    for reader in ("attention", "save", "read"):
        print(f"released before its {reader} has ended: {slot.trigger('Release')}")
        match reader:
            case "attention":
                slot.trigger("Attended", work="layer 1")
            case "save":
                slot.trigger("SaveEnded", work="layer 1")
            case "read":
                slot.trigger("TransferEnded", transfer="read 1")
    slot.trigger("Release")


if __name__ == "__main__":
    main()
