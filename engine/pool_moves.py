"""Which bytes a save or a load of pool objects moves, and the copy job that moves them.

Rules: every range is checked, in 64 bits, against both memories before anything is queued; the order is that of content tags: all
rows of the first area, object after object, then those of the next; what is stored already is named and tagged where it lies in
the pool, and not moved.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tidegate.engine.copying import Job, Work
from tidegate.engine.pool_layout import ExtentLayout
from tidegate.kernels.copy import Bytes, Offsets, checked_ranges, copy_checked, refuse_shared

__all__ = ["Moves"]


class Moves(msgspec.Struct, frozen=True):
    """Equal columns, one entry for each object and area: where in the arena, where in the memory, how many bytes, moved or not."""

    arena: Bytes
    memory: Bytes
    in_arena: Offsets
    in_memory: Offsets
    lengths: Offsets
    moved: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls, arena: Bytes, memory: Bytes, layout: ExtentLayout, layer: int, objects: tuple[list[int], list[int], list[bool]],
        offsets: Offsets, *, save: bool,
    ) -> Moves:  # fmt: skip
        """objects: of each its extent, its rows, and whether it is moved; offsets: [objects, areas], in `memory`.  ValueError for a range
        that leaves either, and where the two share memory.
        """
        refuse_shared(arena, memory)
        row_bytes = layout.row_bytes(layer)
        shape = (len(objects[0]), len(row_bytes))
        offsets = np.asarray(offsets)
        if offsets.shape != shape or offsets.dtype.kind not in "iu":
            raise ValueError(f"offsets of shape {offsets.shape} and type {offsets.dtype} for {shape[0]} objects of {shape[1]} areas: "
                             "one whole number for each")  # fmt: skip
        extents, rows, moved = np.array(objects[0], np.int64), np.array(objects[1], np.int64), np.array(objects[2], np.bool_)
        in_arena = (extents * layout.size)[None, :] + layout.area_offsets(layer)[:, None]
        lengths = row_bytes[:, None] * rows[None, :]
        sides = [(arena.size, in_arena.ravel()), (memory.size, offsets.T.ravel())]
        (to_size, to), (from_size, from_) = sides if save else reversed(sides)
        to, from_, lengths = checked_ranges(to_size, from_size, to, from_, lengths.ravel())
        in_arena, in_memory = (to, from_) if save else (from_, to)
        return cls(arena, memory, in_arena, in_memory, lengths, np.concatenate([moved] * shape[1]))

    def save(self, work: Work, *, record: bool) -> Job:
        """Memory to arena."""
        columns = self.in_arena, self.in_memory, self.lengths
        if not self.moved.all():
            columns = columns[0][self.moved], columns[1][self.moved], columns[2][self.moved]

        def copy() -> tuple[int, int]:
            return copy_checked(self.arena, self.memory, *columns), int(columns[2].sum())

        ranges = np.stack([self.in_memory, self.in_arena, self.lengths], 1).tolist() if record else []
        return Job("save", work, ranges, self._saved, None, copy)

    def load(self, work: Work, *, record: bool, kind: str = "load") -> Job:
        """Arena to memory."""

        def copy() -> tuple[int, int]:
            copies = copy_checked(self.memory, self.arena, self.in_memory, self.in_arena, self.lengths)
            return copies, int(self.lengths.sum())

        ranges = np.stack([self.in_arena, self.in_memory, self.lengths], 1).tolist() if record else []
        return Job(kind, work, ranges, None, self._loaded, copy)

    def _saved(self) -> list[Bytes]:
        """What a save vouches for: the rows in memory, or, of what is stored, those in the pool."""
        columns = zip(self.moved.tolist(), self.in_memory.tolist(), self.in_arena.tolist(), self.lengths.tolist(), strict=True)
        return [self.memory[m : m + n] if moved else self.arena[a : a + n] for moved, m, a, n in columns]

    def _loaded(self) -> list[Bytes]:
        return [self.memory[m : m + n] for m, n in zip(self.in_memory.tolist(), self.lengths.tolist(), strict=True)]
