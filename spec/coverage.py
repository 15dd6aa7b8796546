"""`tidegate coverage`: which labelled edges of the machines are walked, and why not the others.

Rules: an edge counts as walked in the simulator if a complete search of small Worlds or a simulation walked it, both of which run
the real sessions; in a pair, if a simulation of one Prefill and one Decode rank, driven as the engine drives them, walked it; in
processes, if the trace of real ones did, of one rank a side.  What is not walked must be in tla/coverage.toml, with a reason, and what
is there must not be walked: so the list can neither grow nor grow old in silence.  Each way owes what the way before it walked: a pair
what the simulator walked, processes what a pair walked; the rest they cannot reach, and whoever reaches it shows that the list is wrong.
What processes walk only if a race so ends is in the list as `sometimes`.  An edge that is walked and is not in its machine's graph is
reported always: the graph that TLC checked alone is then too small.
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
from tidegate.spec.pair_world import PairWorld, pair_bounds
from tidegate.spec.paths import root
from tidegate.spec.variant import configurations
from tidegate.spec.walks import Traced, explored, simulated, traced
from tidegate.spec.world import World

__all__ = [
    "EXPLORED", "PAIR", "PROCESSES", "SIMULATOR", "WAYS", "Coverage", "Unwalked", "believed", "cover", "of_processes", "table", "unwalked",
]  # fmt: skip

SIMULATOR, PAIR, PROCESSES = WAYS = ("simulator", "pair", "processes")
EXPLORED = ("members", "retry", "independent-plain")
"""The configurations that are searched completely: small, and each with edges that the others lack."""


class Unwalked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """where: one of WAYS; edges: a pattern as of file names, of `str(edge)`; why: these are not walked; sometimes: they may be,
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
    if strange := [u for u in found if u.where not in WAYS or not u.why]:
        raise SpecError(f"{path}: {strange[0]}: where is one of {', '.join(WAYS)}, and there is a reason")
    return found


@dataclass(frozen=True)
class Coverage:
    """What each way walked; processes: None if no trace was looked at, groups: what those of several ranks walked."""

    explored: Collection[Edge]
    simulated: Collection[Edge]
    pair: Collection[Edge]
    processes: Collection[Edge] | None = None
    groups: Collection[Edge] = ()

    @property
    def all(self) -> set[Edge]:
        return {edge for name in machines() for edge in edges(name)}

    @property
    def walked(self) -> set[Edge]:
        """In the simulator, either way."""
        return set(self.explored) | set(self.simulated)

    @property
    def ways(self) -> tuple[str, ...]:
        """Those that were looked at."""
        return WAYS if self.processes is not None else WAYS[:-1]

    def by(self, where: str) -> set[Edge]:
        """What was walked there."""
        return self.walked if where == SIMULATOR else set(self.pair if where == PAIR else self.processes or ())

    def owed(self, where: str) -> set[Edge]:
        """What was to be walked there: all, or what the way before it walked."""
        return self.all if where == SIMULATOR else self.all & self.by(SIMULATOR if where == PAIR else PAIR)

    def missing(self, where: str) -> set[Edge]:
        """What was to be walked there, and was not."""
        return self.owed(where) - self.by(where)

    def wrong(self, known: Sequence[Unwalked], *, some: bool = False) -> list[str]:
        """How this differs from the committed list, one line each; empty if it does not.  some: processes need not have walked all."""
        everywhere = self.walked.union(self.pair, self.processes or (), self.groups)
        out = [f"{edge}: walked, but not in the graph of {edge.machine}: widen the bounds of {edge.machine}Graph.cfg"
               for edge in sorted(everywhere - self.all)]  # fmt: skip
        for where in self.ways:
            mine, missing = [u for u in known if u.where == where], self.missing(where)
            if where != PROCESSES or not some:
                out += [f"{edge}: not walked in the {where}, and tla/coverage.toml does not say why"
                        for edge in sorted(missing) if not any(u.of(edge) for u in mine)]  # fmt: skip
            out += _old(mine, missing, self.owed(where) & self.by(where), where)
            if where != SIMULATOR:
                out += [f"{edge}: walked in the {where}, although tla/coverage.toml says that nobody gets there: one of them is wrong"
                        for edge in sorted(self.all & self.by(where) - self.owed(where))]  # fmt: skip
        return out


