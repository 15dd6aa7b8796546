"""Draws a machine's phases and moves as SVG.

Rules: the longest way from the first phase lies on one line, left to right; what leads off it lies below (or above); a move that
skips a phase bends over the line, one that goes back bends under it; events that stay in a phase stand inside its box, where
they cross nothing.  No layout program is needed, and the same machine gives the same picture, byte for byte.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

import networkx as nx

__all__ = ["state_svg"]

CHAR, SMALL, GAP, DROP, PAD = 8.2, 6.2, 46, 104, 14
BAD = ("failed", "poisoned", "revoked")
STYLE = (
    "text{font-family:'DejaVu Sans',Verdana,'Segoe UI',Helvetica,Arial,sans-serif;font-size:13px;fill:#1f2328;text-anchor:middle}"
    ".p{font-weight:600}.e{font-size:10.5px;fill:#2b4a66}"
    ".i{font-size:9.5px;fill:#5a6470}path{fill:none;stroke:#5b7894;stroke-width:1.4}"
)
Moves = Mapping[tuple[str, str], set[str]]


@dataclass
class _Box:
    """A phase: its centre, size, and the events that stay in it."""

    name: str
    x: float
    y: float
    width: float
    height: float
    stays: list[str]


def state_svg(moves: Moves, first: str, title: str) -> str:
    """The picture of a machine.  moves: (phase, phase) -> events; first: the phase in which it begins."""
    graph = nx.DiGraph((a, b) for a, b in sorted(moves) if a != b)
    graph.add_node(first)
    onward = _onward(graph, first)
    main = _main(onward, first)
    boxes = _place(graph, onward, main, moves)
    edges = list(_edges(boxes, main, moves))
    left, top, right, bottom = _extent(boxes, edges)
    left -= 34  # where the first arrow comes from
    width, height = right - left + 2 * PAD, bottom - top + 2 * PAD
    start = boxes[first]
    entry = start.x - start.width / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{left - PAD:.0f} {top - PAD:.0f} {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect x="{left - PAD:.0f}" y="{top - PAD:.0f}" width="100%" height="100%" fill="#fff"/>',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0.6L7.5 4L0 7.4z" style="fill:#5b7894;stroke:none"/></marker></defs>',
        f'<circle cx="{entry - 28:.1f}" cy="{start.y:.1f}" r="5" fill="#22303f"/>',
        f'<path d="M{entry - 23:.1f} {start.y:.1f}H{entry - 1:.1f}" marker-end="url(#a)"/>',
        *(f'<path d="{edge.path}" marker-end="url(#a)"/>' for edge in edges),
        *(line for box in boxes.values() for line in _box(box, final=not graph.out_degree(box.name))),
        *(line for edge in edges for line in _label(edge)),
    ]
    return "\n".join([*parts, "</svg>", ""])


# ---- places --------------------------------------------------------------------------------------------------------------


def _onward(graph: nx.DiGraph, first: str) -> nx.DiGraph:
    """The moves that do not go back to where the machine may have come from."""
    out = nx.DiGraph()
    out.add_nodes_from(graph)
    far = nx.single_source_shortest_path_length(graph, first)
    for a, b in sorted(graph.edges, key=lambda move: (far[move[0]], far[move[1]], move)):
        if not nx.has_path(out, b, a):
            out.add_edge(a, b)
    return out


def _main(onward: nx.DiGraph, first: str) -> list[str]:
    """The longest way from the first phase; of several, the one that goes well."""
    ways = [way for last in onward if last != first for way in nx.all_simple_paths(onward, first, last)]
    return max(ways, key=lambda way: (len(way), -sum(name in BAD for name in way), [-ord(c) for c in "".join(way)]), default=[first])


def _place(graph: nx.DiGraph, onward: nx.DiGraph, main: list[str], moves: Moves) -> dict[str, _Box]:
    boxes = {}
    for name in sorted(graph):
        stays = textwrap.wrap(", ".join(sorted(moves.get((name, name), ()))), 24)
        width = max(CHAR * len(name) + 26, max((SMALL * len(line) for line in stays), default=0) + 16, 76)
        boxes[name] = _Box(name, 0, 0, width, 34 + (5 + 12 * len(stays) if stays else 0), stays)
    x = 0.0
    for k, name in enumerate(main):
        box = boxes[name]
        if k:
            text = max((SMALL * 1.12 * len(event) for event in moves[main[k - 1], name]), default=0.0)
            x += boxes[main[k - 1]].width / 2 + box.width / 2 + max(text + 22, GAP)
        box.x = x
    placed = list(main)
    for name in nx.topological_sort(onward):
        if name not in placed:
            box, before = boxes[name], [boxes[p] for p in onward.predecessors(name)]
            middle = sum(b.x for b in before) / len(before)
            box.x = middle if len(before) > 2 else max(b.x + b.width / 2 for b in before) + GAP + 26 + box.width / 2
            taken = [boxes[p] for p in placed if p not in main]
            clear = all(abs(b.x - box.x) > (b.width + box.width) / 2 + 20 for b in taken if b.y > 0)
            box.y = DROP if clear else -DROP * 0.8
            placed.append(name)
    return boxes


# ---- moves ---------------------------------------------------------------------------------------------------------------


@dataclass
class _Edge:
    """A move: its path, where its label stands, and the label's lines."""

    path: str
    x: float
    y: float
    events: list[str]


