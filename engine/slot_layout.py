"""What lies where in a Prefill rank's layer memory: plain data, sent to Decode and checked there.

Rules: a layout is whole and free of contradiction before anything is allocated or mapped by it; its digest names it,
so that two processes that agree on the digest agree on every address; sizes and offsets are bytes, in 64 bits.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import msgspec
import torch

VERSION = 1
PAGE = 4096
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64, "int8": torch.int8}


class Area(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array of a slot: `rows` rows of `width` elements, `stride` bytes from one to the next, the first at byte
    `offset`.
    """

    slot: int
    name: str  # "main", "index"
    dtype: str
    rows: int
    width: int
    offset: int
    stride: int

    @property
    def row_bytes(self) -> int:
        return self.width * DTYPES[self.dtype].itemsize

    @property
    def end(self) -> int:
        """First byte after the last row."""
        return self.offset + (self.rows - 1) * self.stride + self.row_bytes

    def row_range(self, first: int, count: int) -> tuple[int, int]:
        """(offset, length) in bytes of rows first..first + count in the whole memory; ValueError if the slot has
        fewer.
        """
        if first < 0 or count < 0 or first + count > self.rows:
            raise ValueError(f"rows {first}..{first + count} of slot {self.slot} {self.name}: it has {self.rows}")
        return self.offset + first * self.stride, count * self.stride


class SlotLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What lies where in one Prefill rank's layer memory, and which slot each layer uses."""

    version: int
    size: int  # bytes of the whole memory
    areas: tuple[Area, ...]
    slot_of_layer: tuple[int, ...]
    digest: str  # of all the above: two processes that agree on it agree on every address

    @property
    def slots(self) -> int:
        return len({area.slot for area in self.areas})

    def area(self, slot: int, name: str) -> Area:
        """ValueError where there is none."""
        for area in self.areas:
            if (area.slot, area.name) == (slot, name):
                return area
        raise ValueError(f"slot {slot} has no {name} area: there are {[(a.slot, a.name) for a in self.areas]}")

    def layers(self, slot: int) -> tuple[int, ...]:
        """The layers that share `slot`."""
        return tuple(layer for layer, owner in enumerate(self.slot_of_layer) if owner == slot)


def plan_layout(slot_of_layer: Sequence[int], rows: int, widths: dict[str, int], dtype: str) -> SlotLayout:
    """A layout of page-aligned areas: each slot gets `rows` rows of every name in `widths` ({"main": 576, "index":
    128}).

    ValueError for a slot number that is skipped, and for sizes below one.
    """
    areas, offset = [], 0
    for slot in sorted(set(slot_of_layer)):
        for name, width in widths.items():
            if dtype not in DTYPES:
                raise ValueError(f"dtype is {dtype!r}: choose one of {', '.join(DTYPES)}")
            stride = width * DTYPES[dtype].itemsize
            areas.append(Area(slot, name, dtype, rows, width, offset, stride))
            offset = -(-(offset + rows * stride) // PAGE) * PAGE
    layout = SlotLayout(VERSION, offset, tuple(areas), tuple(slot_of_layer), "")
    layout = msgspec.structs.replace(layout, digest=layout_digest(layout))
    check_layout(layout, layout.size)
    return layout


def layout_digest(layout: SlotLayout) -> str:
    """16 hex digits over everything in `layout` but its digest."""
    return hashlib.blake2b(msgspec.json.encode(msgspec.structs.replace(layout, digest="")), digest_size=8).hexdigest()


def check_layout(layout: SlotLayout, size: int) -> None:
    """ValueError, naming the rule, unless `layout` describes memory of `size` bytes without a contradiction."""
    if layout.version != VERSION:
        raise ValueError(f"layout version {layout.version}: this side speaks {VERSION}; run the same release on both sides")
    if layout.digest != layout_digest(layout):
        raise ValueError(f"layout digest {layout.digest!r} does not belong to this layout ({layout_digest(layout)!r} does)")
    if layout.size != size:
        raise ValueError(f"layout is of {layout.size} bytes, the memory has {size}: the peer described other memory")
    for area in layout.areas:
        _check_area(area, layout.size)
    if len({(area.slot, area.name) for area in layout.areas}) != len(layout.areas):
        raise ValueError("layout names one area of a slot twice")
    for one, two in itertools.pairwise(sorted(layout.areas, key=lambda area: area.offset)):
        if two.offset < one.end:
            raise ValueError(
                f"slot {two.slot} {two.name} begins at {two.offset}, inside slot {one.slot} {one.name} (to {one.end})"
            )
    slots = {area.slot for area in layout.areas}
    if slots != set(range(len(slots))) or slots != set(layout.slot_of_layer):
        raise ValueError(f"slots {sorted(slots)} for layers {layout.slot_of_layer}: count from 0, skip none, use each")


def _check_area(area: Area, size: int) -> None:
    what = f"slot {area.slot} {area.name}"
    if area.dtype not in DTYPES:
        raise ValueError(f"{what}: dtype is {area.dtype!r}: choose one of {', '.join(DTYPES)}")
    if area.slot < 0 or area.rows < 1 or area.width < 1 or area.offset < 0:
        raise ValueError(f"{what}: {area.rows} rows of {area.width} at {area.offset}: sizes start at 1, numbers at 0")
    if area.stride < area.row_bytes or area.stride % DTYPES[area.dtype].itemsize or area.offset % DTYPES[area.dtype].itemsize:
        raise ValueError(f"{what}: stride {area.stride} at {area.offset} for rows of {area.row_bytes} bytes of {area.dtype}")
    if area.end > size:
        raise ValueError(f"{what} ends at byte {area.end}: the memory has {size}")
