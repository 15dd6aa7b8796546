"""For each dimension of the system model the bound at which every planted bug is seen, and a configuration with one more.

Rules: what needs to be seen are the dropped conjuncts that tla/mutants.toml calls killed and the bugs of tla/museum/planted.toml; each
names the configuration in which TLC sees it, so the largest bound among those suffices for all of them; that the unchanged model
passes with one more says that nothing new begins just behind it.  Configurations that are there only to be wider are called wide-..., and
no bug is looked for in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tidegate.spec import mutant_table
from tidegate.spec.bounds import FAULTS, Bounds
from tidegate.spec.errors import SpecError
from tidegate.spec.museum import planted
from tidegate.spec.paths import root
from tidegate.spec.variant import Configuration, configurations

__all__ = ["DIMENSIONS", "WIDE", "Width", "document", "missing", "seen", "widths", "write"]

WIDE = "wide-"
"""How the names of configurations begin that are there only to be wider."""
BEGIN, END = "<!-- widths -->", "<!-- end of widths -->"

_FAULTS = {
    "loss": "messages lost", "dup": "messages doubled", "fail": "reads that fail quietly", "unknown": "reads of unknown fate",
    "save": "saves that fail", "load": "loads that fail", "evict": "objects evicted", "abort": "aborts", "revoke": "revocations",
    "crash_decode": "deaths of Decode", "crash_prefill": "deaths of Prefill",
}  # fmt: skip
DIMENSIONS: dict[str, Callable[[Bounds], int]] = {
    "layers": lambda b: b.layers,
    "slots": lambda b: len(b.plan.slots),
    "chunks": lambda b: b.chunks,
    "lanes": lambda b: b.lanes,
    "Prefill ranks": lambda b: b.members,
    "Decode ranks": lambda b: b.decode_ranks,
    "indexer blocks": lambda b: b.indexer_blocks,
    "requests (attempts)": lambda b: b.attempts,
    "runs": lambda b: b.runs,
    "sets of blocks": lambda b: b.blocks,
    **{_FAULTS[fault]: attrgetter(fault) for fault in FAULTS},
    "faults in all": lambda b: sum(getattr(b, fault) for fault in FAULTS),
}
"""What a configuration is wide in.  Messages in flight have no bound: the network holds whatever was said and not yet heard."""


@dataclass(frozen=True)
class Width:
    """enough: the bound that suffices for every bug; because: one that has it there, and its configuration, empty for the
    smallest bound that there is; wider: the smallest passing
    configuration with more, and its bound; None if there is none."""

    dimension: str
    enough: int
    because: str
    wider: tuple[str, int] | None


def seen() -> list[tuple[str, str]]:
    """(bug, configuration) of all that must be seen."""
    dropped = [(e.name, e.configuration) for e in mutant_table.read() if e.kind == "killed"]
    return dropped + [(bug.mistake, bug.configuration) for bug in planted()]


def widths(models: Sequence[Configuration], bugs: Iterable[tuple[str, str]]) -> list[Width]:
    """One for each dimension.  models: those that pass, by number of states; the bugs' are among them."""
    bounds = {model.name: model.bounds for model in models}
    where = {name: bug for bug, name in reversed(list(bugs))}
    out = []
    for dimension, size in DIMENSIONS.items():
        enough = max(size(bounds[name]) for name in where)
        name = next(m.name for m in models if m.name in where and size(bounds[m.name]) == enough)
        wider = next(((m.name, size(bounds[m.name])) for m in models if size(bounds[m.name]) > enough), None)
        out.append(Width(dimension, enough, f"{where[name]} in {name}" if enough > size(Bounds()) else "", wider))
    return out


def missing(found: Iterable[Width]) -> list[str]:
    """The dimensions in which no configuration is wider than the bugs need, and what to do."""
    return [f"{w.dimension}: bugs need {w.enough} ({w.because}), and no configuration has more: add one to tla/models/manifest.toml"
            for w in found if w.wider is None]  # fmt: skip


def document(text: str) -> str:
    """docs/model.md with the table brought up to date. Raises SpecError if it lacks the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SpecError(f"docs/model.md has not both {BEGIN} and {END}: put them where the table shall stand")
    lines = ["| dimension | enough for every bug | for example | wider |", "|---|---|---|---|"]
    for w in widths(configurations(), seen()):
        needed = w.because.replace("|", "\\|") or "none"
        lines.append(f"| {w.dimension} | {w.enough} | {needed} | {f'{w.wider[1]} in {w.wider[0]}' if w.wider else 'none'} |")
    return before + "\n".join([BEGIN, *lines, END]) + after


def write() -> None:
    """Bring docs/model.md up to date."""
    page = root() / "docs" / "model.md"
    page.write_text(document(page.read_text()))
