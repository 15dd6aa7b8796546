"""What Decode compares before each read, and then which bytes go where.

Rules: of a contributor group each rank sends its share of a step's blocks, disjoint, together all of them; what Prefill announces is
compared with the layout that was mapped from it and with the destination here, kind by kind: number,
type and size of main KV, presence, type and size of indexer and scales, tokens, blocks on both sides; the first difference ends that
read, before a byte is touched, with a sentence that names both sides and both values; every range comes out in bytes, in 64 bits.
What cannot change is compared once: a layer of a mapped layout with the kinds of rows that it has here, the blocks of a step with those
of its destination.  The layers of a step differ in where their memory begins, and in which kinds of rows they have, and in nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.engine.decode_memory import INDEXER, DecodeMemory, Destination, is_main
from tidegate.engine.pull_shm import Part
from tidegate.engine.slot_layout import Area, SlotLayout
from tidegate.engine.step_blocks import StepTable
from tidegate.kernels.copy import Offsets
from tidegate.protocol.messages import Ready
from tidegate.protocol.topology import ALONE, Topology

__all__ = ["LAYER_CHECKS", "SLOT_CHECKS", "Announced", "checked_parts", "kind_of", "region_of"]


class Plan(NamedTuple):
    """Where the rows of a step lie on both sides, whatever the layer.

    columns: of each kind the region it goes to, and in bytes where its ranges begin in Prefill's area and in a layer here, and their
    lengths, int64 [blocks], and the sum of those.
    """

    destination: Destination
    start: int
    stop: int
    columns: dict[str, tuple[str, Offsets, Offsets, Offsets, int]]


class Announced(NamedTuple):
    """A READY, the layout of Prefill that it speaks of, and where it is to go.

    table: the list of blocks that READY names; prompt: tokens of the attempt's prompt; compared: the layers of `layout` that have passed
    SLOT_CHECKS, and where in the memory each of their kinds of rows begins; topology: which blocks the rank that says it has to send.
    """

    ready: Ready
    table: StepTable
    layout: SlotLayout
    memory: DecodeMemory
    destination: Destination
    prompt: int
    compared: dict[int, dict[str, int]]
    topology: Topology = ALONE

    @property
    def layer(self) -> int:
        return self.ready.transfer.layer - 1

    @property
    def areas(self) -> tuple[Area, ...]:
        """What Prefill has of the layer in the slot."""
        return self.layout.areas_of(self.ready.slot, self.layer)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the layer has here."""
        return self.memory.kinds_of(self.layer)


def region_of(name: str, attempt: int) -> str:
    """The pull backend's name for an attempt's blocks of one kind of rows."""
    return f"{name} of attempt {attempt}"


def kind_of(region: str) -> str:
    """The kind of rows that `region_of` named."""
    return region.partition(" ")[0]


def checked_parts(a: Announced) -> list[Part]:
    """The ranges to copy, of each kind block by block, none of a kind of which the sender owes nothing; ValueError where anything does
    not fit, and then nothing may be copied.
    """
    for check in LAYER_CHECKS:
        check(a)
    parts = []
    if (offsets := a.compared.get(a.layer)) is None:
        for check in SLOT_CHECKS:
            check(a)
        offsets = a.compared[a.layer] = {area.name: area.offset for area in a.areas}
    for name, (region, source, target, length, total) in _plan(a).columns.items():
        if name not in offsets:
            continue
        pages = a.memory.pages[name]
        at = pages.at(a.layer) * pages.layer_bytes
        parts.append(Part(region, source + offsets[name], target + at, length, total))
    return parts


def _plan(a: Announced) -> Plan:
    """Made by the first layer of a step."""
    ready, destination, plan = a.ready, a.destination, a.table.plan
    if isinstance(plan, Plan) and plan.destination is destination and (plan.start, plan.stop) == (ready.start, ready.stop):
        return plan
    columns, sender = {}, ready.transfer.member
    at, count = a.layout.token_rows(a.table.ids, ready.start, ready.stop)
    for name, pages in a.memory.pages.items():
        row = pages.kind.row_bytes
        target, _ = pages.rows(destination.blocks, ready.start, ready.stop)
        due = a.topology.main_blocks if is_main(name) else a.topology.indexer_blocks
        own = due(sender, len(at), first=ready.start // pages.block_size)
        if own:
            part = slice(own.start, own.stop)
            length = count[part] * row
            columns[name] = region_of(name, destination.attempt), at[part] * row, target[part] * row, length, int(length.sum())
    a.table.plan = plan = Plan(destination, ready.start, ready.stop, columns)
    return plan


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
    here = [name for name in a.kinds if is_main(name)]
    if sorted(there) != sorted(here):
        raise ValueError(f"main KV is {len(there)} tensors on Prefill ({_list(there)}) and {len(here)} on Decode ({_list(here)})")


def indexer_presence(a: Announced) -> None:
    _same_presence(a, "index")


def scale_presence(a: Announced) -> None:
    _same_presence(a, "scale")


def nothing_else(a: Announced) -> None:
    if strange := [area.name for area in a.areas if not is_main(area.name) and area.name not in INDEXER]:
        raise ValueError(f"Prefill has {_list(strange)} in slot {a.ready.slot}; Decode knows {_list(a.kinds)}")


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


LAYER_CHECKS = (layer_and_slot, token_range)
SLOT_CHECKS = (main_count, indexer_presence, scale_presence, nothing_else, dtypes, main_sizes, indexer_size, scale_size)


def _same_presence(a: Announced, name: str) -> None:
    there, here = name in [area.name for area in a.areas], name in a.kinds
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
