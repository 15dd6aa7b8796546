"""Copies byte ranges (blocks of a layer) between two buffers.

Rules: every range is checked in 64 bits against both buffers before the first byte moves, so a bad range moves nothing;
ranges are copied in order and neighbours that continue each other on both sides become one copy; the two buffers must not
share memory; the native path releases the GIL, the fallback gives the same bytes and the same number of copies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tidegate.kernels.dispatch import native_for

__all__ = ["Bytes", "Offsets", "as_bytes", "checked_ranges", "copy_checked", "copy_ranges", "first_astray", "refuse_shared"]

INT64 = np.dtype(np.int64)
_addressof: Callable[[Any], int] = ctypes.addressof
_a_byte_of: Callable[[Any], Any] = ctypes.c_char.from_buffer
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


def as_bytes(buffer: Any, *, writable: bool = False) -> Bytes:
    """A flat uint8 view (no copy) of a contiguous torch CPU tensor, numpy array, mmap, memoryview or bytes.

    Raises ValueError where the memory is not contiguous, not on the host, or read-only although it is to be written.
    """
    if isinstance(buffer, Tensor):
        if buffer.device.type != "cpu":
            raise ValueError(f"buffer is on {buffer.device}: only host memory can be copied here; move it with .cpu() first")
        if not buffer.is_contiguous():
            raise ValueError(
                f"tensor of shape {tuple(buffer.shape)} and stride {buffer.stride()} is not contiguous: pass a contiguous view"
            )
        view: Bytes = buffer.detach().reshape(-1).view(torch.uint8).numpy()
    elif isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise ValueError(
                f"array of shape {buffer.shape} and strides {buffer.strides} is not contiguous: pass a contiguous view"
            )
        view = buffer.reshape(-1).view(np.uint8)
    else:
        view = np.frombuffer(buffer, dtype=np.uint8)
    if writable and not view.flags.writeable:
        raise ValueError("destination is read-only: map or allocate it writable")
    return view


def checked_ranges(
    dst_size: int,
    src_size: int,
    dst_off: Sequence[int] | Offsets,
    src_off: Sequence[int] | Offsets,
    length: Sequence[int] | Offsets,
) -> tuple[Offsets, Offsets, Offsets]:
    """The three columns as contiguous int64 arrays; ValueError names the first range that leaves a buffer (sizes in bytes)."""
    d, s, n = _column("dst_off", dst_off), _column("src_off", src_off), _column("length", length)
    if not len(d) == len(s) == len(n):
        raise ValueError(
            f"dst_off, src_off and length have {len(d)}, {len(s)} and {len(n)} entries: give one of each per range"
        )
    if (i := _first_outside(dst_size, src_size, d, s, n)) >= 0:
        raise ValueError(
            f"range {i} (source {s[i]}, destination {d[i]}, length {n[i]}) leaves the source of {src_size} bytes "
            f"or the destination of {dst_size} bytes: nothing was copied"
        )
    return d, s, n


def _first_outside(dst_size: int, src_size: int, d: Offsets, s: Offsets, n: Offsets) -> int:
    """The first range that leaves a buffer, -1 if none does."""
    if (native := native_for()) is not None:
        return int(native.library.tg_first_outside(_address(d), _address(s), _address(n), len(n), dst_size, src_size))
    # written as off > size - n, since off + n could pass 2**63
    bad = (n < 0) | (d < 0) | (s < 0) | (n > dst_size) | (n > src_size) | (d > dst_size - n) | (s > src_size - n)
    return int(bad.argmax()) if bad.any() else -1


def first_astray(offsets: Offsets, lengths: Offsets, spans: Offsets) -> int:
    """The first range that is not empty and not wholly in one of `spans`, -1 if there is none.

    offsets, lengths: contiguous int64 [n], such as `checked_ranges` gives; spans: contiguous int64 [m, 2], each [first, last), in order
    and apart.
    """
    if (native := native_for()) is not None:
        return int(native.library.tg_first_astray(_address(offsets), _address(lengths), len(offsets), _address(spans), len(spans)))
    first, stop = spans.T
    which = np.searchsorted(first, offsets, "right") - 1
    bad = (which < 0) | (offsets > stop[which] - lengths) if len(first) else np.ones(len(offsets), bool)
    bad &= lengths > 0
    return int(bad.argmax()) if bad.any() else -1


def _address(array: npt.NDArray[Any]) -> int:
    """Of a contiguous array's first byte; by its interface, which takes longer, where its memory cannot be borrowed."""
    try:
        return _addressof(_a_byte_of(array))
    except (TypeError, ValueError):  # read-only, or empty
        return int(array.__array_interface__["data"][0])


