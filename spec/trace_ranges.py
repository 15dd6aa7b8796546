"""Holds the addresses of a trace together: which bytes a step's rows are.

Rules: a save and a read take exactly the bytes that the step's computation wrote; a load writes exactly the bytes of the chunk that it
loads, or, if its run gave way since, as many of them at another place, and always there until it gives way again; where ranks share a step
out, some of those bytes; the chunks of one layer lie apart, and so do the slots, and what lanes use at once; what two reads write lies
apart, unless one attempt was over before the other was admitted; adjacent ranges count as one.  Offsets are of 64 bits and TLC's numbers
of 32, so this is Python's part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tidegate.spec.trace_lines import Line, Physical, TraceRefused
from tidegate.spec.trace_shares import MAIN

__all__ = ["check_ranges"]

Ranges = tuple[tuple[int, int], ...]
Step = tuple[int, int, int, int]


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """(offset, length) sorted, empty ones dropped, adjacent ones joined."""
    out: list[tuple[int, int]] = []
    for offset, length in sorted(r for r in ranges if r[1]):
        if out and out[-1][0] + out[-1][1] == offset:
            out[-1] = (out[-1][0], out[-1][1] + length)
        else:
            out.append((offset, length))
    return tuple(out)


def overlap(ranges: list[tuple[int, int, str]]) -> tuple[str, str] | None:
    """Owners of two ranges (offset, length, owner) that meet, of different owners."""
    end, last = -1, ""
    for offset, length, owner in sorted(ranges):
        if offset < end and owner != last:
            return last, owner
        if offset + length > end:
            end, last = offset + length, owner
    return None


def check_ranges(lines: list[Line], lanes: Mapping[int, int], *, lease: bool) -> None:
    """Judge the begin lines of a merged trace. Raises TraceRefused.

    lanes: of each run; lease: may Prefill take a slot back while it is still read?
    """
    rows: dict[Step, Ranges] = {}
    where: dict[Step, str] = {}
    homes = _Homes()
    several = any(line.rank or (line.physical and line.physical.member) for line in lines)
    for line in lines:
        p = line.physical
        if line.op == "GiveWay":
            homes.leaves(line.arguments["run"], line.arguments["member"])
        if p is None or p.ranges is None or line.kind == "attend_begin":
            continue
        if line.kind == "write_begin":
            step = (p.run, p.chunk, p.layer, p.member)
            rows[step], where[step] = joined((r[0], r[1]) for r in p.ranges), line.where
            if not rows[step]:
                raise TraceRefused(line.where, "a computation that writes no byte: its rows have no range")
            homes.lives(step, rows[step], line.where)
            continue
        loads = line.kind == "load_begin"
        step = (p.run, (p.pool_chunk or 0) if loads else p.chunk, p.layer, p.member)
        moved = joined((r[1] if loads else r[0], r[2]) for r in p.ranges)
        if loads and step in rows and homes.moves(step, moved, rows[step], line.where):
            continue
        if step in rows and moved != rows[step] and not (several and not loads and _within(moved, rows[step])):
            verb = "writes" if loads else "reads"
            raise TraceRefused(line.where, f"{line.kind.split('_')[0]} {verb} the bytes {list(moved)}, the rows of the step are "
                               f"{list(rows[step])} (computed at {where[step]})")  # fmt: skip
    homes.check_apart()
    _slots_apart(lines, rows)
    if len(set(lanes.values())) > 1:
        _lanes(lines, lanes, lease)
    for life in dict.fromkeys(line.life for line in lines if line.role == "decode"):
        _destinations([line for line in lines if line.life == life])


def _within(some: Ranges, all_: Ranges) -> bool:
    """Is every byte of the one among those of the other?  What is missing then is asked of all ranks together (`trace_shares`)."""
    return all(any(at <= offset and offset + length <= at + size for at, size in all_) for offset, length in some)


class _Homes:
    """Where each run's rows lie at each rank, and that the chunks of a layer lie apart there: in one home, until the run gives way."""

    def __init__(self) -> None:
        self._home: Counter[tuple[int, int]] = Counter()  # (run, member) -> how often it gave way
        self._rows: dict[tuple[Step, int], tuple[Ranges, str]] = {}  # (step, home) -> its rows, and the line that says so

    def leaves(self, run: int, member: int) -> None:
        self._home[run, member] += 1

    def _key(self, step: Step) -> tuple[Step, int]:
        return step, self._home[step[0], step[3]]

    def lives(self, step: Step, rows: Ranges, where: str) -> None:
        self._rows[self._key(step)] = rows, where

    def moves(self, step: Step, loaded: Ranges, computed: Ranges, where: str) -> bool:
        """May these bytes be the step's rows from now on?  They may if the run has given way since they were anywhere."""
        key = self._key(step)
        if not key[1] or (key in self._rows and self._rows[key][0] != loaded):
            return False
        self._rows.setdefault(key, (loaded, where))
        return _bytes(loaded) == _bytes(computed)

    def check_apart(self) -> None:
        layers: dict[tuple[int, int, int, int], list[tuple[int, int, str]]] = {}
        for (step, home), (ranges, where) in self._rows.items():
            layers.setdefault((step[0], step[2], step[3], home), []).extend((*r, where) for r in ranges)
        for (run, layer, *_), found in layers.items():
            if met := overlap(found):
                raise TraceRefused(met[1], f"run {run} layer {layer}: this chunk is computed over the rows of the one at {met[0]}")


