"""Which physical buffer each cache-bearing layer of a Prefill rank uses, from the caches that were registered.

Rules: layers are counted from the caches, never from the model's config; a layer has one main cache, at most one indexer cache and
at most one scale of it, and any other kind of cache is refused by name; an independent layer owns its buffer; the others are
bucketed by equal main spec, and a bucket of n layers takes min(B, n) buffers round robin; a buffer has an indexer (and scale) area
only where a layer of it owns one; caches that would share memory are equal to the byte; everything is checked before a plan exists,
and a plan exists before a byte is allocated.

Layers have two names here: the *number* that users and cache names give them (from 0, MTP layers after the last base layer), and
the *position* among the cache-bearing layers (from 1), which sessions and the model count by.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tidegate.engine.errors import ConfigError
from tidegate.protocol.topology import SlotPlan

__all__ = ["ITEM_BYTES", "Buffer", "CacheSpec", "Layer", "LayerPlan", "layer_numbers", "plan_layers"]

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int8": 1}
KINDS = ("main", "indexer", "scale")
MTP = re.compile(r"(?:^|\.)mtp(?:\.layers)?\.(\d+)(?:\.|$)")
BASE = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")


class CacheSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One registered cache.

    kind: main, indexer, or scale (of an int8 indexer); dtype: of its elements; widths: elements of one token's row in each of its
    tensors ((512, 64) for K and V apart, (576,) for one); block_size: tokens; bytes: of the whole cache; storage: a name, if the
    cache lies in memory that several caches share already.
    """

    kind: str
    dtype: str
    widths: tuple[int, ...]
    block_size: int
    bytes: int
    storage: str = ""

    @property
    def form(self) -> tuple[str, str, tuple[int, ...], int]:
        """What two caches must have in common to be laid over each other, their sizes apart."""
        return self.kind, self.dtype, self.widths, self.block_size

    @property
    def block_bytes(self) -> int:
        return self.block_size * sum(self.widths) * ITEM_BYTES[self.dtype]

    @property
    def blocks(self) -> int:
        return self.bytes // self.block_bytes


@dataclass(frozen=True, slots=True)
class Layer:
    """One cache-bearing layer and the names of its caches; "" for one that it has not."""

    number: int
    main: str
    indexer: str = ""
    scale: str = ""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One physical buffer: the positions of its layers in their order, and its areas."""

    slot: int
    layers: tuple[int, ...]
    main: CacheSpec
    indexer: CacheSpec | None
    scale: CacheSpec | None

    @property
    def bytes(self) -> int:
        return sum(area.bytes for area in (self.main, self.indexer, self.scale) if area)


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The result: `slots` is what a PrefillSession needs, `buffers` what an allocator needs."""

    layers: tuple[Layer, ...]
    buffers: tuple[Buffer, ...]
    slots: SlotPlan
    prefetch_layers: int
    caches: Mapping[str, CacheSpec]

    @property
    def reuses(self) -> bool:
        """Whether any buffer has more than one layer."""
        return len(self.buffers) < len(self.layers)

    @property
    def previous_owner(self) -> dict[int, int]:
        """Position -> the position whose rows its load overwrites, for each layer that is not the first of its buffer."""
        return {after: before for b in self.buffers for before, after in zip(b.layers, b.layers[1:], strict=False)}

    @property
    def bytes(self) -> int:
        """Of all buffers together."""
        return sum(buffer.bytes for buffer in self.buffers)

    @property
    def main_footprint(self) -> float:
        """Main KV bytes in buffers over main KV bytes of all layers; physical / N where all layers are alike."""
        return sum(b.main.bytes for b in self.buffers) / sum(self.caches[layer.main].bytes for layer in self.layers)

    @property
    def scaling(self) -> float:
        """By how much more tokens fit: bytes of a block of every cache over bytes of a block of every buffer area."""
        areas = [area for b in self.buffers for area in (b.main, b.indexer, b.scale) if area]
        return sum(spec.block_bytes for spec in self.caches.values()) / sum(area.block_bytes for area in areas)


