"""A behaviour that TLC found, for a reader: a table of what changed, a sequence diagram, and one sentence.

Rules: the three are made from TLC's result and the TLA+ source alone; a module without a network (a machine alone) has a table
and a sentence and no diagram.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from tidegate.spec.culprit import Culprit, culprits, sentence
from tidegate.spec.diagram import Diagram
from tidegate.spec.diagram_svg import svg
from tidegate.spec.explain import Step, ending, steps, value_text
from tidegate.spec.story import LEADER, tell
from tidegate.spec.story_columns import Column
from tidegate.spec.tlc_output import Result
from tidegate.spec.variant import PROPERTIES
from tidegate.spec.vocabulary import Vocabulary, record

__all__ = ["Shown", "explain", "property_of"]


@dataclass(frozen=True)
class Shown:
    """steps: for the table; diagram: None where there is nothing to draw; sentence: what it shows; ending: how it goes on."""

    title: str
    steps: list[Step]
    sentence: str
    ending: str
    diagram: Diagram | None

    def table(self) -> Table:
        """The steps for a terminal: number, what was done, and only what changed."""
        table = Table("", "step", "what changed", title=self.title, title_justify="left", show_lines=True)
        for number, step in enumerate(self.steps):
            table.add_row(str(number), Text(step.label), Text("\n".join(step.changes)))
        return table

    def write(self, path: Path) -> Path:
        """Write the diagram as SVG. Raises ValueError if there is none, OSError if the file cannot be written."""
        if self.diagram is None:
            raise ValueError(f"{self.title}: this module has no ranks and no network, so there is nothing to draw")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(svg(self.diagram))
        return path


def property_of(result: Result, config: str) -> str:
    """The name of what is violated; config: the .cfg's text, where TLC does not name a temporal property."""
    names = [name for found in PROPERTIES.finditer(config) if found[1].startswith("PROP") for name in found[2].split()]
    if result.violated == "<temporal>" and len(names) == 1:
        return names[0]
    return result.violated or result.verdict


def explain(
    result: Result, module: Path, config: str, *, title: str, wanted: bool = False, changed: Mapping[str, str] | None = None,
    found: Sequence[Culprit] | None = None, columns: Sequence[Column] = (), rule: str = "",
) -> Shown:
    """What a result with a trace shows.

    module, config (the .cfg's text), changed: what TLC was given (changed: source of modules by name); wanted: the violation is a
    witness, which we wish to see; found: for whom the property is false, if that is known already; columns: what else to draw; rule: what
    the property says, if not what its comment does.
    """
    words = Vocabulary(module, changed)
    name = property_of(result, config)
    if found is None:
        found = culprits(module, config, words, name, result.trace, changed)
    drawable = bool(result.trace) and "net" in result.trace[0].variables
    diagram = tell(result.trace, words, title, result.loop, columns) if drawable else None
    told = steps(result.trace, words)
    last = told[-1].label if told else "the end"
    if diagram:
        for step, row in zip(told[1:], diagram.rows, strict=True):
            step.label = f"{row.op} {row.text}"
        last = f"{diagram.rows[-1].op} ({diagram.rows[-1].text})" if diagram.rows else "the initial state"
    told[:1] = [Step(0, "the beginning", []) for _ in told[:1]]
    says = sentence(name, result, found, words, last, wanted=wanted, rule=rule)
    if diagram:
        diagram.sentence, diagram.verdict, diagram.good = says, name, wanted
        _mark(diagram, found)
    return Shown(title, told, says, ending(result), diagram)


def _mark(diagram: Diagram, found: Sequence[Culprit]) -> None:
    """The copies of which the property is false are drawn as bad."""
    for culprit in found:
        for where, value in zip(culprit.sets, culprit.values, strict=True):
            fields = record(value)
            if where == "io" and fields and not diagram.good:
                for bar in diagram.bars:
                    bar.bad = bar.bad or (bar.end is None and _same(bar.label, fields))


def _same(label: str, fields: Mapping[str, object]) -> bool:
    op = "read" if fields.get("op") == "stray" else fields.get("op")
    text = f"{op} {value_text(fields.get('transfer', ''))}"
    return label in (text, LEADER.sub(r"\1", text))
