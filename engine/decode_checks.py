"""What Decode compares before each read, and then which bytes go where.

Rules: what Prefill announces is compared with the layout that was mapped from it and with the destination here, kind by kind: number,
type and size of main KV, presence, type and size of indexer and scales, tokens, blocks on both sides; the first difference ends that
read, before a byte is touched, with a sentence that names both sides and both values; every range comes out in bytes, in 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.engine.decode_memory import INDEXER, DecodeMemory, Destination, is_main
from tidegate.engine.pull_shm import Part
from tidegate.engine.slot_layout import Area, SlotLayout
from tidegate.protocol.messages import Ready

__all__ = ["CHECKS", "Announced", "checked_parts", "region_of"]


class Announced(NamedTuple):
    """A READY, the layout of Prefill that it speaks of, and where it is to go.  prompt: tokens of the attempt's prompt."""

    ready: Ready
    layout: SlotLayout
    memory: DecodeMemory
    destination: Destination
    prompt: int

    @property
    def layer(self) -> int:
        return self.ready.transfer.layer - 1

    @property
    def areas(self) -> tuple[Area, ...]:
        """What Prefill has in the slot."""
        return self.layout.areas_of(self.ready.slot)


def region_of(name: str, attempt: int) -> str:
    """The pull backend's name for an attempt's blocks of one kind of rows."""
    return f"{name} of attempt {attempt}"


def checked_parts(a: Announced) -> list[Part]:
    """The ranges to copy, of each kind block by block; ValueError where anything does not fit, and then nothing may be copied."""
    for check in CHECKS:
        check(a)
    ready, parts, areas = a.ready, [], {area.name: area for area in a.areas}
    for name, pages in a.memory.pages.items():
        source = a.layout.token_ranges(areas[name], ready.blocks, ready.start, ready.stop)
        target = pages.ranges(a.layer, a.destination.blocks, ready.start, ready.stop)
        parts.append(Part(region_of(name, a.destination.attempt), [at for at, _ in source], [at for at, _ in target],
                          [length for _, length in source]))  # fmt: skip
    return parts


# ---- the comparisons; each is told apart by its sentence


def layer_and_slot(a: Announced) -> None:
    layers = a.layout.slot_of_layer
    if not 0 <= a.layer < min(len(layers), a.memory.layers):
        raise ValueError(f"layer {a.layer + 1} is announced; Prefill's layout has {len(layers)} layers, Decode {a.memory.layers}")
    if layers[a.layer] != a.ready.slot:
        raise ValueError(f"layer {a.layer + 1} is announced in slot {a.ready.slot}; in Prefill's layout it is in slot {layers[a.layer]}")


def token_range(a: Announced) -> None:
    if not 0 <= a.ready.start < a.ready.stop <= a.prompt:
        raise ValueError(f"tokens {a.ready.start}..{a.ready.stop} are announced by Prefill; the prompt at Decode has {a.prompt}")


def main_count(a: Announced) -> None:
    there = [area.name for area in a.areas if is_main(area.name)]
    here = [name for name in a.memory.pages if is_main(name)]
    if sorted(there) != sorted(here):
        raise ValueError(f"main KV is {len(there)} tensors on Prefill ({_list(there)}) and {len(here)} on Decode ({_list(here)})")


def indexer_presence(a: Announced) -> None:
    _same_presence(a, "index")


def scale_presence(a: Announced) -> None:
    _same_presence(a, "scale")


def nothing_else(a: Announced) -> None:
    if strange := [area.name for area in a.areas if not is_main(area.name) and area.name not in INDEXER]:
        raise ValueError(f"Prefill has {_list(strange)} in slot {a.ready.slot}; Decode knows {_list(list(a.memory.pages))}")


def dtypes(a: Announced) -> None:
    for area in a.areas:
        if (here := a.memory.pages[area.name].kind.dtype) != area.dtype:
            raise ValueError(f"{area.name} is {area.dtype} on Prefill and {here} on Decode")


def main_sizes(a: Announced) -> None:
    _same_width(a, [area for area in a.areas if is_main(area.name)])


def indexer_size(a: Announced) -> None:
    _same_width(a, [area for area in a.areas if area.name == "index"])


def scale_size(a: Announced) -> None:
    _same_width(a, [area for area in a.areas if area.name == "scale"])


CHECKS = (
    layer_and_slot, token_range, main_count, indexer_presence, scale_presence, nothing_else, dtypes, main_sizes, indexer_size, scale_size,
)  # fmt: skip


def _same_presence(a: Announced, name: str) -> None:
    there, here = name in [area.name for area in a.areas], name in a.memory.pages
    if there != here:
        has = {True: "is there", False: "is missing"}
        raise ValueError(f"{name} {has[there]} on Prefill and {has[here]} on Decode")


def _same_width(a: Announced, areas: Sequence[Area]) -> None:
    for area in areas:
        kind = a.memory.pages[area.name].kind
        if kind.width != area.width:
            raise ValueError(
                f"a row of {area.name} is {area.width} elements ({area.row_bytes} bytes) on Prefill and {kind.width} "
                f"({kind.row_bytes} bytes) on Decode"
            )


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
