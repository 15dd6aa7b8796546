"""Save and load of scattered KV blocks through the local pool, beside memcpy of the same ranges between the same memories.

One round is the life of a chunk: its blocks are allocated, every layer is saved, finished and pinned, loaded again, unpinned and
evicted; `copies` counts the saves and loads alone, `life` all of it.  The memcpy is the native loop over ranges that were worked
out before, on one thread as the pool's.  Run: `python benchmarks/pool.py`; exit code 1 where copies fall below the target.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable

import numpy as np

from tidegate.engine.copying import Outcome, Work
from tidegate.engine.pool_keys import chain_keys, root_key
from tidegate.engine.pool_layout import ExtentLayout
from tidegate.engine.pool_local import LocalPool
from tidegate.kernels.copy import copy_ranges

TARGET = 0.9  # of memcpy's speed
BLOCK, WIDTHS, LAYERS = 128, (1024, 128, 128), 8  # tokens; bytes of a row's areas
ROUNDS = 10


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Case:
    """`blocks` scattered blocks of a slot of twice as many."""

    def __init__(self, blocks: int) -> None:
        self.layout = ExtentLayout(BLOCK, (WIDTHS,) * LAYERS)
        self.pool = LocalPool(self.layout, blocks)
        ids = np.random.default_rng(0).permutation(2 * blocks)[:blocks]
        starts = np.cumsum([0, *(BLOCK * width * 2 * blocks for width in WIDTHS)])
        self.memory = np.ones(starts[-1], np.uint8)
        self.offsets = np.stack([start + ids * BLOCK * width for start, width in zip(starts, WIDTHS, strict=False)], 1)
        self.keys = chain_keys(root_key("", ""), range(blocks * BLOCK), range(BLOCK, blocks * BLOCK + 1, BLOCK))
        self.rows = [BLOCK] * blocks
        lengths = np.tile(np.array(WIDTHS) * BLOCK, (blocks, 1))
        extents = np.arange(blocks)[:, None] * self.layout.size
        self.ranges = [
            ((extents + self.layout.area_offsets(layer)).T.ravel(), self.offsets.T.ravel().copy(), lengths.T.ravel())
            for layer in range(LAYERS)
        ]
        self.arena = self.pool._arena  # the same memory: pages of 4 KiB cost a shared arena a quarter beside private huge ones
        self.bytes = 2 * LAYERS * int(lengths.sum())

    def memcpy(self) -> float:
        def copies() -> None:
            for there, here, lengths in self.ranges:
                copy_ranges(self.arena, self.memory, there, here, lengths)
            for there, here, lengths in self.ranges:
                copy_ranges(self.memory, self.arena, here, there, lengths)

        return timed(copies)

    def _all(self, move: Callable[..., None]) -> None:
        ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        for layer in range(LAYERS):
            move(self.keys, layer, self.memory, self.offsets, Work(0, 0), ended.put)
        for _ in range(LAYERS):
            assert (outcome := ended.get()).ok, outcome.reason

    def through_pool(self) -> tuple[float, float]:
        """(copies, life) in seconds."""
        began = time.perf_counter()
        self.pool.allocate(self.keys, self.rows)
        copies = timed(lambda: self._all(self.pool.save))
        self.pool.finish(self.keys, pin=True)
        copies += timed(lambda: self._all(self.pool.load))
        self.pool.unpin(self.keys)
        self.pool.evict(self.keys)
        return copies, time.perf_counter() - began


def main() -> int:
    worst = 9.0
    for blocks in (64, 256, 512):
        case = Case(blocks)
        rounds = [(case.memcpy(), *case.through_pool()) for _ in range(ROUNDS)]
        memcpy, copies, life = (min(times) for times in zip(*rounds, strict=True))  # the best of each: others use this machine too
        worst = min(worst, memcpy / copies)
        speed = case.bytes / memcpy / 1e9
        case.pool.close()
        print(f"{blocks:4} blocks: memcpy {speed:5.1f} GB/s; copies {memcpy / copies:.2f}, life {memcpy / life:.2f} of it")
    print(f"worst ratio of copies {worst:.2f}, target {TARGET}")
    return worst < TARGET


if __name__ == "__main__":
    sys.exit(main())
