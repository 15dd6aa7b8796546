"""Where the parts of a sequence diagram lie: columns, lanes of bars and messages, colours.

Rules: lifelines stand in the diagram's order, as far apart as their labels need; a bar or message takes the first lane that is free
while it lasts, and a second copy stays in the lane of the first; colours are given in the order in which contents appear.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tidegate.spec.diagram import Arrow, Bar, Diagram

__all__ = ["BAR", "CHAR", "LANE", "NEUTRAL", "ROW", "TOP", "Layout", "is_direct", "layout"]

ROW, TOP, GAP, LANE, BAR = 38, 86, 134, 13, 8
CHAR = 6.6  # of 11.5 px text, at most
PALETTE = (
    ("#1b6ca8", "#d6e9f8"), ("#b8651b", "#fbe6d0"), ("#2e8540", "#d9f0dd"), ("#8a3fa0", "#efdcf5"), ("#a8323e", "#f9dadd"),
    ("#5b6b12", "#eaf0c8"), ("#0f7b7b", "#d2eeee"), ("#6b4c3b", "#ecdfd7"),
)  # fmt: skip
NEUTRAL = ("#555d66", "#e8eaed")


@dataclass
class Layout:
    """Where things lie.  x: of each lifeline; side: -1 if its bars lie to the left, 1 to the right; lanes: of each bar and arrow."""

    diagram: Diagram
    x: dict[str, float] = field(default_factory=dict)
    side: dict[str, int] = field(default_factory=dict)
    lanes: dict[int, int] = field(default_factory=dict)
    colours: dict[str, tuple[str, str]] = field(default_factory=dict)
    text_width: float = 0
    width: float = 0
    network: tuple[float, float] = (0, 0)

    def y(self, row: float) -> float:
        return TOP + row * ROW + ROW / 2

    @property
    def bottom(self) -> float:
        return TOP + len(self.diagram.rows) * ROW + (ROW if self.diagram.loop == len(self.diagram.rows) else 14)

    def colour(self, name: str) -> tuple[str, str]:
        if not name:
            return NEUTRAL
        return self.colours.setdefault(name, PALETTE[len(self.colours) % len(PALETTE)])


def layout(diagram: Diagram) -> Layout:
    place = Layout(diagram)
    for band in diagram.bands:
        place.colour(band.colour)
    last = len(diagram.rows)
    rows = [52 + CHAR * (len(row.op) * 1.06 + len(row.text) + 2) for row in diagram.rows]
    place.text_width = max([*rows, 200, 52 + CHAR * (len(diagram.note) + 28) if diagram.mistake is not None else 0])
    count = defaultdict(int, {line.key: _lanes(place, [b for b in diagram.bars if b.line == line.key], last) for line in diagram.lines})
    messages = _message_lanes(place, last)
    x, seen = place.text_width, False
    for line in diagram.lines:
        bars = count[line.key] * LANE
        labels = max((CHAR * 0.92 * len(b.label) for b in diagram.bars if b.line == line.key), default=0.0)
        if line.kind == "network":
            seen = True
            place.network = (x, x + max(messages, 2) * LANE + 18)
            x = place.network[1] + GAP
        elif line.kind in ("memory", "state"):
            room = max(118, CHAR * 1.15 * len(line.title) + 24)
            place.x[line.key], x = x + room / 2 - 3, x + room
        else:
            place.side[line.key] = 1 if seen else -1
            room = max(bars + labels + 22, 62.0 if line.key == "client" else 84.0)
            place.x[line.key] = x + (36 if line.key == "pool" else 0) if seen else x + room
            x = place.x[line.key] + room + 8 if seen else x + room + (0 if line.key == "client" else GAP)
        place.x.setdefault(line.key, x)
    mark = CHAR * (len(diagram.verdict) + 4) if diagram.verdict else 0
    place.width = max(x + mark + 24, 16 + 10.5 * len(diagram.title))
    return place


def _lanes(place: Layout, bars: list[Bar], last: int) -> int:
    """Give each bar the first lane that is free; how many there are."""
    ends: list[float] = []
    for bar in sorted(bars, key=lambda b: b.begin):
        lane = next((i for i, end in enumerate(ends) if end <= bar.begin), len(ends))
        ends[lane : lane + 1] = [last if bar.end is None else bar.end]
        place.lanes[id(bar)] = lane
    return len(ends)


def _message_lanes(place: Layout, last: int) -> int:
    """Likewise for messages; a copy stays in the lane of its first."""
    ends: list[int] = []
    for arrow in place.diagram.arrows:
        if not is_direct(arrow):
            first = [a for a in place.diagram.arrows if arrow.copy and a is not arrow and a.label == arrow.label and a.got == arrow.sent]
            lane = place.lanes[id(first[-1])] if first else next((i for i, end in enumerate(ends) if end < arrow.sent), len(ends))
            end = last if arrow.got is None else arrow.got
            kept = [a.got if a.got is not None else last for a in place.diagram.arrows if a.copy and a.label == arrow.label]
            ends[lane : lane + 1] = [max([end, *kept])]
            place.lanes[id(arrow)] = lane
    return len(ends)


def is_direct(arrow: Arrow) -> bool:
    """Does it not pass the network?"""
    return arrow.source == "client" or arrow.target == "client"