def _column(name: str, values: Sequence[int] | Offsets) -> Offsets:
    if isinstance(values, np.ndarray) and values.dtype is INT64 and values.ndim == 1 and values.flags.c_contiguous:
        return values
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name} is of shape {array.shape} and type {array.dtype}: give a flat sequence of integers below 2**63"
        )
    if array.dtype.kind == "u" and int(array.max()) >= 2**63:
        raise ValueError(f"{name} holds {int(array.max())}: offsets and lengths are below 2**63")
    return np.ascontiguousarray(array, dtype=np.int64)


def copy_ranges(
    dst: Any,
    src: Any,
    dst_off: Sequence[int] | Offsets,
    src_off: Sequence[int] | Offsets,
    length: Sequence[int] | Offsets,
    *,
    threads: int = 1,
) -> int:
    """Copy `length[i]` bytes from `src[src_off[i]:]` to `dst[dst_off[i]:]` for each i; the number of copies, after coalescing.

    dst and src: contiguous torch tensors of any device, or other host buffers; they share no memory.  Offsets and lengths are
    in bytes.  threads: the most that may copy; where ranges overlap in dst, the last stays all the same.
    ValueError, with nothing copied, for a range that leaves either; safe when nobody else touches the ranges.
    """
    if any(isinstance(x, Tensor) and x.device.type != "cpu" for x in (dst, src)):
        target, source = _device_bytes(dst), _device_bytes(src)
        return copy_runs(target, source, *checked_ranges(target.numel(), source.numel(), dst_off, src_off, length))
    to, of = as_bytes(dst, writable=True), as_bytes(src)
    d, s, n = checked_ranges(to.size, of.size, dst_off, src_off, length)
    refuse_shared(to, of)
    return copy_checked(to, of, d, s, n, threads=threads)


def refuse_shared(dst: Bytes, src: Bytes) -> None:
    """ValueError where two buffers share memory: the order of their bytes' copies would count."""
    if np.may_share_memory(dst, src):
        raise ValueError("source and destination share memory: copy through a buffer of its own")


def copy_checked(dst: Bytes, src: Bytes, d: Offsets, s: Offsets, n: Offsets, *, threads: int = 1) -> int:
    """`copy_ranges` of host memory for columns that `checked_ranges` gave, and buffers that `refuse_shared` let pass."""
    native = native_for()
    if native is None:
        return copy_runs(dst, src, d, s, n)
    addresses = _address(dst), _address(src), _address(d), _address(s), _address(n)
    copies: int = native.library.tg_copy_ranges(*addresses, len(n), native.isa, threads)
    if copies < 0:
        raise MemoryError("no memory for the working space of a kernel: nothing was copied")
    return copies


def _device_bytes(buffer: Any) -> Tensor:
    return buffer.view(-1).view(torch.uint8) if isinstance(buffer, Tensor) else torch.from_numpy(as_bytes(buffer))


def copy_runs(dst: Any, src: Any, d: Offsets, s: Offsets, n: Offsets) -> int:
    """The fallback for checked ranges, of flat bytes in numpy or torch: same bytes and number of copies as the native library."""
    d, s, n = (column[n > 0] for column in (d, s, n))
    if len(n) == 0:
        return 0
    breaks = (d[1:] != d[:-1] + n[:-1]) | (s[1:] != s[:-1] + n[:-1])
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    for i, total in zip(starts.tolist(), np.add.reduceat(n, starts).tolist(), strict=True):
        dst[d[i] : d[i] + total] = src[s[i] : s[i] + total]
    return len(starts)
