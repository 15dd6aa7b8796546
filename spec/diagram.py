"""A sequence diagram as data: who takes part, what happens row by row, which messages, copies and contents lie between.

Rules: time is the number of a row and runs downwards; a message is an arrow from the row in which it was sent to the one in which
it was delivered or lost, and a copy of it that is delivered later is an arrow of its own; what has no end lasts to the last row.
A diagram knows nothing of TLA+ or of traces (`story`, `run_story` make diagrams), nor of pixels (`diagram_svg` draws them).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["NETWORK", "Arrow", "Band", "Bar", "Diagram", "Lifeline", "Row"]

NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Lifeline:
    """One column.  A memory shows what it holds, a state what is noted of one thing; the network holds messages; everybody else acts."""

    key: str
    title: str
    kind: Literal["party", "network", "memory", "state"] = "party"


@dataclass(slots=True)
class Row:
    """One step: the name of the action, what it is in words, and the lifeline that takes it; hint: a longer text for the pointer;
    fault: the outside world does it (something is lost, fails, is given up): it may, and is nobody's mistake."""

    op: str
    text: str
    line: str
    number: str = ""
    hint: str = ""
    fault: bool = False


@dataclass(slots=True)
class Arrow:
    """A message, or one delivery of it.  sent, got: rows; got is None while it is in flight.  copy: the network kept it when it
    delivered the first one, in the row `sent`.  colour: what it is about, as of a Bar; empty if nothing has a colour."""

    label: str
    source: str
    target: str
    sent: int
    got: int | None = None
    colour: str = ""
    lost: bool = False
    copy: bool = False


@dataclass(slots=True)
class Bar:
    """A copy or computation under way on a lifeline.  begin, end: rows, or halves of them: between two rows.  colour: what it
    is about, one colour each; bad: it saw wrong contents."""

    line: str
    label: str
    colour: str
    begin: float
    end: float | None = None
    bad: bool = False


@dataclass(slots=True)
class Band:
    """What a memory holds from a row on."""

    line: str
    label: str
    colour: str
    begin: float
    end: float | None = None


@dataclass
class Diagram:
    """title, sentence: above and below the picture.  verdict: name of the property that ends it; good: it is what we wished to
    see (a witness, an accepted run).  loop: the first row of what repeats for ever; len(rows) means that nothing happens any more.
    mistake: the row in which a planted mistake is made; len(rows) where it is that nothing more happens; note: what is right instead."""

    title: str
    lines: list[Lifeline]
    rows: list[Row] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    sentence: str = ""
    verdict: str = ""
    good: bool = False
    loop: int | None = None
    mistake: int | None = None
    note: str = ""
    legend: str = ""
