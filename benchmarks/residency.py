"""One step of residency for 16 layers, beside the scalar walk and the torch version: 8 and 64 rows, top-k 2048, 4096 hot slots.

85 % of a row's positions stay from step to step.  Each layer has a table of its own, as in a model, so a layer's table has left
the near caches when its turn comes.  Run: `python benchmarks/residency.py`; exit code 1 below a target.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from paired import measure, report

from tidegate.kernels import Residency, available, forced

K, HOT, CONTEXT, LAYERS, OVERLAP = 2048, 4096, 65536, 16, 0.85
STEPS = 40


def drifting(rows: int, steps: int) -> list[torch.Tensor]:
    """Positions [rows, K] of each step."""
    random = np.random.default_rng(0)
    now = np.stack([random.permutation(CONTEXT)[:K] for _ in range(rows)])
    asked = []
    for _ in range(steps):
        asked.append(torch.from_numpy(now.copy()))
        for row in now:
            new = round(K * (1 - OVERLAP))
            free = np.setdiff1d(np.arange(CONTEXT), row)
            row[random.choice(K, new, replace=False)] = random.choice(free, new, replace=False)
    return asked


def contender(name: str, rows: int, asked: list[torch.Tensor], said: dict[str, list[torch.Tensor]]) -> Callable[[int], None]:
    tables = [Residency(rows, HOT) for _ in range(LAYERS)]
    lengths, attempts, which = torch.full((rows,), CONTEXT), torch.ones(rows, dtype=torch.int64), torch.arange(rows)

    def run(number: int) -> None:
        with forced(name):
            steps = [table.step(asked[number], lengths, attempts, rows=which) for table in tables]
        said[name] = [steps[-1].slots, steps[-1].counts]

    return run


def compare(rows: int) -> bool:
    best = available()[0]
    names = {best: best, "scalar walk": "portable", "torch": "torch"}
    said: dict[str, list[torch.Tensor]] = {}
    asked = drifting(rows, STEPS)
    contenders = {title: contender(name, rows, asked, said) for title, name in names.items()}
    paired = measure({t: c for t, c in contenders.items() if t != "torch"}, rounds=STEPS - 4, warm=4)
    assert all(map(torch.equal, said[best], said["portable"]))
    fewer = {t: contender(name, rows, asked, said) for t, name in names.items() if t != "scalar walk"}
    against_torch = measure(fewer, rounds=5, warm=2)
    assert all(map(torch.equal, said[best], said["torch"]))
    title = f"{rows} rows, {LAYERS} layers, {said[best][1][1].float().mean():.0f} misses a row; us per layer"
    good = report(title, paired, [("scalar walk", best, 1.5)], lambda s: f"{1e6 * s / LAYERS:10.1f} us")
    return report("", against_torch, [("torch", best, 10.0)], lambda s: f"{1e6 * s / LAYERS:10.1f} us") and good


def main() -> int:
    torch.set_num_threads(1)
    if "portable" not in available() or available()[0] == "portable":
        sys.exit(f"here are {', '.join(available())}: nothing faster than the scalar walk to compare with")
    return 0 if all([compare(8), compare(64)]) else 1


if __name__ == "__main__":
    sys.exit(main())