def _edges(boxes: dict[str, _Box], main: list[str], moves: Moves) -> Iterator[_Edge]:
    over = under = 0
    for (a, b), events in sorted(moves.items(), key=lambda move: (_span(move[0], main), move[0])):
        if a == b:
            continue
        here, there = boxes[a], boxes[b]
        names = sorted(events)
        if a in main and b in main and main.index(b) != main.index(a) + 1:
            ahead = main.index(b) > main.index(a)
            over, under = (over + 1, under) if ahead else (over, under + 1)
            yield _bent(here, there, names, -1 if ahead else 1, over if ahead else under)
        elif here.y == there.y:
            x1, x2 = here.x + here.width / 2, there.x - there.width / 2
            yield _Edge(f"M{x1:.1f} {here.y:.1f}H{x2 - 1:.1f}", (x1 + x2) / 2, here.y - 6, names)
        else:
            yield _across(here, there, names)


def _span(move: tuple[str, str], main: list[str]) -> int:
    return abs(main.index(move[0]) - main.index(move[1])) if move[0] in main and move[1] in main else 0


def _bent(here: _Box, there: _Box, names: list[str], way: int, level: int) -> _Edge:
    """A move that passes over (way -1) or under (1) the boxes between; level: the how many-th of its kind."""
    shift = 12 if way < 0 else -12
    x1, x2 = here.x + shift, there.x - shift
    y1, y2 = here.y + way * here.height / 2, there.y + way * there.height / 2
    peak = way * (max(here.height, there.height) / 2 + 30 + 24 * level)
    flat = peak + here.y
    k = min(36.0, abs(x2 - x1) / 3)
    s = 1 if x2 > x1 else -1
    path = (f"M{x1:.1f} {y1:.1f}C{x1:.1f} {flat:.1f} {x1:.1f} {flat:.1f} {x1 + s * k:.1f} {flat:.1f}"
            f"H{x2 - s * k:.1f}C{x2:.1f} {flat:.1f} {x2:.1f} {flat:.1f} {x2:.1f} {y2 + way:.1f}")  # fmt: skip
    at = x1 + (x2 - x1) * (0.26 if way < 0 else 0.5)  # off the middle, where the next one rises
    return _Edge(path, at, flat - 5, [", ".join(names)])


def _across(here: _Box, there: _Box, names: list[str]) -> _Edge:
    """A move between two rows: a straight line from border to border."""
    way = 1 if there.y > here.y else -1
    far = there.x - here.x
    y1 = here.y + way * here.height / 2
    x1 = here.x + max(-here.width / 3, min(here.width / 3, far / 4))
    if abs(far) > there.width / 2 + 70:  # into the side that it comes from
        x2, y2 = there.x - (there.width / 2 + 1) * (1 if far > 0 else -1), there.y - way * 4
    else:
        x2, y2 = there.x - max(-there.width / 3, min(there.width / 3, far / 4)), there.y - way * (there.height / 2 + 1)
    part = 0.42
    return _Edge(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", x1 + (x2 - x1) * part, y1 + (y2 - y1) * part + 4, names)


# ---- text ----------------------------------------------------------------------------------------------------------------


def _box(box: _Box, *, final: bool) -> Iterator[str]:
    x, y = box.x - box.width / 2, box.y - box.height / 2
    fill, stroke = ("#fbe3e4", "#a8323e") if box.name in BAD else ("#e4effa", "#1b5c94")
    yield (f'<rect x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="9" fill="{fill}" stroke="{stroke}" '
           f'stroke-width="1.5"/>')  # fmt: skip
    if final:
        yield (f'<rect x="{x + 3:.1f}" y="{y + 3:.1f}" width="{box.width - 6:.1f}" height="{box.height - 6:.1f}" rx="6.5" fill="none" '
               f'stroke="{stroke}"/>')  # fmt: skip
    yield f'<text x="{box.x:.1f}" y="{y + 22:.1f}" class="p">{escape(box.name)}</text>'
    for k, line in enumerate(box.stays):
        yield f'<text x="{box.x:.1f}" y="{y + 38 + 12 * k:.1f}" class="i">{escape(line)}</text>'


def _label(edge: _Edge) -> Iterator[str]:
    wide = SMALL * max(map(len, edge.events)) + 4
    yield (f'<rect x="{edge.x - wide / 2:.1f}" y="{edge.y - 12 * len(edge.events) + 2:.1f}" width="{wide:.1f}" '
           f'height="{12 * len(edge.events) + 1}" fill="#fff" fill-opacity="0.92"/>')  # fmt: skip
    for k, name in enumerate(edge.events):
        yield f'<text x="{edge.x:.1f}" y="{edge.y - 12 * (len(edge.events) - 1 - k):.1f}" class="e">{escape(name)}</text>'


def _extent(boxes: dict[str, _Box], edges: list[_Edge]) -> tuple[float, float, float, float]:
    left = min(b.x - b.width / 2 for b in boxes.values())
    right = max([*(b.x + b.width / 2 for b in boxes.values()), *(e.x + SMALL * 0.6 * max(map(len, e.events)) for e in edges)])
    top = min([*(b.y - b.height / 2 for b in boxes.values()), *(e.y - 12 * len(e.events) for e in edges)])
    bottom = max([*(b.y + b.height / 2 for b in boxes.values()), *(e.y + 10 for e in edges)])
    return left, top, right, bottom
