"""What can be done to an honest trace, and the reason for which each must be refused."""

from __future__ import annotations

import json


def retold(folder, into, role, change):
    """A copy of a trace whose `role` file `change` (lines -> lines) has edited; seq is numbered anew."""
    into.mkdir()
    for path in folder.iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if path.stem.startswith(role):
            lines = change(lines)
        (into / path.name).write_text("".join(json.dumps(line | {"seq": n}) + "\n" for n, line in enumerate(lines)))
    return into


def find(lines, number=0, **fields):
    return [n for n, line in enumerate(lines) if all(line.get(k) == v for k, v in fields.items())][number]


def delivery(lines, tag, number=0):
    return [n for n, line in enumerate(lines) if line.get("message", {}).get("type") == tag][number]


def without(*patterns):
    def change(lines):
        for fields in patterns:
            del lines[find(lines, **fields)]
        return lines

    return change


def doubled(**fields):
    def change(lines):
        at = find(lines, **fields)
        return lines[: at + 1] + lines[at:]

    return change


def moved(source, target, number=0):
    """The (number-th) line `source` stands before the line `target`."""

    def change(lines):
        line = lines.pop(find(lines, number, **source))
        lines.insert(find(lines, **target), line)
        return lines

    return change


def changed(to, number=0, **fields):
    def change(lines):
        lines[find(lines, number, **fields)].update(to)
        return lines

    return change


def ready_epoch(lines):
    lines[delivery(lines, "READY")]["message"]["epoch"] += 1
    return lines


def no_read_done(lines):
    return [line for line in lines if line.get("message", {}).get("type") != "READ_DONE"]


def same_run(lines):
    lines[delivery(lines, "START", 1)]["run"] = lines[delivery(lines, "START")]["run"]
    return lines


def same_attempt(lines):
    lines[find(lines, 1, op="Admit")]["attempt"] = lines[find(lines, op="Admit")]["attempt"]
    return lines


def late_read_end(lines):
    """The read of the first step ends after Decode has said that it was done."""
    line = lines.pop(find(lines, kind="read_end"))
    lines.insert(find(lines, op="ReadEnd") + 1, line)
    return lines


def early_claim(lines):
    """The slot of the first step is claimed for the next one while its transfer is still held."""
    done = delivery(lines, "READ_DONE")
    claim = next(n for n, line in enumerate(lines) if line.get("op") == "Claim" and n > done)
    lines.insert(done, lines.pop(claim))
    return lines


def moved_rows(lines):
    lines[find(lines, kind="read_begin")]["ranges"][0][0] += 8
    return lines


def same_destination(lines):
    """The second attempt's first read lands where the first attempt's did."""
    reads = [lines[find(lines, n, kind="read_begin")] for n in range(12)]
    other = next(read for read in reads if read["run"] != reads[0]["run"])
    other["ranges"][0][1] = reads[0]["ranges"][0][1]
    return lines


P, D = "prefill", "decode"
BAD = {"tag": "0" * 16, "landed": "0" * 16}
TAMPERED = {
    "a dropped write": (P, without({"kind": "write_end"}), "its rows were written"),
    "no physical write": (P, without({"kind": "write_end"}, {"kind": "write_begin"}), "its rows were written"),
    "a missing save end": (P, without({"op": "SaveEnd"}), "PhysicalBuffer.CanClaim: the gate of the slot is open"),
    "a missing physical save": (P, without({"kind": "save_end"}), "its bytes were saved"),
    "a missing physical read": (D, without({"kind": "read_end"}), "its bytes landed: a read_end with ok"),
    "no physical attention": (P, without({"kind": "attend_end"}, {"kind": "attend_begin"}), "attended to"),
    "no LayerDone": (P, without({"op": "LayerDone"}), "PhysicalBuffer.CanClaim"),
    "a changed tag": (P, changed(BAD, kind="save_begin"), "what is saved is what was computed"),
    "a torn save": (P, changed(BAD, kind="save_end"), "still what was computed"),
    "a torn read": (D, changed({"landed": "0" * 16}, kind="read_end"), "what is read is what was computed"),
    "a wrong load": (P, changed(BAD, kind="load_end"), "what was loaded is what was saved"),
    "a changed epoch": (P, changed({"epoch": 2}, kind="write_begin"), "the slot is still in this epoch"),
    "a slot of another layer": (P, changed({"slot": 1}, kind="write_begin"), "the plan gives it slot 0"),
    "another epoch in READY": (D, ready_epoch, "epoch"),
    "other rows": (D, moved_rows, "read reads the bytes"),
    "another attempt's blocks": (D, same_destination, "lands in main at .* which has not ended"),
    "rows of another slot": (P, changed({"ranges": [[0, 32]]}, 3, kind="write_begin"), "reads the bytes|in common"),
    "swapped save and claim": (P, moved({"op": "Claim"}, {"op": "SaveEnd"}, number=1), "CanClaim: the gate of the slot is open"),
    "an early release": (P, early_claim, "CanClaim: the gate of the slot is open"),
    "a read past its end": (D, late_read_end, "its bytes landed"),
    "a read past its epoch": (D, moved({"kind": "read_end"}, {"kind": "end"}), "its bytes landed"),
    "a delivery before its send": (D, moved({"op": "Registered"}, {"op": "Schedule"}), "in a circle|does not fit"),
    "an event twice": (P, doubled(op="SaveEnd"), "its save is under way"),
    "a physical line twice": (P, doubled(kind="write_end"), "it began, with this slot and epoch"),
    "a read begun again": (D, doubled(kind="read_begin"), "it is read once, or again where that failed and has ended"),
    "a reused run": (P, same_run, "nonces never repeat"),
    "a reused attempt": (D, same_attempt, "nonces never repeat"),
    "READ_DONE that nobody sent": (D, without({"op": "ReadEnd"}), "never sent: no ReadEnd ok"),
    "READ_DONE that never came": (P, no_read_done, "COMMITTED is delivered and was never sent"),
    "a schedule too early": (D, moved({"op": "Schedule"}, {"op": "ReadEnd"}), "CanSchedule: every layer of every chunk"),
    "a truncated trace": (P, lambda lines: lines[:-20], "is delivered and was never sent: .* is the last line of one that died"),
    "another format": (D, changed({"format": 7}, kind="header"), "this release reads format 3"),
    "no header": (P, lambda lines: lines[1:], "begins with a header"),
    "an empty file": (P, lambda lines: [], "the file is empty"),
    "nothing but a header": (D, lambda lines: [lines[0], lines[-1]], "never admitted"),
    "an event of the other side": (P, changed({"op": "Schedule"}, kind="event"), "it is an action of decode"),
}  # fmt: skip

FORM = {
    "a delivery before its send", "a reused run", "a reused attempt", "READ_DONE that nobody sent", "READ_DONE that never came",
    "a truncated trace", "another format", "no header", "an empty file", "nothing but a header", "an event of the other side",
}  # fmt: skip
"""Refused before there is an order of lines, so before there is a state."""
