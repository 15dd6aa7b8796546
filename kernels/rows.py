"""Token rows of one or several parts (K and V) between a paged host pool and other memory.

Rules: every row number is checked, in 64 bits, before the first byte moves, so a bad one moves nothing; the parts of a token
move together; of several writes to one row the last stays, whatever the number of threads; source and destination must not
share memory.

A pool's part is a tensor [rows, width] or [blocks, block, width]: a token's row number is block * block size + offset, either
way.  Rows may lie apart (a view of wider rows), the elements of a row may not.
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

__all__ = ["append_rows", "fetch_misses", "fetch_rows"]


class _Pairing(NamedTuple):
    """Parts as matrices [rows, width], destination and source side by side, checked to fit."""

    targets: list[Tensor]
    sources: list[Tensor]

    def native(self) -> ctypes.Array[Part]:
        return (Part * len(self.targets))(
            *(
                Part(t.data_ptr(), s.data_ptr(), t.stride(0) * t.element_size(), s.stride(0) * s.element_size(),
                     t.shape[1] * t.element_size())
                for t, s in zip(self.targets, self.sources, strict=True)
            )
        )  # fmt: skip


def append_rows(pool: Sequence[Tensor], slots: Tensor, rows: Sequence[Tensor], *, threads: int = 1) -> None:
    """Write new tokens into `pool`: row i of each part of `rows` becomes row `slots[i]` of the same part of `pool`.

    pool: parts [N, width] or [blocks, block, width]; rows: parts [n, width] of the same dtype and width; slots: int64 [n],
    -1 where a token is padding.  Part by part any dtype and width.  Safe when nobody reads the rows concerned.
    ValueError, with nothing written, for a slot outside the pool and for parts that do not fit.
    """
    _column("slots", slots)
    pairing = _pair("pool", pool, "rows", rows)
    if len(slots) != pairing.sources[0].shape[0]:
        raise ValueError(f"{len(slots)} slots for {pairing.sources[0].shape[0]} rows: give one slot a row")
    _copy(pairing, slots, None, skip=True, threads=threads)


def fetch_rows(hot: Sequence[Tensor], hot_rows: Tensor, pool: Sequence[Tensor], pool_rows: Tensor, *, threads: int = 1) -> None:
    """Copy row `pool_rows[i]` of each part of `pool` to row `hot_rows[i]` of the same part of `hot`.

    hot, pool: parts [rows, width] or with rows folded as [.., .., width], any dtype, dtype and width equal part by part;
    hot_rows, pool_rows: int64 [n].  Rows are read ahead of their copy, for they are anywhere.  Safe when nobody reads the
    rows of `hot` concerned and the rows of `pool` do not change.
    ValueError, with nothing written, for a row outside its side and for parts that do not fit.
    """
    _column("hot_rows", hot_rows)
    _column("pool_rows", pool_rows)
    if len(hot_rows) != len(pool_rows):
        raise ValueError(f"{len(hot_rows)} rows of the hot buffer for {len(pool_rows)} of the pool: give them in pairs")
    _copy(_pair("hot", hot, "pool", pool), hot_rows, pool_rows, skip=False, threads=threads)


def fetch_misses(
    hot: Sequence[Tensor], pool: Sequence[Tensor], step: Step, block_table: Tensor, block_size: int, *, threads: int = 1
) -> None:
    """Copy what `step` missed out of a paged pool into the slots that it was given.

    hot: parts [table rows, hot, width], the hot buffers of the table that made `step`; pool: parts [blocks, block_size, width]
    or flat; block_table: int32 or int64 [n, blocks], entry i the pool blocks of row i of the step, in order of position.
    Safe and refused as `fetch_rows`.
    """
    if block_table.ndim != 2 or block_table.dtype not in (torch.int32, torch.int64) or len(block_table) != len(step.rows):
        raise ValueError(
            f"block_table is {block_table.dtype} of shape {tuple(block_table.shape)}: "
            f"give int32 or int64 block numbers, one line for each of {len(step.rows)} rows"
        )
    if block_size < 1 or any(part.ndim != 3 for part in hot):
        raise ValueError(f"block_size is {block_size} and hot {_shapes(hot)}: blocks hold a token at least, hot is [rows, hot, width]")
    pairing, slots = _pair("hot", hot, "pool", pool), hot[0].shape[1]
    known = {"hot": slots, "rows": hot[0].shape[0], "width": block_table.shape[1], "block": block_size}
    known["blocks"] = pairing.sources[0].shape[0] // block_size
    native = native_for(*hot, *pool, block_table, step.misses)
    if native is None:
        targets, sources = reference.miss_rows(step, block_table, known)
        reference.copy_rows(pairing.targets, pairing.sources, targets, sources)
        return
    table, parts = block_table.contiguous(), pairing.native()
    s = MissArguments(
        ctypes.addressof(parts), len(parts), step.rows.data_ptr(), step.miss_positions.data_ptr(), step.miss_slots.data_ptr(),
        step.misses.data_ptr(), *step.slots.shape, slots, table.data_ptr(), table.element_size(), table.shape[1], block_size,
        pairing.targets[0].shape[0], pairing.sources[0].shape[0], native.isa, threads,
    )  # fmt: skip
    code = native.library.tg_fetch_misses(ctypes.byref(s))
    if code:
        complain(code, s.bad, **known)


def _copy(pairing: _Pairing, target_rows: Tensor, source_rows: Tensor | None, *, skip: bool, threads: int) -> None:
    known = {"targets": pairing.targets[0].shape[0], "sources": pairing.sources[0].shape[0]}
    indices = [target_rows] if source_rows is None else [target_rows, source_rows]
    native = native_for(*pairing.targets, *pairing.sources, *indices)
    if native is None:
        targets, sources = reference.checked_rows(target_rows, source_rows, skip, known)
        reference.copy_rows(pairing.targets, pairing.sources, targets, sources)
        return
    indices, parts = [index.contiguous() for index in indices], pairing.native()
    s = RowArguments(
        ctypes.addressof(parts), len(parts), indices[0].data_ptr(), None if source_rows is None else indices[1].data_ptr(),
        len(target_rows), *known.values(), skip, native.isa, threads,
    )  # fmt: skip
    code = native.library.tg_copy_rows(ctypes.byref(s))
    if code:
        complain(code, s.bad, **known)


def _column(name: str, values: Tensor) -> None:
    if values.ndim != 1 or values.dtype != torch.int64:
        raise ValueError(f"{name} is {values.dtype} of shape {tuple(values.shape)}: give row numbers as int64 [n]")


def _shapes(parts: Sequence[Tensor]) -> str:
    return ", ".join(f"{part.dtype} {tuple(part.shape)}" for part in parts)


def _pair(target_name: str, targets: Sequence[Tensor], source_name: str, sources: Sequence[Tensor]) -> _Pairing:
    pairing = _Pairing(_matrices(target_name, targets), _matrices(source_name, sources))
    kinds = [[(part.dtype, part.shape[1]) for part in side] for side in pairing]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"{target_name} has parts {_shapes(targets)}, {source_name} has {_shapes(sources)}: "
            f"they must agree in number, dtype and width"
        )
    for target in pairing.targets:
        for source in pairing.sources:
            if _overlap(target, source):
                raise ValueError(f"{target_name} and {source_name} share memory: copy through a buffer of its own")
    return pairing


def _matrices(name: str, parts: Sequence[Tensor]) -> list[Tensor]:
    if not parts:
        raise ValueError(f"{name} has no part: give at least one tensor of rows")
    flat = [part if part.ndim == 2 else _matrix(name, part) for part in parts]
    for matrix, part in zip(flat, parts, strict=True):
        if matrix.shape[1] > 1 and matrix.stride(1) != 1:
            raise ValueError(f"{name} of shape {tuple(part.shape)} has stride {part.stride()}: a row's elements must be adjacent")
        if matrix.shape[0] != flat[0].shape[0]:
            raise ValueError(f"{name} has parts {_shapes(parts)}: they must have the same number of rows")
    return flat


def _matrix(name: str, part: Tensor) -> Tensor:
    if part.ndim != 3:
        raise ValueError(f"{name} has a part of shape {tuple(part.shape)}: give [rows, width] or [blocks, block, width]")
    try:
        return part.view(-1, part.shape[2])
    except RuntimeError as error:
        raise ValueError(
            f"{name} of shape {tuple(part.shape)} has stride {part.stride()}: rows must lie at equal distances"
        ) from error


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether the spans of two matrices, first byte to last, meet."""
    if a.device != b.device or not a.numel() or not b.numel():
        return False
    spans = []
    for m in (a, b):
        first = m.data_ptr()
        spans.append((first, first + ((m.shape[0] - 1) * m.stride(0) + m.shape[1]) * m.element_size()))
    return spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1]
