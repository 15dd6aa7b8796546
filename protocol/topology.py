"""Who feeds whom, and which layer lives in which slot.

Rules: P TP is a multiple of D TP; the `ratio` Prefill ranks that feed one Decode rank are its contributor group; main KV is
replicated on Prefill, so member 0 alone sends it; members send disjoint block ranges of the indexer cache whose union is all
of it, even when a member's range is empty; endpoints of different (DP, TP) ranks never share a port.
Layers, chunks and nonces count from 1 (0 means none), ranks and slots from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["ALONE", "SlotPlan", "Topology", "share"]


def share(count: int, index: int, size: int, *, first: int = 0) -> range:
    """Which of `count` things the sharer `index` of `size` has: disjoint, together all, sizes at most one apart.

    first: a number that turns the order of the sharers, so that what is left over does not always fall to the same one (the first
    block of a chunk: small chunks would all be sharer 0's).
    """
    turned = (index - first) % size
    each, over = divmod(count, size)
    begin = turned * each + min(turned, over)
    return range(begin, begin + each + (turned < over))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The joint layout of one Prefill and one Decode instance (seed design, section 6).

    Raises ValueError, naming both sizes and the rule, if P TP is not a positive multiple of D TP.
    """

    p_tp: int = 1
    d_tp: int = 1

    def __post_init__(self) -> None:
        if self.p_tp < 1 or self.d_tp < 1 or self.p_tp % self.d_tp:
            raise ValueError(
                f"p_tp={self.p_tp}, d_tp={self.d_tp}: Prefill TP must be a positive multiple of Decode TP; "
                f"choose p_tp from {self.d_tp}, {2 * self.d_tp}, {3 * self.d_tp}, ... or lower d_tp"
            )

    @property
    def ratio(self) -> int:
        """Prefill ranks in one contributor group."""
        return self.p_tp // self.d_tp

    def d_rank(self, p_rank: int) -> int:
        """The Decode rank that Prefill rank `p_rank` feeds."""
        return self._checked(p_rank, self.p_tp, "p_rank") // self.ratio

    def member(self, p_rank: int) -> int:
        """Index of Prefill rank `p_rank` in its contributor group."""
        return self._checked(p_rank, self.p_tp, "p_rank") % self.ratio

    def group(self, d_rank: int) -> tuple[int, ...]:
        """The Prefill ranks that feed Decode rank `d_rank`, in member order."""
        first = self._checked(d_rank, self.d_tp, "d_rank") * self.ratio
        return tuple(range(first, first + self.ratio))

    def sends_main(self, p_rank: int) -> bool:
        """Whether this Prefill rank sends main KV: member 0 of each group, and no other."""
        return self.member(p_rank) == 0

    def indexer_blocks(self, p_rank: int, blocks: int, *, first: int = 0) -> range:
        """The share of `blocks` indexer blocks that `p_rank` sends: disjoint within the group, together all of them.

        first: the number of the first of them within the prompt, as `share` takes it.
        """
        return share(blocks, self.member(p_rank), self.ratio, first=first)

    def main_blocks(self, p_rank: int, blocks: int, *, first: int = 0) -> range:
        """The share of `blocks` main KV blocks that `p_rank` sends: those that its Decode rank owns, from member 0 and no other."""
        return share(blocks, self.d_rank(p_rank), self.d_tp, first=first) if self.sends_main(p_rank) else range(0)

    def port(self, kv_port: int, *, dp_rank: int, d_rank: int) -> int:
        """Control-plane port of Decode rank `d_rank` of the global DP rank `dp_rank` (seed design, section 4)."""
        port = kv_port + dp_rank * self.d_tp + self._checked(d_rank, self.d_tp, "d_rank")
        if not 0 < port < 65536:
            raise ValueError(
                f"kv_port={kv_port} gives port {port} for dp_rank={dp_rank}, tp_rank={d_rank}: "
                "a port lies between 1 and 65535; lower kv_port"
            )
        return port

    @staticmethod
    def _checked(rank: int, size: int, name: str) -> int:
        if not 0 <= rank < size:
            raise ValueError(f"{name}={rank} is outside 0..{size - 1}")
        return rank


ALONE = Topology()
"""One rank on either side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """Which slot each layer uses (seed design, section 3; `SlotOf` of tla/system/System.tla).

    Shared layers take the shared slots round robin, in their order; an independent layer owns its slot.  That is all there is to it
    where every shared layer can share with every other, and what the model's `SlotOf` says.  Layers of several kinds share only with
    their own: then `table` gives the slot of layer 1, 2, ... outright (`of` makes such plans).
    """

    layers: int
    shared: frozenset[int]
    shared_slots: int = 1
    table: tuple[int, ...] = ()
    _of: tuple[int, ...] = field(init=False, repr=False, compare=False)  # slot of layer 1, 2, ..., worked out once

    def __post_init__(self) -> None:
        strange = sorted(layer for layer in self.shared if not 1 <= layer <= self.layers)
        if strange:
            raise ValueError(f"shared layers {strange} are outside 1..{self.layers}")
        if self.shared and self.shared_slots < 1:
            raise ValueError(f"shared_slots={self.shared_slots}: {len(self.shared)} shared layers need at least one slot")
        if self.table:
            self._check_table()
        object.__setattr__(self, "_of", self.table or tuple(self._round_robin(layer) for layer in range(1, self.layers + 1)))

    def _check_table(self) -> None:
        if len(self.table) != self.layers:
            raise ValueError(f"table has {len(self.table)} slots for {self.layers} layers: give each layer its slot")
        if set(self.table) != set(range(len(set(self.table)))):
            raise ValueError(f"slots {sorted(set(self.table))}: count from 0 and skip none")
        for layer in range(1, self.layers + 1):
            if layer not in self.shared and self.table.count(self.table[layer - 1]) > 1:
                raise ValueError(f"independent layer {layer} is in slot {self.table[layer - 1]} with others: it owns its slot")
        if len({self.table[layer - 1] for layer in self.shared}) != self.shared_slots:
            raise ValueError(f"shared_slots={self.shared_slots} is not the number of slots of the shared layers in {self.table}")

    @classmethod
    def make(cls, *, layers: int, independent: frozenset[int], buffers: int) -> SlotPlan:
        """The plan for `layers` layers of which `independent` own their buffer and the others share `buffers`."""
        shared = frozenset(range(1, layers + 1)) - independent
        return cls(layers=layers, shared=shared, shared_slots=min(buffers, len(shared)))

    @classmethod
    def of(cls, slots: Sequence[int], *, independent: frozenset[int]) -> SlotPlan:
        """The plan in which layer k uses `slots[k - 1]`; equal to `make`'s wherever that says the same.

        Raises ValueError for a slot number that is skipped and for an independent layer that does not own its slot.
        """
        shared = frozenset(range(1, len(slots) + 1)) - independent
        count = len({slots[layer - 1] for layer in shared})
        plain = cls(layers=len(slots), shared=shared, shared_slots=count)
        if tuple(slots) == tuple(plain.slot_of(layer) for layer in range(1, len(slots) + 1)):
            return plain
        return cls(layers=len(slots), shared=shared, shared_slots=count, table=tuple(slots))

    def is_shared(self, layer: int) -> bool:
        return layer in self.shared

    def slot_of(self, layer: int) -> int:
        """Slot of `layer`: shared slots are 0..shared_slots-1, then come those of the independent layers, in order."""
        return self._of[layer - 1]

    def _round_robin(self, layer: int) -> int:
        shared_before = sum(1 for other in self.shared if other < layer)
        if layer in self.shared:
            return shared_before % self.shared_slots
        return self.shared_slots + layer - 1 - shared_before

    @property
    def slots(self) -> tuple[int, ...]:
        """All slots in ascending order; their number is I + min(B, R) where all shared layers are alike."""
        return tuple(sorted({self.slot_of(layer) for layer in range(1, self.layers + 1)}))
