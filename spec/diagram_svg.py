"""Draws a sequence diagram as SVG.

Rules: every row has one height, so rows, arrows and bars line up; a message runs level from its sender into the network, waits there
in a lane of its own, and runs level to its receiver, so no two labels meet; bars and their labels lie on the side of a lifeline
that faces away from the network; the same diagram gives the same text, byte for byte.  No font is needed but the reader's own:
widths are estimated for a wide one.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable
from xml.sax.saxutils import escape

from tidegate.spec.diagram import NETWORK, Arrow, Diagram, Lifeline
from tidegate.spec.diagram_layout import BAR, CHAR, LANE, NEUTRAL, ROW, TOP, Layout, is_direct, layout
from tidegate.spec.diagram_legend import legend

__all__ = ["svg"]

RED, GREEN, AMBER = "#c0182b", "#1f7a34", "#a15c00"
STYLE = (
    "text{font-family:'DejaVu Sans',Verdana,'Segoe UI',Helvetica,Arial,sans-serif;font-size:11.5px;fill:#1f2328}"
    ".b{font-weight:600}.s{font-size:10px}.n{fill:#8a9199}.h{font-weight:600;font-size:12.5px}.t{font-size:16px;font-weight:600}"
    ".m{font-size:10px;font-weight:600}"
)


def svg(diagram: Diagram) -> str:
    """The picture as an SVG document that ends in a newline."""
    place = layout(diagram)
    parts = [*_background(place), *_bands(place), *_lifelines(place), *_bars(place), *_arrows(place), *_rows(place)]
    foot = _foot(place)
    key, key_height = legend(diagram, place.width, place.bottom + 38 + 17 * len(foot))
    height = place.bottom + 40 + 17 * len(foot) + key_height
    parts += [*_footer(place, foot), *key]
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{place.width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {place.width:.0f} {height:.0f}" role="img"><title>{escape(diagram.title)}</title><style>{STYLE}</style>'
            f'<rect width="100%" height="100%" fill="#fff"/>')  # fmt: skip
    return "\n".join([head, _text(16, 28, diagram.title, "t"), *parts, "</svg>", ""])


# ---- parts ---------------------------------------------------------------------------------------------------------------


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start", fill: str = "") -> str:
    extra = (f' class="{style}"' if style else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    extra += f' style="fill:{fill}"' if fill else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(text)}</text>'


def _line(points: Iterable[tuple[float, float]], colour: str, width: float = 1.4, extra: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{extra}/>'


def _head(x: float, y: float, way: int, colour: str) -> str:
    return f'<path d="M{x:.1f} {y:.1f}l{-7 * way} -3.6v7.2z" fill="{colour}"/>'


def _background(place: Layout) -> list[str]:
    out = []
    for i in range(0, len(place.diagram.rows), 2):
        out.append(f'<rect x="0" y="{TOP + i * ROW}" width="{place.width:.0f}" height="{ROW}" fill="#f7f8fa"/>')
    last = len(place.diagram.rows)
    if place.diagram.verdict and last and place.diagram.loop in (None, last):  # of a loop every row is as it should be
        fill = "#e3f5e7" if place.diagram.good else "#fde4e6"
        y = TOP + (last - 1 if place.diagram.loop is None else last) * ROW
        out.append(f'<rect x="0" y="{y}" width="{place.width:.0f}" height="{ROW}" fill="{fill}"/>')
    if (row := place.diagram.mistake) is not None:  # over a part of the harm's row, where they are one
        width = place.text_width if row == (last - 1 if place.diagram.loop is None else last) else place.width
        out.append(f'<rect x="0" y="{TOP + row * ROW}" width="{width:.0f}" height="{ROW}" fill="#ffedc9"/>')
    left, right = place.network
    out.append(f'<rect x="{left:.1f}" y="{TOP - 6}" width="{right - left:.1f}" height="{place.bottom - TOP + 12:.1f}" rx="6" '
               f'fill="#eceff3" opacity="0.8"/>')  # fmt: skip
    return out


def _bands(place: Layout) -> list[str]:
    out = []
    for band in place.diagram.bands:
        end = len(place.diagram.rows) if band.end is None else band.end
        strong, soft = place.colour(band.colour)
        x, y = place.x[band.line] - 46, place.y(band.begin)
        bottom = place.bottom if band.end is None else place.y(end)
        out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="92" height="{bottom - y:.1f}" fill="{soft}" stroke="{strong}" '
                   f'stroke-width="0.8"/>')  # fmt: skip
        for k, text in enumerate(band.label.split("\n")):
            if y + 11 + 11 * k < bottom:
                out.append(_text(place.x[band.line], y + 12 + 11 * k, text, "m" if k == 0 else "s", "middle", strong))
    return out


def _lifelines(place: Layout) -> list[str]:
    out = []
    for line in place.diagram.lines:
        if line.kind == "network":
            x = sum(place.network) / 2
        else:
            x = place.x[line.key]
            if line.kind == "party":
                out.append(_line([(x, TOP - 8), (x, place.bottom)], "#b3bac2", 1.2))
        out += _title(line, x, TOP - 26)
    return out


def _title(line: Lifeline, x: float, y: float) -> list[str]:
    width = max(CHAR * 1.15 * len(line.title) + 18, 56)
    fill = {"party": "#22303f", "network": "#6b7683", "memory": "#4a5b46", "state": "#5d5470"}[line.kind]
    return [f'<rect x="{x - width / 2:.1f}" y="{y - 15:.1f}" width="{width:.1f}" height="24" rx="5" fill="{fill}"/>',
            _text(x, y + 2, line.title, "h", "middle", "#fff")]  # fmt: skip


def _bars(place: Layout) -> list[str]:
    out = []
    lanes: dict[str, int] = defaultdict(int)
    for bar in place.diagram.bars:
        lanes[bar.line] = max(lanes[bar.line], place.lanes[id(bar)] + 1)
    at: dict[tuple[str, float], int] = defaultdict(int)
    for bar in place.diagram.bars:
        side, strong = place.side[bar.line], RED if bar.bad else place.colour(bar.colour)[0]
        x = place.x[bar.line] + side * (4 + LANE * place.lanes[id(bar)] + BAR / 2)
        top = place.y(bar.begin)
        bottom = place.bottom if bar.end is None else max(place.y(bar.end), top + 6)
        out.append(f'<rect x="{x - BAR / 2:.1f}" y="{top:.1f}" width="{BAR}" height="{bottom - top:.1f}" rx="2" fill="{strong}" '
                   f'fill-opacity="0.55" stroke="{strong}"/>')  # fmt: skip
        if bar.end is None:
            out.append(f'<path d="M{x - BAR / 2:.1f} {bottom + 1:.1f}h{BAR}l{-BAR / 2} 6z" fill="{strong}"/>')
        k = at[bar.line, bar.begin]
        at[bar.line, bar.begin] += 1
        away = place.x[bar.line] + side * (8 + LANE * lanes[bar.line])
        out.append(_text(away, top + 4 + 11 * k, bar.label, "s", "start" if side > 0 else "end", strong))
    return out


def _arrows(place: Layout) -> list[str]:
    out = []
    sends: dict[tuple[str, int], int] = defaultdict(int)
    for arrow in place.diagram.arrows:
        if is_direct(arrow):
            y, left, right = place.y(arrow.sent), place.x[arrow.source], place.x[arrow.target]
            out += [_line([(left, y), (right, y)], NEUTRAL[0]), _head(right, y, 1 if right > left else -1, NEUTRAL[0])]
            continue
        k = sends[arrow.source, arrow.sent]
        if not arrow.copy:
            sends[arrow.source, arrow.sent] += 1
        out += _message(place, arrow, k)
    return out


def _message(place: Layout, arrow: Arrow, k: int) -> list[str]:
    """One message; it is the k-th that its sender sends in this row."""
    colour = place.colour(arrow.colour)[0]
    lane = place.network[0] + 9 + LANE * place.lanes[id(arrow)] + LANE / 2
    begin, left = place.y(arrow.sent) + (-5 if arrow.copy else 6 + 10 * k), place.x.get(arrow.source, lane)
    end = place.bottom if arrow.got is None else place.y(arrow.got) - (0 if arrow.lost else 5)
    dash = ' stroke-dasharray="5 3"' if arrow.copy else ""
    points = [(lane, begin), (lane, end)] if arrow.copy else [(left, begin), (lane, begin), (lane, end)]
    out = []
    if not arrow.copy:
        out += _label(place, arrow, left, begin + 9, colour, place.side.get(arrow.source, -1))
    if arrow.lost:
        cross = f"M{lane - 5:.1f} {end - 5:.1f}l10 10m0 -10l-10 10"
        out += [_line(points, colour, 1.5, dash), f'<path d="{cross}" stroke="{AMBER}" stroke-width="2.4"/>']
    elif arrow.got is None:
        out += [_line(points, colour, 1.5, dash), f'<circle cx="{lane:.1f}" cy="{end:.1f}" r="3.2" fill="#fff" stroke="{colour}"/>']
    else:
        right = place.x[arrow.target]
        way = 1 if right > lane else -1
        out += [_line([*points, (right, end)], colour, 1.5, dash), _head(right, end, way, colour)]
        out += _label(place, arrow, right, end - 3.5, colour, place.side.get(arrow.target, 1))
    return out


def _label(place: Layout, arrow: Arrow, x: float, y: float, colour: str, side: int) -> list[str]:
    """The message's name, between the lifeline at x and the network."""
    anchor = "start" if side < 0 else "end"
    return [_text(x - side * 10, y, arrow.label, "s", anchor, colour)]


