"""2,048 scattered rows of K and V (1,024 + 128 bytes) out of a pool of 1 GiB, beside a bare loop and numpy.

Fresh random rows each time, to random slots of a hot buffer of 4,096.  Run: `python benchmarks/fetch.py`; exit code 1 below a
target.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from bare import bare_library
from paired import measure, report

from tidegate.kernels import RowPath

ROWS, HOT, WIDTHS, ROUNDS = 2048, 4096, (512, 64), 120
TOKENS = (1 << 30) // sum(2 * width for width in WIDTHS)


def filled(rows: int, width: int) -> torch.Tensor:
    """bf16 [rows, width] of bytes that differ from row to row."""
    tile = torch.randint(-(2**15), 2**15, (4099, width), dtype=torch.int16)
    return tile.repeat(-(-rows // 4099), 1)[:rows].contiguous().view(torch.bfloat16)


def main() -> int:
    torch.set_num_threads(1)
    random, bare = np.random.default_rng(1), bare_library()
    pool, hot = [filled(TOKENS, w) for w in WIDTHS], [filled(HOT, w) for w in WIDTHS]
    np_pool, np_hot = ([part.view(torch.int16).numpy() for part in side] for side in (pool, hot))
    from_rows = [torch.from_numpy(random.integers(0, TOKENS, ROWS)) for _ in range(3 * (ROUNDS + 5))]
    to_rows = [torch.from_numpy(random.permutation(HOT)[:ROWS]) for _ in range(64)]
    calls, path = iter(range(1 << 30)), RowPath(hot, pool)

    def rows() -> tuple[torch.Tensor, torch.Tensor]:
        """Rows that no contender has read before."""
        number = next(calls)
        return to_rows[number % 64], from_rows[number % len(from_rows)]

    def ours(_: int) -> None:
        to, of = rows()
        path.copy(to, of)

    def loop(_: int) -> None:
        to, of = rows()
        sizes = [2 * w for w in WIDTHS]
        bare.bare_rows(*(p.data_ptr() for p in pool), of.data_ptr(), *(h.data_ptr() for h in hot), to.data_ptr(), ROWS, *sizes)

    def numpy(_: int) -> None:
        to, of = (x.numpy() for x in rows())
        for target, source in zip(np_hot, np_pool, strict=True):
            target[to] = source[of]

    ours(0)
    to, of = to_rows[0], from_rows[0]
    assert all(torch.equal(h[to].view(torch.int16), p[of].view(torch.int16)) for h, p in zip(hot, pool, strict=True))
    paired = measure({"RowPath.copy": ours, "bare loop": loop, "numpy": numpy}, rounds=ROUNDS, warm=4)
    size = ROWS * sum(2 * w for w in WIDTHS)
    targets = [("bare loop", "RowPath.copy", 0.9), ("numpy", "RowPath.copy", 1.6)]
    good = report(f"{ROWS} rows of a pool of 1 GiB", paired, targets, lambda s: f"{1e6 * s:8.0f} us {size / s / 1e9:6.2f} GB/s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
