"""What lies where in a Prefill rank's layer memory: plain data, sent to Decode and checked there.

Rules: KV is paged: every array of every slot has the same number of blocks of the same number of tokens, so one list of block ids
says where a run's tokens are in all of them; layers that share a slot may have rows in some of its arrays only, and then nothing of
the others is saved, tagged or pulled for them; a layout is whole and free of contradiction before anything is allocated or mapped by
it; its digest names it, so that two processes that agree on the digest agree on every address; sizes and offsets are bytes, in 64
bits.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch

from tidegate.kernels.copy import Offsets

__all__ = ["DTYPES", "PAGE", "VERSION", "Area", "SlotLayout", "block_span", "check_layout", "layout_digest", "plan_layout", "spread"]

VERSION = 3
PAGE = 4096
DTYPES = {
    "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64, "int8": torch.int8, "float16": torch.float16,
}  # fmt: skip


class Area(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array of a slot, [blocks, block_size, width] of `dtype`, its first byte at `offset`; the layout says how many blocks."""

    slot: int
    name: str  # "main", "index", "scale"
    dtype: str
    width: int
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one token."""
        return self.width * DTYPES[self.dtype].itemsize


class SlotLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What lies where in one Prefill rank's layer memory, and which slot each layer uses."""

    version: int
    size: int  # bytes of the whole memory
    block_size: int  # tokens
    blocks: int  # in each area
    areas: tuple[Area, ...]
    slot_of_layer: tuple[int, ...]
    digest: str  # of all the others: two processes that agree on it agree on every address
    kinds_of_layer: tuple[tuple[str, ...], ...] = ()  # the areas in which each layer has rows; empty: all of its slot

    @property
    def slots(self) -> int:
        return len({area.slot for area in self.areas})

    def areas_of(self, slot: int, layer: int | None = None) -> tuple[Area, ...]:
        """The arrays of `slot`, in the order in which their rows are saved, tagged and pulled; of those that `layer` (from 0), which is
        there, has rows in.
        """
        own = self.kinds_of_layer[layer] if self.kinds_of_layer and layer is not None else None
        return tuple(area for area in self.areas if area.slot == slot and (own is None or area.name in own))

    def area(self, slot: int, name: str) -> Area:
        """ValueError where there is none."""
        for area in self.areas:
            if (area.slot, area.name) == (slot, name):
                return area
        raise ValueError(f"slot {slot} has no {name} area: there are {[(a.slot, a.name) for a in self.areas]}")

    def area_bytes(self, area: Area) -> int:
        return self.blocks * self.block_size * area.row_bytes

    def layers(self, slot: int) -> tuple[int, ...]:
        """The layers that share `slot`."""
        return tuple(layer for layer, owner in enumerate(self.slot_of_layer) if owner == slot)

    def token_rows(self, blocks: Sequence[int] | Offsets, start: int, stop: int) -> tuple[Offsets, Offsets]:
        """(first row in an area, rows) of tokens [start, stop), int64 [n] each, one entry per block.

        blocks: the ids of exactly the blocks that hold them, the first being block `start // block_size` of the run.  ValueError
        for too few, too many, repeated or foreign ids, and for an empty range.
        """
        size = self.block_size
        if not 0 <= start < stop:
            raise ValueError(f"tokens {start}..{stop}: a range begins at 0 or later and holds at least one")
        if len(blocks) != (due := block_span(start, stop, size)):
            raise ValueError(f"tokens {start}..{stop} lie in {due} blocks of {size}; {len(blocks)} block ids were given")
        ids = np.asarray(blocks, np.int64)
        if (strange := ids[(ids < 0) | (ids >= self.blocks)]).size:
            raise ValueError(f"block {strange.min()} is outside Prefill's blocks 0..{self.blocks - 1} of {size} tokens")
        if len(np.unique(ids)) != len(ids):
            raise ValueError(f"blocks {ids.tolist()}: one block holds one stretch of tokens, and these name one twice")
        return spread(ids, start, stop, size)

    def token_pieces(self, blocks: Sequence[int], start: int, stop: int) -> list[tuple[int, int, int]]:
        """(block id, first row in it, rows) of tokens [start, stop), one per block; as `token_rows`."""
        at, count = self.token_rows(blocks, start, stop)
        block, first = np.divmod(at, self.block_size)
        return list(zip(block.tolist(), first.tolist(), count.tolist(), strict=True))

    def token_ranges(self, area: Area, blocks: Sequence[int], start: int, stop: int) -> list[tuple[int, int]]:
        """(offset in the whole memory, length), in bytes, of tokens [start, stop) of `area`; as `token_pieces`."""
        row = area.row_bytes
        return [
            (area.offset + (block * self.block_size + first) * row, count * row)
            for block, first, count in self.token_pieces(blocks, start, stop)
        ]