def _bytes(ranges: Ranges) -> int:
    return sum(length for _, length in ranges)


def _slots_apart(lines: list[Line], rows: dict[Step, Ranges]) -> None:
    """Slots lie apart in the memory of each rank."""
    slots: dict[tuple[str, int, int], set[tuple[int, int]]] = {}
    for line in lines:
        if line.kind == "write_begin" and (p := line.physical):
            slots.setdefault((line.life, p.member, p.slot), set()).update(rows[p.run, p.chunk, p.layer, p.member])
    for rank in sorted({whose[:2] for whose in slots}):
        if met := overlap([(*r, f"slot {whose[2]}") for whose, found in slots.items() if whose[:2] == rank for r in found]):
            raise TraceRefused("write_begin", f"{met[0]} and {met[1]} have bytes in common: one would overwrite the other behind its gate")


def _lanes(lines: list[Line], lanes: Mapping[int, int], lease: bool) -> None:
    """Runs of different lanes are in one slot at once, so in different blocks: what one writes or loads nobody of another still uses.

    A step's rows are used from the first byte that is written to the last that is read; a read that may be revoked does not count.
    """
    last: dict[Step, int] = {}
    for number, line in enumerate(lines):
        if (p := line.physical) and not (line.role == "decode" and (lease or p.ok is False)):
            last[p.run, p.chunk, p.layer, p.member] = number
    using: dict[tuple[str, int, int], dict[Step, tuple[Ranges, Line]]] = {}
    for number, line in enumerate(lines):
        p = line.physical
        if p is None or p.ranges is None or line.kind not in ("write_begin", "load_begin"):
            continue
        mine = joined((r[0], r[1]) if line.kind == "write_begin" else (r[1], r[2]) for r in p.ranges)
        there = using.setdefault((line.life, p.member, p.slot), {})
        for step, (ranges, other) in list(there.items()):
            if last[step] < number:
                del there[step]
            elif lanes[step[0]] != lanes[p.run] and overlap([*((*r, "") for r in ranges), *((*r, "mine") for r in mine)]):
                raise TraceRefused(line.where, f"{line}, of lane {lanes[p.run]}, writes over bytes of lane {lanes[step[0]]}, which "
                                   f"{lines[last[step]].where} still uses ({other} at {other.where})")  # fmt: skip
        there[p.run, p.chunk, p.layer, p.member] = joined([*there.get((p.run, p.chunk, p.layer, p.member), ((), line))[0], *mine]), line


def _destinations(lines: list[Line]) -> None:
    """Two reads write the same bytes only if their attempts own them one after the other.

    An attempt owns its blocks from its Admit at least to the last line by which it ends or a read of it ends.
    """
    since: dict[int, int] = {}
    until: dict[int, int] = {}
    attempt_of: dict[int, int] = {}
    reads: dict[str, list[tuple[int, int, int, Line]]] = {}
    begun: dict[tuple[int, int, int, int, int], Physical] = {}  # by rank and step
    for number, line in enumerate(lines):
        attempt = line.arguments.get("attempt", 0)
        if line.op == "Admit":
            since[attempt] = until[attempt] = number
        elif line.op in ("Finish", "Abort", "ReadEnd", "Landed"):
            until[attempt] = number
        elif line.op == "Deliver" and hasattr(message := line.arguments["message"], "transfer") and hasattr(message, "attempt"):
            attempt_of[message.transfer.run] = message.attempt
        elif line.kind == "read_begin" and (p := line.physical) and p.ranges and p.run in attempt_of:
            step = (line.rank, p.run, p.chunk, p.layer, p.member)
            if begun.setdefault(step, p) is not p and (begun[step].ranges, begun[step].regions) == (p.ranges, p.regions):
                continue  # tried again after a failure, into the step's own bytes; whether it might is judged elsewhere
            for (_, offset, length), name in zip(p.ranges, p.regions, strict=True):
                region = name if name.startswith(MAIN) or not line.rank else f"{name} of rank {line.rank}"  # main KV all ranks share
                reads.setdefault(region, []).append((offset, length, attempt_of[p.run], line))
    for region, found in reads.items():
        _owned(region, sorted(found, key=lambda read: read[:3]), since, until)


def _owned(region: str, reads: list[tuple[int, int, int, Line]], since: dict[int, int], until: dict[int, int]) -> None:
    active: list[tuple[int, int, Line]] = []  # end of the range, attempt, line
    for offset, length, attempt, line in reads:
        active = [one for one in active if one[0] > offset]
        for _, other, earlier in active if length else []:
            apart = since[attempt] > until[other] or since[other] > until[attempt]
            if earlier is not line and not apart:
                whose = f"those of attempt {other}, which has not ended" if other != attempt else "another step's"
                raise TraceRefused(line.where, f"{line} lands in {region} at {offset}, in bytes that are {whose} (read at {earlier.where})")
        active.append((offset + length, attempt, line))
