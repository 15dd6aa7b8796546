"""A small `local` pool, and what its tests say to it."""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tidegate.engine.copying import Outcome, Work
from tidegate.engine.pool_keys import chain_keys, root_key
from tidegate.engine.pool_layout import ExtentLayout
from tidegate.engine.pool_local import LocalPool

LAYOUT = ExtentLayout(rows=4, layers=((24, 8), (16,)), name="test")
WORK = Work(slot=0, epoch=1)
GAP = 64  # bytes between rows of different objects in the rig's memory, so that a copy too long is seen


def keys_of(tokens: Sequence[int], stops: Sequence[int]) -> list[bytes]:
    return chain_keys(root_key("layout", "model"), tokens, stops)


KEYS = keys_of(range(64), range(4, 65, 4))


def content(seed: Any, layer: int, rows: int) -> list[np.ndarray]:
    """The areas of a layer of an object."""
    name = hashlib.blake2b(repr((seed, layer)).encode(), digest_size=8).digest()  # the same in every process
    random = np.random.default_rng(int.from_bytes(name, "big"))
    return [random.integers(0, 255, rows * width, dtype=np.uint8) for width in LAYOUT.layers[layer]]


class Rig:
    """A pool and a piece of memory to save from and load into.  made: all of them, for who cleans up after tests that fail."""

    made: ClassVar[list[Rig]] = []

    def __init__(self, folder: Path | str | None = None, extents: int = 4, **options: Any) -> None:
        self.pool = LocalPool(LAYOUT, extents, folder=folder, **options)
        self.made.append(self)
        self.outcomes: queue.Queue[Outcome] = queue.Queue()

    def _memory(self, layer: int, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        widths, offsets, at = LAYOUT.layers[layer], [], GAP
        for count in rows:
            offsets.append([at + sum(w * count for w in widths[:a]) for a in range(len(widths))])
            at += sum(widths) * count + GAP
        return np.zeros(at, np.uint8), np.array(offsets, np.int64)

    def begin_save(self, keys: Sequence[bytes], layer: int, areas: Sequence[list[np.ndarray]], work: Work = WORK) -> None:
        rows = [area[0].size // LAYOUT.layers[layer][0] for area in areas]
        memory, offsets = self._memory(layer, rows)
        for row, parts in zip(offsets, areas, strict=True):
            for at, part in zip(row, parts, strict=True):
                memory[at : at + part.size] = part
        self.pool.save(keys, layer, memory, offsets, work, self.outcomes.put)

    def save(self, keys: Sequence[bytes], layer: int, areas: Sequence[list[np.ndarray]], work: Work = WORK) -> Outcome:
        self.begin_save(keys, layer, areas, work)
        return self.outcomes.get(timeout=10)

    def load(self, keys: Sequence[bytes], layer: int, rows: Sequence[int], **options: Any) -> tuple[Outcome, list[list[np.ndarray]]]:
        memory, offsets = self._memory(layer, rows)
        self.pool.load(keys, layer, memory, offsets, WORK, self.outcomes.put, **options)
        outcome = self.outcomes.get(timeout=10)
        widths, out, seen = LAYOUT.layers[layer], [], np.zeros(memory.size, bool)
        for row, count in zip(offsets, rows, strict=True):
            out.append([memory[at : at + w * count].copy() for at, w in zip(row, widths, strict=True)])
            for at, w in zip(row, widths, strict=True):
                seen[at : at + w * count] = True
        assert not memory[~seen].any(), "a load wrote outside of its ranges"
        return outcome, out

    def whole(self, keys: Sequence[bytes], seed: Any = 0, rows: int = 4, **finish: Any) -> None:
        """Allocate, save and finish."""
        assert self.pool.allocate(keys, [rows] * len(keys)) == ["new"] * len(keys)
        for layer in range(len(LAYOUT.layers)):
            assert self.save(keys, layer, [content((seed, key), layer, rows) for key in keys]).ok
        self.pool.finish(keys, **finish)

    def holds(self, keys: Sequence[bytes], seed: Any = 0, rows: int = 4) -> bool:
        """Pin, load every layer, compare, unpin."""
        if (found := self.pool.pin(keys)) != len(keys):
            self.pool.unpin(keys[:found])
            return False
        for layer in range(len(LAYOUT.layers)):
            outcome, got = self.load(keys, layer, [rows] * len(keys))
            assert outcome.ok, outcome.reason
            for key, areas in zip(keys, got, strict=True):
                for one, two in zip(areas, content((seed, key), layer, rows), strict=True):
                    assert one.tobytes() == two.tobytes(), f"{key.hex()[:8]} layer {layer} holds other bytes"
        self.pool.unpin(keys)
        return True