def plan_layers(
    caches: Mapping[str, CacheSpec],
    *,
    shared_buffers: int | None = None,
    independent: object = (0,),
    prefetch_layers: int | None = None,
) -> LayerPlan:
    """Plan the buffers of `caches` (name -> spec).

    shared_buffers: B for each bucket; None: no reuse, every layer owns its buffer.  independent: layer numbers (negative ones count
    from the last), or "all".  prefetch_layers: layers loaded ahead, below B; None: 1, whatever B is, for what is claimed ahead waits for
    its buffer's gate like everything, and with one buffer the next layer's may be an independent one.
    Raises ConfigError, naming cache, value and rule; nothing was allocated.
    """
    if not caches:
        raise ConfigError("no KV cache is registered: register the caches of all layers before planning")
    for name, spec in caches.items():
        _check_spec(name, spec)
    _one_paging(caches)
    layers = _layers(caches)
    buckets = _count(shared_buffers, "layerwise_num_shared_buffers", least=1)
    own = _independent(independent, layers) if buckets else frozenset(range(1, len(layers) + 1))
    ahead = _prefetch(prefetch_layers, buckets or len(layers))
    owners = _assign(caches, layers, own, buckets or 1)
    buffers = tuple(_buffer(caches, layers, slot, positions) for slot, positions in enumerate(owners))
    table = {position: b.slot for b in buffers for position in b.layers}
    slots = SlotPlan.of([table[position] for position in sorted(table)], independent=own)
    return LayerPlan(layers, buffers, slots, ahead, dict(caches))


def layer_numbers(names: Iterable[str]) -> dict[str, int]:
    """The layer number in each cache name: after `layers.`, else the first number in it; `mtp.k` and `mtp.layers.k` are base
    layers + k.  ConfigError for a name without a number.
    """
    numbers, drafts = dict[str, int](), dict[str, int]()
    for name in names:
        if found := MTP.search(name):
            drafts[name] = int(found[1])
        elif found := BASE.search(name) or re.search(r"(\d+)", name):
            numbers[name] = int(found[1])
        else:
            raise ConfigError(f"cache {name!r} names no layer: a name has its layer's number, as in model.layers.3.self_attn")
    base = max(numbers.values(), default=-1) + 1
    return numbers | {name: base + k for name, k in drafts.items()}


def _check_spec(name: str, spec: CacheSpec) -> None:
    if spec.kind not in KINDS:
        raise ConfigError(f"cache {name!r} is of kind {spec.kind!r}: hybrid KV cache layouts are not supported; "
                          f"register {', '.join(KINDS)} caches only")  # fmt: skip
    if spec.dtype not in ITEM_BYTES:
        raise ConfigError(f"cache {name!r} has dtype {spec.dtype!r}: choose one of {', '.join(ITEM_BYTES)}")
    if not spec.widths or min(spec.widths) < 1 or spec.block_size < 1:
        raise ConfigError(f"cache {name!r} has rows of {spec.widths} elements in blocks of {spec.block_size}: give at least 1")
    if spec.bytes < 1 or spec.bytes % spec.block_bytes:
        raise ConfigError(f"cache {name!r} is of {spec.bytes} bytes: give a multiple of its block, {spec.block_bytes} bytes")


def _one_paging(caches: Mapping[str, CacheSpec]) -> None:
    """A block id means the same tokens in every cache, so all have the same blocks."""
    first = next(iter(caches))
    for name, spec in caches.items():
        if (spec.block_size, spec.blocks) != (caches[first].block_size, caches[first].blocks):
            raise ConfigError(
                f"cache {name!r} has {spec.blocks} blocks of {spec.block_size} tokens, {first!r} has {caches[first].blocks} of "
                f"{caches[first].block_size}: a block id is good in all caches; register them with one block_size and equal counts"
            )


def _layers(caches: Mapping[str, CacheSpec]) -> tuple[Layer, ...]:
    found: dict[int, dict[str, str]] = {}
    for name, number in layer_numbers(caches).items():
        one, kind = found.setdefault(number, {}), caches[name].kind
        if kind in one:
            raise ConfigError(f"layer {number} has two {kind} caches, {one[kind]!r} and {name!r}: a layer has one of each kind")
        one[kind] = name
    for number, one in found.items():
        for kind, needed in (("indexer", "main"), ("scale", "indexer")):
            if kind in one and needed not in one:
                raise ConfigError(f"layer {number} has {kind} cache {one[kind]!r} and no {needed} cache: register both or none")
    return tuple(Layer(number, **one) for number, one in sorted(found.items()))


