"""The structures of native/tidegate.h, field by field, and what its error codes mean.

Rules: a field here is a field there, in the same order, and a library with other sizes is refused; the torch versions raise
through the same sentences, so an error does not depend on what runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NoReturn

__all__ = [
    "STRUCTURES", "DequantizeArguments", "MissArguments", "Part", "QuantizeArguments", "RowArguments", "StepArguments", "TruncateArguments",
    "complain",
]  # fmt: skip

NO_MEMORY = 1
ROW_OUTSIDE, ROW_TWICE, LENGTH_OUTSIDE, KEEP_NEGATIVE, NO_ATTEMPT, TOO_MANY = 2, 3, 4, 5, 6, 7
TARGET_OUTSIDE, SOURCE_OUTSIDE, MISS_OUTSIDE, TABLE_SHORT, BLOCK_OUTSIDE = 8, 9, 10, 11, 12

SENTENCES = {
    ROW_OUTSIDE: "entry {0} names row {1}: the table has rows 0..{rows}",
    ROW_TWICE: "entry {0} names row {1} again: one step asks once of each row; put its positions into one entry",
    LENGTH_OUTSIDE: "entry {0} has length {1}: lengths are 0..2**31, counted in tokens",
    KEEP_NEGATIVE: "entry {0} keeps {1} positions: 0 drops them all, fewer there are not",
    NO_ATTEMPT: "entry {0} has attempt {1}: nonces begin at 1, 0 is nobody's",
    TOO_MANY: "entry {0} asks for {1} distinct positions of a hot buffer of {hot}: it must hold one step's rows; enlarge it",
    TARGET_OUTSIDE: "entry {0} goes to row {1}: the destination has rows 0..{targets}",
    SOURCE_OUTSIDE: "entry {0} comes from row {1}: the source has rows 0..{sources}",
    MISS_OUTSIDE: "entry {0} misses position {1} in slot {2}: this step is not of a hot buffer of {hot}",
    TABLE_SHORT: "entry {0} misses position {1}: its block table has {width} blocks of {block}; give the blocks of the whole row",
    BLOCK_OUTSIDE: "entry {0} misses position {1}, which is in block {2}: the pool has blocks 0..{blocks}",
}


def complain(code: int, bad: Sequence[int], **known: int) -> NoReturn:
    """Raise what a native function's error code says; nothing was written."""
    if code == NO_MEMORY:
        raise MemoryError("no memory for the working space of a kernel: nothing was done")
    raise ValueError(SENTENCES[code].format(*bad, **known) + " (nothing was changed)")


def _fields(pointers: str, rest: str) -> list[tuple[str, Any]]:
    return [(n, ctypes.c_void_p) for n in pointers.split()] + [(n, ctypes.c_int64) for n in rest.split()]


BAD = ("bad", ctypes.c_int64 * 3)


class StepArguments(ctypes.Structure):
    """tg_step."""

    _fields_ = [
        *_fields("positions slots attempts", "table_rows hot"),
        *_fields("asked", "asked_size n k"),
        *_fields("rows lengths nonces keep out_slots miss_positions miss_slots counts", "isa threads"),
        BAD,
    ]


class TruncateArguments(ctypes.Structure):
    """tg_truncate_args."""

    _fields_ = [*_fields("positions slots attempts", "table_rows hot n"), *_fields("rows nonces keep", ""), BAD]


class Part(ctypes.Structure):
    """tg_part."""

    _fields_ = _fields("target source", "target_stride source_stride size")


class RowArguments(ctypes.Structure):
    """tg_rows."""

    _fields_ = [
        *_fields("parts", "n_parts"),
        *_fields("target_rows source_rows", "n targets sources skip threads"),
        BAD,
    ]


class MissArguments(ctypes.Structure):
    """tg_misses."""

    _fields_ = [
        *_fields("parts", "n_parts"),
        *_fields("rows miss_positions miss_slots misses", "n k hot"),
        *_fields("table", "table_size table_width block targets sources threads"),
        BAD,
    ]


class QuantizeArguments(ctypes.Structure):
    """tg_quantize_args."""

    _fields_ = _fields("source rows scales", "source_size source_stride n width isa threads")


class DequantizeArguments(ctypes.Structure):
    """tg_dequantize_args."""

    _fields_ = _fields("rows scales target", "row_stride scale_stride n width isa threads")


STRUCTURES = (  # as tg_sizes counts them
    StepArguments, TruncateArguments, Part, RowArguments, MissArguments, QuantizeArguments, DequantizeArguments,
)  # fmt: skip
