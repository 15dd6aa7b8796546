"""A pull over shared memory of 64 and 512 scattered blocks, 131,072 + 16,384 + 16,384 bytes each, beside memcpy of the ranges.

The three arrays of a block are regions of their own (K, V and indexer).  The pull is the engine's, checks and thread included,
and several are queued, as the layers of a prefill are; so is its memory, mapped a second time read-only as Decode does.
Run: `python benchmarks/pull.py`; exit code 1 below a target.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
from bare import bare_library
from paired import measure, report

from tidegate.engine.copying import Outcome, Work
from tidegate.engine.pull_shm import Part, ShmPull
from tidegate.engine.slot_layout import plan_layout
from tidegate.engine.slots import SharedMemory

WIDTHS, TOKENS, BLOCKS, ROUNDS = {"k": 512, "v": 64, "index": 64}, 128, 1536, 40


def compare(blocks: int, queued: int, source: SharedMemory, served: SharedMemory) -> bool:
    random, bare, backend, layout = np.random.default_rng(blocks), bare_library(), ShmPull(), source.layout
    backend.connect("p", served)
    targets, areas = {}, {name: layout.area(0, name) for name in WIDTHS}
    for name, area in areas.items():
        targets[name] = np.ones(BLOCKS * TOKENS * area.row_bytes, np.uint8)
        backend.register(name, targets[name])

    def parts() -> list[Part]:
        """Blocks that lie anywhere on both sides, none beside another by more than chance."""
        of, to = (random.permutation(BLOCKS)[:blocks].astype(np.int64) for _ in range(2))
        made = []
        for name, area in areas.items():
            size = TOKENS * area.row_bytes
            made.append(Part(name, area.offset + of * size, to * size, np.full(blocks, size)))
        return made

    plans = [parts() for _ in range(2 * queued * 8 + 1)]
    calls = iter(range(1 << 30))

    def pull(_: int) -> None:
        left, done = queued, threading.Event()

        def ended(outcome: Outcome) -> None:
            nonlocal left
            assert outcome.ok, outcome.reason
            left -= 1
            if not left:
                done.set()

        for _ in range(queued):
            backend.submit("p", plans[next(calls) % len(plans)], Work(0, 1), ended)
        assert done.wait(60)

    def memcpy(_: int) -> None:
        for part in [part for _ in range(queued) for part in plans[next(calls) % len(plans)]]:
            columns = (np.asarray(x).ctypes.data for x in (part.destination, part.source, part.length))
            bare.bare_ranges(targets[part.region].ctypes.data, served.bytes.ctypes.data, *columns, blocks)

    assert backend.pull("p", plans[-1], Work(0, 1)).ok
    for part in plans[-1]:
        for s, d, n in zip(part.source, part.destination, part.length, strict=True):
            assert (targets[part.region][d : d + n] == source.bytes[s : s + n]).all()
    paired = measure({"pull": pull, "memcpy": memcpy}, rounds=ROUNDS)
    size = queued * blocks * TOKENS * sum(area.row_bytes for area in areas.values())
    good = report(f"{queued} pulls of {blocks} blocks", paired, [("memcpy", "pull", 0.9)],
                  lambda s: f"{1e6 * s:8.0f} us {size / s / 1e9:6.2f} GB/s")
    backend.close()
    return good


def main() -> int:
    source = SharedMemory.allocate(plan_layout([0], WIDTHS, "bfloat16", blocks=BLOCKS, block_size=TOKENS))
    source.bytes[:] = np.resize(np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8), source.bytes.size)
    served = SharedMemory.map(source.reader_fd(), source.layout)
    good = [compare(blocks, queued, source, served) for blocks, queued in ((64, 8), (512, 2))]
    served.close()
    source.close()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