def _count(value: object, what: str, *, least: int) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ConfigError(f"{what} is {value!r}: give an integer of at least {least}, or leave it out")
    return value


def _independent(value: object, layers: Sequence[Layer]) -> frozenset[int]:
    """Positions of the independent layers."""
    if value == "all":
        return frozenset(range(1, len(layers) + 1))
    if isinstance(value, str) or not isinstance(value, Sequence) or any(type(one) is not int for one in value):
        raise ConfigError(f'layerwise_independent_layers is {value!r}: give a list of layer numbers, or "all"')
    positions = {layer.number: position for position, layer in enumerate(layers, 1)}
    wrapped = {number: layers[number].number if -len(layers) <= number < 0 else number for number in value}
    if strange := [number for number in value if wrapped[number] not in positions]:
        raise ConfigError(f"layerwise_independent_layers names {strange}: layers with a cache are numbered {_ranges(positions)}, "
                          f"and -{len(layers)} to -1 count from the last")  # fmt: skip
    return frozenset(positions[number] for number in wrapped.values())


def _ranges(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    gapless = ordered[-1] - ordered[0] == len(ordered) - 1
    return f"{ordered[0]} to {ordered[-1]}" if gapless else ", ".join(map(str, ordered))


def _prefetch(value: object, buffers: int) -> int:
    """A layer that is loaded ahead needs another buffer than the one in use."""
    ahead = _count(value, "layerwise_prefetch_layers", least=0)
    if ahead is not None and ahead >= buffers:
        raise ConfigError(f"layerwise_prefetch_layers is {ahead}: below the number of shared buffers, {buffers}, "
                          "for the layer in use needs one of them; lower it or give more buffers")  # fmt: skip
    return 1 if ahead is None else ahead


def _assign(
    caches: Mapping[str, CacheSpec], layers: Sequence[Layer], own: frozenset[int], shared_buffers: int
) -> list[tuple[int, ...]]:
    """Positions of each buffer; those of the shared ones come first, as `SlotOf` of the model has it."""
    buckets: dict[object, list[int]] = {}
    for position, layer in enumerate(layers, 1):
        if position not in own:
            buckets.setdefault(caches[layer.main].form, []).append(position)
    out: list[tuple[int, ...]] = []
    for bucket in buckets.values():
        buffers = min(shared_buffers, len(bucket))
        out += [tuple(bucket[first::buffers]) for first in range(buffers)]
    return out + [(position,) for position in sorted(own)]


def _buffer(caches: Mapping[str, CacheSpec], layers: Sequence[Layer], slot: int, positions: tuple[int, ...]) -> Buffer:
    members = [layers[position - 1] for position in positions]
    names = {kind: [name for layer in members if (name := getattr(layer, kind))] for kind in KINDS}
    areas = {kind: _merged(caches, kind, of_kind, len(members)) for kind, of_kind in names.items()}
    main = areas["main"]
    assert main is not None  # every layer has one
    return Buffer(slot, positions, main, areas["indexer"], areas["scale"])


def _merged(caches: Mapping[str, CacheSpec], kind: str, names: list[str], members: int) -> CacheSpec | None:
    """The one spec of caches that share memory; None where there are none."""
    if not names:
        return None
    first = caches[names[0]]
    storages = Counter(spec.storage for spec in caches.values())
    for name in names:
        spec = caches[name]
        if spec.form != first.form:
            raise ConfigError(f"{kind} caches {names[0]!r} ({_text(first)}) and {name!r} ({_text(spec)}) would share a buffer: "
                              "they must be equal; make one of their layers independent")  # fmt: skip
        if members > 1 and spec.storage and storages[spec.storage] > 1:
            raise ConfigError(f"cache {name!r} lies in storage {spec.storage!r} together with others: a buffer that layers reuse "
                              "needs caches of their own; register them unpacked, or leave layerwise_num_shared_buffers out")  # fmt: skip
    return first


def _text(spec: CacheSpec) -> str:
    return f"{spec.dtype} rows of {'+'.join(map(str, spec.widths))}"