def _rows(place: Layout) -> list[str]:
    out = []
    for i, row in enumerate(place.diagram.rows):
        y = place.y(i)
        hint = f"<title>{escape(row.hint)}</title>" if row.hint else ""
        out.append(f'<text x="34" y="{y + 4:.1f}" text-anchor="end" class="n">{row.number}</text>')
        out.append(f'<text x="44" y="{y + 4:.1f}">{hint}<tspan class="b">{escape(row.op)}</tspan> {escape(row.text)}</text>')
        if row.line == NETWORK:
            out.append(_dot(place.network[1] - 7, y, row.fault))  # beside the lanes of the messages
        elif row.line in place.x:
            out.append(_dot(place.x[row.line], y, row.fault))
    return out + _marks(place) + _ends(place)


def _dot(x: float, y: float, fault: bool) -> str:
    """Who takes a step; a diamond where the outside world does."""
    if fault:
        return f'<path d="M{x - 5:.1f} {y:.1f}l5 -5l5 5l-5 5z" fill="#fff" stroke="{AMBER}" stroke-width="1.8"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="#22303f"/>'


def _marks(place: Layout) -> list[str]:
    """The mistake and what is right instead, below the step's own text."""
    diagram, row = place.diagram, place.diagram.mistake
    if row is None:
        return []
    one = row == (len(diagram.rows) - 1 if diagram.loop is None else diagram.loop) and diagram.verdict
    text = f"▲ the mistake{' and the harm' if one else ''}" + (f": {diagram.note}" if diagram.note else "")
    out = [_text(44, place.y(row) + 16, text, "m", fill=AMBER)]
    if not one and diagram.rows and diagram.loop is None:
        out.append(_text(44, place.y(len(diagram.rows) - 1) + 16, "▲ the harm", "m", fill=RED))
    return out


