"""Indexer rows in 8 bits with one scale a row (LIC8), and back.

Rules: the scale is a half (float16), the row's greatest size / 127; an element is x / scale rounded to nearest even, within +-127; a
row of sizes too small for a scale is all zero; a row with a NaN or an infinity, or one too large for a scale, has scale NaN and reads
back as NaN, so that spoilt rows show.  All implementations give the same bits, and a row's do not depend on the others.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tidegate.kernels import reference
from tidegate.kernels.abi import DequantizeArguments, QuantizeArguments
from tidegate.kernels.dispatch import native_for

__all__ = ["dequantize_rows", "quantize_rows"]

TYPES = (torch.bfloat16, torch.float32, torch.float64)


def quantize_rows(rows: Tensor, *, threads: int = 1) -> tuple[Tensor, Tensor]:
    """(int8 [n, width], scales float16 [n, 1]) of `rows` [n, width], bfloat16, float32, or float64, which is rounded to float32 first.

    Rows may lie apart, the elements of a row may not.  threads: the most that may compute.  ValueError for another shape or type.
    """
    _matrix("rows", rows, TYPES)
    native = native_for(rows)
    if native is None or not rows.numel():
        return reference.quantize(rows) if rows.numel() else (rows.to(torch.int8), rows.new_zeros(len(rows), 1, dtype=torch.float16))
    rows = rows.float() if rows.dtype == torch.float64 else rows
    out, scales = torch.empty(rows.shape, dtype=torch.int8), torch.empty(len(rows), 1, dtype=torch.float16)
    size = rows.element_size()
    s = QuantizeArguments(
        rows.data_ptr(), out.data_ptr(), scales.data_ptr(), size, rows.stride(0) * size, *rows.shape, native.isa, threads
    )
    native.library.tg_quantize(ctypes.byref(s))
    return out, scales


def dequantize_rows(rows: Tensor, scales: Tensor, *, threads: int = 1) -> Tensor:
    """float32 [n, width]: each of `rows` (int8 [n, width]) times its scale (float16 [n, 1]), rounded once; otherwise as `quantize_rows`."""
    _matrix("rows", rows, (torch.int8,))
    _matrix("scales", scales, (torch.float16,))
    if scales.shape != (len(rows), 1):
        raise ValueError(f"scales are {tuple(scales.shape)} for {len(rows)} rows: give one of each, [{len(rows)}, 1]")
    native = native_for(rows, scales)
    if native is None or not rows.numel():
        return reference.dequantize(rows, scales)
    out = torch.empty(rows.shape, dtype=torch.float32)
    s = DequantizeArguments(
        rows.data_ptr(), scales.data_ptr(), out.data_ptr(), rows.stride(0), scales.stride(0), *rows.shape, native.isa, threads
    )
    native.library.tg_dequantize(ctypes.byref(s))
    return out


def _matrix(name: str, x: Tensor, types: tuple[torch.dtype, ...]) -> None:
    if x.ndim != 2 or x.dtype not in types or (x.shape[1] > 1 and x.stride(1) != 1):
        raise ValueError(
            f"{name} is {x.dtype} of shape {tuple(x.shape)} and stride {x.stride()}: give {' or '.join(map(str, types))} [n, width], "
            "the elements of a row side by side"
        )