def _old(known: Iterable[Unwalked], missing: Collection[Edge], walked: Collection[Edge], where: str) -> Iterable[str]:
    for u in known:
        found = sorted(filter(u.of, walked))
        if u.sometimes and found:
            continue
        if not any(map(u.of, missing)):
            yield f"{u.edges}: tla/coverage.toml says that it is not walked in the {where}, and no such edge is missing: take it out"
        elif found:
            yield f"{found[0]}: walked in the {where}, although tla/coverage.toml ({u.edges}) says that it is not: narrow the pattern"


def _until_known(where: str, known: Sequence[Unwalked], owed: Callable[[], set[Edge]]) -> Callable[[set[Edge]], bool]:
    """Is all walked there that is owed, but for what the list names?"""
    mine = [u for u in known if u.where == where]
    return lambda walked: not any(not any(u.of(edge) for u in mine) for edge in owed() - walked)


def cover(
    known: Sequence[Unwalked],
    *,
    steps: int,
    seed: int,
    traces: Sequence[Path] = (),
    world: Callable[[Bounds], World] = World,
    told: Callable[[str, int, int], object] = lambda what, done, of: None,
) -> Coverage:
    """Explore, then simulate until all is walked but what is known not to be, or for `steps` steps, any world and then a pair; then read
    the traces.
    told: hears what is done, how much of how much.  Raises SpecError if a simulation fails or a folder holds no trace."""
    models, found = configurations(EXPLORED), set[Edge]()
    everything = {edge for name in machines() for edge in edges(name)}  # now: not while something else is walked
    for done, model in enumerate(models):
        told("exploring", done, len(models))
        found |= explored(model.bounds, world)
    walked = simulated(
        steps, seed, world=world, enough=_until_known(SIMULATOR, known, lambda: everything - found),
        told=lambda out: told("simulating", out.steps, steps),
    )  # fmt: skip
    pair = simulated(
        steps, seed, world=PairWorld, sizes=pair_bounds, enough=_until_known(PAIR, known, lambda: everything & (found | walked)),
        told=lambda out: told("simulating a pair", out.steps, steps),
    )  # fmt: skip
    return Coverage(found, walked, pair, *(traced(traces) if traces else ()))


def of_processes(known: Sequence[Unwalked], traces: Sequence[Path]) -> Coverage:
    """The traces alone: the other ways are taken to walk all but what the list says of them, which their own test holds them to.
    Raises SpecError as `traced`."""
    return believed(known, traced(traces))


def believed(known: Sequence[Unwalked], found: Traced) -> Coverage:
    """As `of_processes`, of what was found."""
    every = {edge for name in machines() for edge in edges(name)}
    simulator = {edge for edge in every if not any(u.of(edge) for u in known if u.where == SIMULATOR)}
    pair = {edge for edge in simulator if not any(u.of(edge) for u in known if u.where == PAIR)}
    return Coverage(simulator, (), pair, *found)


def table(c: Coverage) -> Table:
    """machine, edges, walked in exploration, in simulation, in either, in a pair, in processes."""
    out = Table("machine", *("edges", "exploration", "simulation", "either", "a pair", "processes"))
    for name in [*machines(), "all"]:
        of = [edges(name)] if name != "all" else [edges(n) for n in machines()]
        mine = frozenset().union(*of)
        counts = [len(mine), *(len(mine & set(way)) for way in (c.explored, c.simulated, c.walked, c.pair))]
        last = f"{len(mine & set(c.processes))}" if c.processes is not None else "-"
        out.add_row(Text(name), *(f"{n:,}" for n in counts), last, style="bold" if name == "all" else "")
    return out