def _ends(place: Layout) -> list[str]:
    """The mark at the last row, and what repeats for ever."""
    diagram, out = place.diagram, []
    last = len(diagram.rows)
    colour = GREEN if diagram.good else RED
    if diagram.verdict and last:
        mark = f"{'✓' if diagram.good else '✗'} {diagram.verdict}"
        out.append(_text(place.width - 12, place.y(last if diagram.loop == last else last - 1) + 4, mark, "b", "end", colour))
    if diagram.loop == last:
        out.append(_text(44, place.y(last) + 4, "and nothing happens any more", "b", fill=colour))
    elif diagram.loop is not None:
        top, bottom = place.y(diagram.loop), place.y(last - 1)
        out += [_line([(16, bottom), (7, bottom), (7, top), (13, top)], colour, 1.8), _head(16, top, 1, colour)]
        out.append(_text(44, bottom + 16, f"▲ from step {diagram.loop + 1} on for ever", "m", fill=colour))
    return out


def _foot(place: Layout) -> list[str]:
    width = max(40, int((place.width - 40) / 7.1))
    return [line for part in place.diagram.sentence.split("\n") for line in textwrap.wrap(part, width)]


def _footer(place: Layout, lines: list[str]) -> list[str]:
    y = place.bottom + 30
    return [_text(16, y + 17 * i, line, "b", fill=GREEN if place.diagram.good else RED) for i, line in enumerate(lines)]
