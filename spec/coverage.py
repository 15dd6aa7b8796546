"""`tidegate coverage`: which labelled edges of the machines are walked, and why not the others.

Rules: an edge counts as walked in the simulator if a complete search of small Worlds or a simulation walked it, both of which run
the real sessions; in processes, if the trace of a run of real processes did.  What is not walked must be in tla/coverage.toml, with a
reason, and what is there must not be walked: so the list can neither grow nor grow old in silence.  Processes owe only what the
simulator walked: the rest nobody can reach; what they walk only if a race so ends is in the list as `sometimes`.  An edge that is walked and is not in its machine's graph is reported always: the
graph that TLC checked alone is then too small.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from rich.table import Table
from rich.text import Text

from tidegate.spec.bounds import Bounds
from tidegate.spec.edges import Edge, edges, machines
from tidegate.spec.errors import SpecError
from tidegate.spec.paths import root
from tidegate.spec.variant import configurations
from tidegate.spec.walks import explored, simulated, traced
from tidegate.spec.world import World

__all__ = ["EXPLORED", "PROCESSES", "SIMULATOR", "Coverage", "Unwalked", "cover", "of_processes", "table", "unwalked"]

SIMULATOR, PROCESSES = "simulator", "processes"
EXPLORED = ("members", "retry", "independent-plain")
"""The configurations that are searched completely: small, and each with edges that the others lack."""


class Unwalked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """where: SIMULATOR or PROCESSES; edges: a pattern as of file names, of `str(edge)`; why: these are not walked; sometimes: they may be,
    in processes, for it depends on which of two things happens first.
    """

    where: str
    edges: str
    why: str
    sometimes: bool = False

    def of(self, edge: Edge) -> bool:
        return fnmatchcase(str(edge), self.edges)


def unwalked(path: Path | None = None) -> list[Unwalked]:
    """The committed list. Raises SpecError if it is none."""
    path = path or root() / "tla" / "coverage.toml"
    try:
        found = msgspec.convert(tomllib.loads(path.read_text())["unwalked"], list[Unwalked])
    except (OSError, KeyError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SpecError(f"{path} is no list of edges that are not walked: {error}") from None
    if strange := [u for u in found if u.where not in (SIMULATOR, PROCESSES) or not u.why]:
        raise SpecError(f"{path}: {strange[0]}: where is {SIMULATOR} or {PROCESSES}, and there is a reason")
    return found


@dataclass(frozen=True)
class Coverage:
    """What each way walked; processes: None if no trace was looked at."""

    explored: Collection[Edge]
    simulated: Collection[Edge]
    processes: Collection[Edge] | None = None

    @property
    def all(self) -> set[Edge]:
        return {edge for name in machines() for edge in edges(name)}

    @property
    def walked(self) -> set[Edge]:
        """In the simulator, either way."""
        return set(self.explored) | set(self.simulated)

    def complete(self, known: Sequence[Unwalked]) -> bool:
        """Is all walked in the simulator but what the list names?"""
        return not any(not any(u.of(edge) for u in known if u.where == SIMULATOR) for edge in self.missing(SIMULATOR))

    def missing(self, where: str) -> set[Edge]:
        """What was to be walked there, and was not."""
        if where == SIMULATOR:
            return self.all - self.walked
        return (self.all & self.walked) - set(self.processes or ()) if self.processes is not None else set()

    def wrong(self, known: Sequence[Unwalked]) -> list[str]:
        """How this differs from the committed list, one line each; empty if it does not."""
        out = [f"{edge}: walked, but not in the graph of {edge.machine}: widen the bounds of {edge.machine}Graph.cfg"
               for edge in sorted((self.walked | set(self.processes or ())) - self.all)]  # fmt: skip
        for where in (SIMULATOR, PROCESSES) if self.processes is not None else (SIMULATOR,):
            mine, missing = [u for u in known if u.where == where], self.missing(where)
            out += [f"{edge}: not walked in the {where}, and tla/coverage.toml does not say why"
                    for edge in sorted(missing) if not any(u.of(edge) for u in mine)]  # fmt: skip
            out += _old(mine, missing, self.all - missing, where)
        return out


def _old(known: Iterable[Unwalked], missing: Collection[Edge], walked: Collection[Edge], where: str) -> Iterable[str]:
    for u in known:
        if not any(map(u.of, missing)):
            if u.sometimes and any(map(u.of, walked)):
                continue
            yield f"{u.edges}: tla/coverage.toml says that it is not walked in the {where}, and no such edge is missing: take it out"
        elif where == SIMULATOR and (found := sorted(filter(u.of, walked))):
            yield f"{found[0]}: walked in the {where}, although tla/coverage.toml ({u.edges}) says that it is not: narrow the pattern"


def cover(
    known: Sequence[Unwalked],
    *,
    steps: int,
    seed: int,
    traces: Sequence[Path] = (),
    world: Callable[[Bounds], World] = World,
    told: Callable[[str, int, int], object] = lambda what, done, of: None,
) -> Coverage:
    """Explore, then simulate until all is walked but what is known not to be, or for `steps` steps; then read the traces.
    told: hears what is done, how much of how much.  Raises SpecError if the simulation fails or a folder holds no trace."""
    models, found = configurations(EXPLORED), set[Edge]()
    for name in machines():
        edges(name)  # now: not while something else is walked
    for done, model in enumerate(models):
        told("exploring", done, len(models))
        found |= explored(model.bounds, world)
    walked = simulated(
        steps, seed, world=world, enough=lambda walked: Coverage(found, walked).complete(known),
        told=lambda out: told("simulating", out.steps, steps),
    )  # fmt: skip
    return Coverage(found, walked, traced(traces) if traces else None)


def of_processes(known: Sequence[Unwalked], traces: Sequence[Path]) -> Coverage:
    """The traces alone: the simulator is taken to walk all but what the list says of it, which its own test holds it to.
    Raises SpecError as `traced`."""
    all_edges = {edge for name in machines() for edge in edges(name)}
    believed = {edge for edge in all_edges if not any(u.of(edge) for u in known if u.where == SIMULATOR)}
    return Coverage(believed, (), traced(traces))


def table(c: Coverage) -> Table:
    """machine, edges, walked in exploration, in simulation, in either, in processes."""
    out = Table("machine", *("edges", "exploration", "simulation", "either", "processes"))
    for name in [*machines(), "all"]:
        of = [edges(name)] if name != "all" else [edges(n) for n in machines()]
        mine = frozenset().union(*of)
        counts = [len(mine), *(len(mine & set(way)) for way in (c.explored, c.simulated, c.walked))]
        last = f"{len(mine & set(c.processes))}" if c.processes is not None else "-"
        out.add_row(Text(name), *(f"{n:,}" for n in counts), last, style="bold" if name == "all" else "")
    return out