def spread(ids: Offsets, start: int, stop: int, block_size: int) -> tuple[Offsets, Offsets]:
    """(first row, rows) of tokens [start, stop) of a run whose blocks `ids` begin with that of token `start`, int64 [n] each; rows count
    through all blocks of an area.
    """
    at, count = ids * block_size, np.full(len(ids), block_size, np.int64)
    at[0] += start % block_size
    count[0] -= start % block_size
    count[-1] -= -stop % block_size
    return at, count


def block_span(start: int, stop: int, block_size: int) -> int:
    """How many blocks tokens [start, stop) of one run lie in."""
    return -(-stop // block_size) - start // block_size


def plan_layout(
    slot_of_layer: Sequence[int], widths: Mapping[str, int], dtype: str, *, blocks: int, block_size: int, dtypes: Mapping[str, str] = {},
    kinds_of_layer: Sequence[Sequence[str]] = (),
) -> SlotLayout:  # fmt: skip
    """A layout of page-aligned areas: each slot gets [blocks, block_size, width] of every name in `widths` ({"main": 576,
    "index": 128}), of `dtype`, or of the one that `dtypes` has for the name (with LIC8 {"index": "int8", "scale": "float16"}).

    kinds_of_layer: the names that each layer has rows of, where that is not all; a slot has an area where one of its layers has.
    ValueError for a slot number that is skipped, and for sizes below one.
    """
    every = [tuple(widths)] * len(slot_of_layer)
    kinds = () if [*map(set, kinds_of_layer)] in ([], [*map(set, every)]) else tuple(tuple(one) for one in kinds_of_layer)
    areas, offset = [], 0
    if strange := {dtype, *dtypes.values()} - DTYPES.keys():
        raise ValueError(f"dtype is {min(strange)!r}: choose one of {', '.join(DTYPES)}")
    for slot in sorted(set(slot_of_layer)):
        here = {name for layer, one in enumerate(kinds or every) if slot_of_layer[layer] == slot for name in one}
        for name, width in widths.items():
            if name not in here:
                continue
            areas.append(area := Area(slot, name, dtypes.get(name, dtype), width, offset))
            offset = -(-(offset + blocks * block_size * area.row_bytes) // PAGE) * PAGE
    layout = SlotLayout(VERSION, offset, block_size, blocks, tuple(areas), tuple(slot_of_layer), "", kinds)
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
    if layout.blocks < 1 or layout.block_size < 1:
        raise ValueError(f"layout has {layout.blocks} blocks of {layout.block_size} tokens: both start at 1")
    for area in layout.areas:
        _check_area(layout, area)
    if len({(area.slot, area.name) for area in layout.areas}) != len(layout.areas):
        raise ValueError("layout names one area of a slot twice")
    for one, two in itertools.pairwise(sorted(layout.areas, key=lambda area: area.offset)):
        if two.offset < (end := one.offset + layout.area_bytes(one)):
            raise ValueError(f"slot {two.slot} {two.name} begins at {two.offset}, inside slot {one.slot} {one.name} (to {end})")
    slots = {area.slot for area in layout.areas}
    if slots != set(range(len(slots))) or slots != set(layout.slot_of_layer):
        raise ValueError(f"slots {sorted(slots)} for layers {layout.slot_of_layer}: count from 0, skip none, use each")
    _check_kinds(layout)


def _check_kinds(layout: SlotLayout) -> None:
    if not layout.kinds_of_layer:
        return
    if len(layout.kinds_of_layer) != len(layout.slot_of_layer):
        raise ValueError(f"layout says of {len(layout.kinds_of_layer)} layers what rows they have, and has {len(layout.slot_of_layer)}")
    for slot in range(layout.slots):
        there, own = [area.name for area in layout.areas_of(slot)], [layout.kinds_of_layer[layer] for layer in layout.layers(slot)]
        if any(len(set(one)) != len(one) or not one for one in own) or {name for one in own for name in one} != set(there):
            raise ValueError(f"slot {slot} has areas {there}, its layers rows of {own}: each layer some, once, and each area some layer's")


def _check_area(layout: SlotLayout, area: Area) -> None:
    what = f"slot {area.slot} {area.name}"
    if area.dtype not in DTYPES:
        raise ValueError(f"{what}: dtype is {area.dtype!r}: choose one of {', '.join(DTYPES)}")
    if area.slot < 0 or area.width < 1 or area.offset < 0:
        raise ValueError(f"{what}: rows of {area.width} at {area.offset}: sizes start at 1, numbers at 0")
    if area.offset % DTYPES[area.dtype].itemsize:
        raise ValueError(f"{what} begins at byte {area.offset}, which {area.dtype} cannot")
    if (end := area.offset + layout.area_bytes(area)) > layout.size:
        raise ValueError(f"{what} ends at byte {end}: the memory has {layout.size}")
