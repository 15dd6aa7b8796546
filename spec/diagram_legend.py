"""What the signs of a sequence diagram mean, below it: only those that stand in it.

Rule: the legend is drawn with the signs themselves, and wraps to the width of the picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from tidegate.spec.diagram import Diagram

__all__ = ["legend"]

INK, SOFT, RED, AMBER = "#1b6ca8", "#d6e9f8", "#c0182b", "#a15c00"
SIGN, CHAR, LINE = 26, 5.7, 19
DOT = '<circle cx="9" cy="-4" r="3.6" fill="#22303f"/>'
OUTSIDE = f'<path d="M4 -4l5 -5l5 5l-5 5z" fill="#fff" stroke="{AMBER}" stroke-width="1.8"/>'
MISTAKE = '<rect x="0" y="-11" width="20" height="13" fill="#ffedc9"/>'
HARM = '<rect x="0" y="-11" width="20" height="13" fill="#fde4e6"/>'
GOOD = '<rect x="0" y="-11" width="20" height="13" fill="#e3f5e7"/>'
MESSAGE = f'<path d="M0 -4h14" stroke="{INK}" stroke-width="1.5"/><path d="M20 -4l-7 -3.6v7.2z" fill="{INK}"/>'
DOUBLE = f'<path d="M0 -4h20" stroke="{INK}" stroke-width="1.5" stroke-dasharray="5 3"/>'
FLYING = f'<path d="M10 -13v8" stroke="{INK}" stroke-width="1.5"/><circle cx="10" cy="-2" r="3.2" fill="#fff" stroke="{INK}"/>'
LOST = f'<path d="M5 -9l10 10m0 -10l-10 10" stroke="{AMBER}" stroke-width="2.4"/>'
BAR = f'<rect x="6" y="-12" width="8" height="14" rx="2" fill="{INK}" fill-opacity="0.55" stroke="{INK}"/>'
OPEN = f'<rect x="6" y="-13" width="8" height="9" fill="{INK}" fill-opacity="0.55"/><path d="M6 -3h8l-4 6z" fill="{INK}"/>'
BAD = f'<rect x="6" y="-12" width="8" height="14" rx="2" fill="{RED}" fill-opacity="0.55" stroke="{RED}"/>'
BAND = f'<rect x="0" y="-11" width="20" height="13" fill="{SOFT}" stroke="{INK}" stroke-width="0.8"/>'


def legend(diagram: Diagram, width: float, top: float) -> tuple[list[str], float]:
    """The legend from `top` down, and its height."""
    out: list[str] = []
    x, y = 16.0, top + 12
    for sign, text in _signs(diagram):
        room = SIGN * bool(sign) + CHAR * len(text) + 18
        if x > 16 and x + room > width:
            x, y = 16.0, y + LINE
        out.append(f'<g transform="translate({x:.1f} {y:.1f})">{sign}</g>' if sign else "")
        out.append(f'<text x="{x + SIGN * bool(sign):.1f}" y="{y:.1f}" class="s n">{escape(text)}</text>')
        x += room
    return [part for part in out if part], y - top + 8


def _signs(diagram: Diagram) -> Iterator[tuple[str, str]]:
    """(sign, what it means) of what the diagram has."""
    rows, arrows, bars = diagram.rows, [a for a in diagram.arrows if a.label], diagram.bars
    last = len(rows)
    if diagram.mistake is not None:
        yield MISTAKE, "the mistake"
    if diagram.verdict and rows and diagram.loop in (None, last):
        yield (GOOD, "what was looked for") if diagram.good else (HARM, "the harm: a rule is broken")
    yield DOT, "takes the step"
    if any(row.fault for row in rows):
        yield OUTSIDE, "the outside world: a failure, a loss, an abort; allowed"
    if arrows:
        yield MESSAGE, "message; between its ends it waits in the network"
    if any(a.copy for a in arrows):
        yield DOUBLE, "second copy of a message"
    if any(a.got is None for a in arrows):
        yield FLYING, "not yet arrived"
    if any(a.lost for a in arrows):
        yield LOST, "lost"
    if bars:
        yield BAR, "copy or computation under way"
    if any(b.end is None for b in bars):
        yield OPEN, "not ended"
    if any(b.bad for b in bars):
        yield BAD, "wrong bytes, or what the broken rule is about"
    if diagram.bands:
        junk = "; junk: nobody's bytes" if any("junk" in b.label for b in diagram.bands) else ""
        yield BAND, f"what is in the memory, or the state of the thing, named on top{junk}"
    if diagram.legend and last:
        yield "", diagram.legend
