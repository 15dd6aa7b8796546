"""Token rows of one or several parts (K and V) between a paged host pool and other memory.

Rules: every row number is checked, in 64 bits, before the first byte moves, so a bad one moves nothing; the parts of a token
move together; of several writes to one row the last stays, whatever the number of threads; source and destination must not
share memory.

A pool's part is a tensor [rows, width] or [blocks, block, width]: a token's row number is block * block size + offset, either
way.  Rows may lie apart (a view of wider rows), the elements of a row may not.  Who copies between the same memory again and
again keeps a `RowPath`; the functions make one for each call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tidegate.kernels import reference
from tidegate.kernels.abi import MissArguments, Part, RowArguments, complain
from tidegate.kernels.dispatch import native_for
from tidegate.kernels.residency import Step

__all__ = ["RowPath", "append_rows", "fetch_misses", "fetch_rows"]


class _Flat(NamedTuple):
    """A part as a matrix of rows: where it lies, and distances in bytes."""

    first: int
    rows: int
    stride: int
    device: torch.device
    dtype: torch.dtype
    size: int


class RowPath:
    """The way of rows from the parts `of` to the parts `to`, checked once to fit, for many copies of rows.

    to, of: parts as the module says, as many on both sides, equal in dtype and width one by one.  ValueError where they are not,
    and where the two sides share memory.  Keeps both alive.
    """

    def __init__(self, to: Sequence[Tensor], of: Sequence[Tensor], *, names: tuple[str, str] = ("to", "of")) -> None:
        targets, sources = _side(names[0], to), _side(names[1], of)
        if len(targets) != len(sources) or any(t[4:6] != s[4:6] for t, s in zip(targets, sources, strict=True)):
            raise ValueError(
                f"{names[0]} has parts {_shapes(to)}, {names[1]} has {_shapes(of)}: they must agree in number, dtype and width"
            )
        for t in targets:
            for s in sources:
                if t.first < s.first + s.rows * s.stride and s.first < t.first + t.rows * t.stride and t.device == s.device:
                    raise ValueError(f"{names[0]} and {names[1]} share memory: copy through a buffer of its own")
        self.to, self.of = list(to), list(of)
        self.targets, self.sources = targets[0].rows, sources[0].rows
        both = zip(targets, sources, strict=True)
        self._parts = (Part * len(to))(*(Part(t.first, s.first, t.stride, s.stride, t.size) for t, s in both))
        self._address = ctypes.addressof(self._parts)
        self._on_host = all(part.is_cpu for part in (*to, *of))

    def copy(self, target_rows: Tensor, source_rows: Tensor | None = None, *, threads: int = 1) -> None:
        """Row `source_rows[i]` to row `target_rows[i]` (int64 [n] each), part by part.

        Without `source_rows` row i goes to row `target_rows[i]`, where -1 is padding.  Safe when nobody reads the target rows and
        the source rows do not change.  ValueError, with nothing written, for a row outside its side.
        """
        _column("target rows", target_rows)
        skip = source_rows is None
        native = native_for(target_rows) if self._on_host else None
        if source_rows is None:
            n, source = self.sources, None
        else:
            _column("source rows", source_rows)
            n, source = len(source_rows), (source_rows := source_rows.contiguous()).data_ptr()
        if n != len(target_rows):
            raise ValueError(f"{len(target_rows)} target rows for {n} source rows: give them in pairs")
        if native is None:
            pairs = reference.checked_rows(target_rows, source_rows, skip, {"targets": self.targets, "sources": self.sources})
            reference.copy_rows(self.to, self.of, *pairs)
            return
        target_rows = target_rows.contiguous()
        s = RowArguments(
            self._address, len(self.to), target_rows.data_ptr(), source, n, self.targets, self.sources, skip, threads
        )
        code = native.library.tg_copy_rows(ctypes.byref(s))
        if code:
            complain(code, s.bad, targets=self.targets, sources=self.sources)

    def copy_misses(self, step: Step, block_table: Tensor, block_size: int, *, threads: int = 1) -> None:
        """What `step` missed, out of the paged pool `of` into the slots that it was given in the hot buffers `to`.

        The parts of `to` are [table rows, hot, width], of the table that made `step`; block_table: int32 or int64 [n, blocks],
        entry i the blocks of row i of the step, in order of position.  Safe and refused as `copy`.
        """
        if block_table.ndim != 2 or block_table.dtype not in (torch.int32, torch.int64) or len(block_table) != len(step.rows):
            raise ValueError(
                f"block_table is {block_table.dtype} of shape {tuple(block_table.shape)}: "
                f"give int32 or int64 block numbers, one line for each of {len(step.rows)} rows"
            )
        if block_size < 1 or self.to[0].ndim != 3:
            raise ValueError(
                f"block_size is {block_size} and hot {_shapes(self.to)}: blocks hold a token at least, hot is [rows, hot, width]"
            )
        rows, hot, _ = self.to[0].shape
        known = {"hot": hot, "rows": rows, "width": block_table.shape[1], "block": block_size, "blocks": self.sources // block_size}
        native = native_for(block_table, step.counts) if self._on_host else None
        if native is None:
            reference.copy_rows(self.to, self.of, *reference.miss_rows(step, block_table, known))
            return
        table = block_table.contiguous()
        s = MissArguments(
            self._address, len(self.to), step.rows.data_ptr(), step.miss_positions.data_ptr(), step.miss_slots.data_ptr(),
            step.misses.data_ptr(), *step.slots.shape, hot, table.data_ptr(), table.element_size(), table.shape[1], block_size,
            self.targets, self.sources, threads,
        )  # fmt: skip
        code = native.library.tg_fetch_misses(ctypes.byref(s))
        if code:
            complain(code, s.bad, **known)


def append_rows(pool: Sequence[Tensor], slots: Tensor, rows: Sequence[Tensor], *, threads: int = 1) -> None:
    """Write new tokens into `pool`: row i of each part of `rows` becomes row `slots[i]` of the same part of `pool`.

    pool: parts [N, width] or [blocks, block, width]; rows: parts [n, width] of the same dtype and width; slots: int64 [n],
    -1 where a token is padding.  Part by part any dtype and width.  Safe and refused as `RowPath.copy`.
    """
    RowPath(pool, rows, names=("pool", "rows")).copy(slots, threads=threads)


def fetch_rows(hot: Sequence[Tensor], hot_rows: Tensor, pool: Sequence[Tensor], pool_rows: Tensor, *, threads: int = 1) -> None:
    """Copy row `pool_rows[i]` of each part of `pool` to row `hot_rows[i]` of the same part of `hot`; see `RowPath.copy`."""
    RowPath(hot, pool, names=("hot", "pool")).copy(hot_rows, pool_rows, threads=threads)


def fetch_misses(
    hot: Sequence[Tensor], pool: Sequence[Tensor], step: Step, block_table: Tensor, block_size: int, *, threads: int = 1
) -> None:
    """Copy what `step` missed out of a paged pool into the slots that it was given; see `RowPath.copy_misses`."""
    RowPath(hot, pool, names=("hot", "pool")).copy_misses(step, block_table, block_size, threads=threads)


def _column(name: str, values: Tensor) -> None:
    if values.ndim != 1 or values.dtype != torch.int64:
        raise ValueError(f"{name} is {values.dtype} of shape {tuple(values.shape)}: give row numbers as int64 [n]")


def _shapes(parts: Sequence[Tensor]) -> str:
    return ", ".join(f"{part.dtype} {tuple(part.shape)}" for part in parts)


def _side(name: str, parts: Sequence[Tensor]) -> list[_Flat]:
    flat = [_flat(name, part) for part in parts]
    if not flat:
        raise ValueError(f"{name} has no part: give at least one tensor of rows")
    if any(one.rows != flat[0].rows for one in flat):
        raise ValueError(f"{name} has parts {_shapes(parts)}: they must have the same number of rows")
    return flat


def _flat(name: str, part: Tensor) -> _Flat:
    shape, stride, bytes_each = part.shape, part.stride(), part.element_size()
    if len(shape) == 3 and (stride[0] == shape[1] * stride[1] or shape[0] < 2):
        rows = shape[0] * shape[1]
    elif len(shape) == 2:
        rows = shape[0]
    elif len(shape) == 3:
        raise ValueError(f"{name} of shape {tuple(shape)} has stride {stride}: rows must lie at equal distances")
    else:
        raise ValueError(f"{name} has a part of shape {tuple(shape)}: give [rows, width] or [blocks, block, width]")
    if stride[-1] != 1 and shape[-1] > 1:
        raise ValueError(f"{name} of shape {tuple(shape)} has stride {stride}: a row's elements must be adjacent")
    return _Flat(part.data_ptr(), rows, stride[-2] * bytes_each, part.device, part.dtype, shape[-1] * bytes_each)
