"""What ranks share out among themselves: of a step's rows each saves some, and each sends some.

Rules: together they move all rows, and none of them twice: main KV once for all of Decode, the indexer's rows once for each Decode
rank, saves once; a rank that moves nothing has no physical line, and then others have moved everything; what a rank moved is what was
computed if each range has the tag that the computation left in it.  TLC knows one tag for a step, so a share of right bytes goes by
the tag of them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.protocol.topology import Topology
from tidegate.spec.trace_lines import Line, Physical, TraceRefused

__all__ = ["MAIN", "Shares"]

Step = tuple[int, int, int, int]
Range = tuple[int, int]
MAIN = "main"
"""What regions of main KV are called, or begin with; the others are of the indexer, of which each Decode rank has all."""


@dataclass
class _Rows:
    """What was computed: of each range what lies in it, and its tag; and the tag of all."""

    regions: dict[Range, str]
    tags: dict[Range, str] = field(default_factory=dict)
    tag: str = ""


class Shares:
    """Of a merged trace.  With one rank on each side there is nothing to share, and nothing is asked here."""

    def __init__(self, lines: Sequence[Line], topology: Topology) -> None:
        self._topology = topology
        self._rows: dict[Step, _Rows] = {}
        self._moves: dict[tuple[str, Step], Line] = {}  # ("save" or "read", step) -> its begin
        if topology.p_tp == 1:
            return
        for line in lines:
            if (p := line.physical) is None:
                continue
            if line.kind == "write_begin":
                self._rows[_step(p)] = _Rows(dict(zip(_sources(p), p.regions, strict=True)))
            elif line.kind == "write_end" and (rows := self._rows.get(_step(p))):
                rows.tag, rows.tags = p.tag or "", dict(zip(rows.regions, p.tags or (), strict=False))
            elif line.kind in ("save_begin", "read_begin"):
                self._moves.setdefault((line.kind.partition("_")[0], _step(p)), line)

    def tag_of(self, line: Line) -> str:
        """The tag that TLC is told: of a share the tag of the whole step, if each of its ranges has the right one.  Raises TraceRefused."""
        p = line.physical
        assert p is not None
        what, _, _ = line.kind.partition("_")
        begin = self._moves.get((what, _step(p)))
        if begin is None or begin.physical is None:  # no share: a whole step, or nobody shares
            return p.tag or ""
        rows, moved, tags = self._rows.get(_step(p)), _sources(begin.physical), p.tags or ()
        if len(tags) != len(moved):  # an end has no ranges of its own to be counted by, and of no tag nothing is wrong
            raise TraceRefused(line.where, f"{line} has tags of {len(tags)} ranges, {begin.where} began {len(moved)}: one for each")
        if rows is None or any(rows.tags.get(one) != tag for one, tag in zip(moved, tags, strict=True)):
            return f"other: {p.tag}"
        return rows.tag

    def is_empty(self, line: Line) -> bool:
        """Does a SaveEnd or ReadEnd tell of a share in which there is nothing?"""
        step: Step = tuple(line.arguments["transfer"])
        well = line.arguments.get("ok", line.arguments.get("how") == "ok")
        return well and self._topology.p_tp > 1 and ("save" if line.op == "SaveEnd" else "read", step) not in self._moves

    def check(self, lines: Sequence[Line]) -> None:
        """Every step that all ranks saved, or sent, was saved, or sent, whole. Raises TraceRefused."""
        if self._topology.p_tp == 1:
            return
        ends: dict[tuple[str, tuple[int, int, int]], set[int]] = {}
        for line in lines:
            if line.op not in ("SaveEnd", "ReadEnd"):
                continue
            what = line.op[:4].lower()
            *step, member = line.arguments["transfer"]
            if not line.arguments.get("ok", line.arguments.get("how") == "ok"):
                continue
            ended = ends.setdefault((what, (step[0], step[1], step[2])), set())
            ended.add(member)
            if len(ended) == self._topology.p_tp:
                self._whole(what, (step[0], step[1], step[2]), line)

    def _whole(self, what: str, step: tuple[int, int, int], last: Line) -> None:
        every = range(self._topology.p_tp)
        if what == "save":
            self._once(what, step, every, [True, False], last, "")
            return
        self._once(what, step, every, [True], last, "")
        for d_rank in range(self._topology.d_tp):
            self._once(what, step, self._topology.group(d_rank), [False], last, f" for Decode rank {d_rank}")

    def _once(self, what: str, step: tuple[int, int, int], members: Sequence[int], kinds: list[bool], last: Line, whom: str) -> None:
        """Of the rows that are main KV (True) or not, the members move each once."""
        moved: dict[Range, Line] = {}
        rows = self._rows.get((*step, members[0]))
        due = {one for one, region in rows.regions.items() if region.startswith(MAIN) in kinds} if rows else set()
        for member in members:
            begin = self._moves.get((what, (*step, member)))
            if begin is None or begin.physical is None:
                continue
            for one in due.intersection(_sources(begin.physical)):
                if one in moved:
                    raise TraceRefused(begin.where, f"{begin} takes the bytes at {one[0]}, which {moved[one].where} takes too: ranks "
                                       f"share a step's rows, and each row is {_done(what)} once{whom}")  # fmt: skip
                moved[one] = begin
        if missing := sorted(due - moved.keys()):
            region = rows.regions[missing[0]] if rows else ""
            raise TraceRefused(last.where, f"{last}: by now all ranks have {_done(what)} their share of run {step[0]} chunk {step[1]} "
                               f"layer {step[2]}, and {region} at {missing[0][0]} was {_done(what)} by none{whom}")  # fmt: skip


def _done(what: str) -> str:
    return "saved" if what == "save" else "read"


def _step(p: Physical) -> Step:
    return p.run, p.chunk, p.layer, p.member


def _sources(p: Physical) -> list[Range]:
    return [(one[0], one[-1]) for one in p.ranges or ()]
