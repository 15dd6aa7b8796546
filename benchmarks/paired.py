"""Times contenders beside one another: only a ratio of one run says something on a machine that others use too.

Rules: a round calls every contender once, in an order that changes from round to round; time is CPU time of all threads of the
process, for the wall clock also measures who else wants the cores; what is judged is the ratio of two contenders within a round,
its median over the rounds; its quartiles are the noise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Paired", "measure", "report"]


@dataclass(frozen=True, slots=True)
class Paired:
    """CPU seconds per round of each contender; a contender may sit out rounds."""

    seconds: dict[str, list[float | None]]

    def ratios(self, slower: str, faster: str) -> list[float]:
        """How many times longer `slower` took, round by round."""
        both = zip(self.seconds[slower], self.seconds[faster], strict=True)
        return [a / b for a, b in both if a is not None and b is not None]

    def median(self, name: str) -> float:
        return statistics.median(s for s in self.seconds[name] if s is not None)


def measure(
    contenders: Mapping[str, Callable[[int], None]], *, rounds: int, warm: int = 2, seldom: Mapping[str, int] | None = None
) -> Paired:
    """Call `contenders[name](round)`; those of `seldom` only every so many rounds.  The first `warm` rounds do not count."""
    names, seconds = list(contenders), {name: [] for name in contenders}
    for number in range(warm + rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            if number % (seldom or {}).get(name, 1):
                took = None
            else:
                begin = time.process_time()
                contenders[name](number)
                took = time.process_time() - begin
            if number >= warm:
                seconds[name].append(took)
    return Paired(seconds)


def report(title: str, paired: Paired, targets: Sequence[tuple[str, str, float]], unit: Callable[[float], str]) -> bool:
    """Print each contender's times and each wanted ratio (slower, faster, at least); whether all are reached."""
    print(title)
    for name in paired.seconds:
        print(f"  {name:14} {unit(paired.median(name))}")
    good = True
    for slower, faster, least in targets:
        low, middle, high = statistics.quantiles(paired.ratios(slower, faster), n=4)
        reached = middle >= least
        good &= reached
        verdict = "" if reached else ": MISSED"
        print(f"  {slower} / {faster}: {middle:.2f} ({low:.2f} to {high:.2f}), at least {least} wanted{verdict}", flush=True)
    return good
