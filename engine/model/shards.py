"""How weights are split over tensor-parallel ranks, and why results do not depend on how many there are.

Rules: heads, and the inner widths of feed-forwards, are cut into as many *parts* whatever the number of ranks, and everything between
the first and the last product of a part is computed part by part, in the part's own shapes; a rank computes the parts that it has, all
parts are gathered and added in order (`tensor_parallel.summed`).  So every product that is ever computed is the same, and only who
computes it changes.  What is not cut (embeddings, latents, the indexer, norms, the router, the head) every rank has and computes.
A rank keeps its slice of a cut weight and no other; edges lie at whole heads, or at multiples of 8.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from tidegate.engine.model.arithmetic import aligned
from tidegate.engine.model.config import ModelConfig
from tidegate.engine.model.tensor_parallel import TensorParallel
from tidegate.engine.model.weights import weight_shapes

__all__ = ["Shard", "is_cut"]

HEADS = re.compile(r".*\.self_attn\.(q_b_proj|kv_b_proj|o_proj)\.weight")
INNER = re.compile(r".*\.mlp\.(.*\.)?(gate_proj|up_proj|down_proj|gate_up_proj)(\.weight)?")
AXIS = {"q_b_proj": 0, "kv_b_proj": 0, "o_proj": 1, "gate_proj": 0, "up_proj": 0, "down_proj": 1}
UNIT = 8  # products of other widths depend on the batch (see config.EIGHTS)


def is_cut(name: str) -> bool:
    """Is the weight of this name, in a checkpoint or in a `Model`, split over ranks?"""
    return bool(HEADS.fullmatch(name) or INNER.fullmatch(name))


class Shard:
    """The parts `begin`..`end` of every cut weight, which are what one rank of a group has.

    ValueError where the parts cannot be dealt evenly to the group's ranks.
    """

    def __init__(self, config: ModelConfig, group: TensorParallel) -> None:
        if config.parts % group.size:
            sizes = ", ".join(str(n) for n in range(1, config.parts + 1) if config.parts % n == 0)
            raise ValueError(
                f"{group.size} tensor-parallel ranks: {config.num_attention_heads} heads are computed in {config.parts} parts; use {sizes}"
            )
        each = config.parts // group.size
        self.begin, self.end = group.rank * each, (group.rank + 1) * each
        self._heads, self._parts, self._whole = config.num_attention_heads, config.parts, dict(weight_shapes(config))

    def take(self, name: str, weight: Tensor) -> Tensor:
        """This rank's slice of a whole weight: a copy of its own, or `weight` itself where nothing is cut off."""
        if not is_cut(name) or self.end - self.begin == self._parts:
            return weight
        return self._slice(name, weight, self.begin, self.end, 0).clone(memory_format=torch.contiguous_format)

    def shape(self, name: str, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of what `take` gives of a weight, or of a stored tensor, of shape `whole`."""
        if not is_cut(name):
            return whole
        axis, halves = _axis(name, len(whole))
        first, last = (self._edge(name, whole[axis] // halves, part) for part in (self.begin, self.end))
        return (*whole[:axis], halves * (last - first), *whole[axis + 1 :])

    def stored(self, name: str, whole: tuple[int, ...]) -> tuple[slice, ...]:
        """Which part of a stored tensor (experts one by one, gate and up apart) this rank reads."""
        if not is_cut(name):
            return (slice(None),) * len(whole)
        axis, _ = _axis(name, len(whole))
        cut = slice(self._edge(name, whole[axis], self.begin), self._edge(name, whole[axis], self.end))
        return tuple(cut if n == axis else slice(None) for n in range(len(whole)))

    def pieces(self, name: str, mine: Tensor) -> list[Tensor]:
        """The parts of what `take` gave, one by one, each lying as a fresh tensor would.  ValueError for another shape."""
        if mine.shape != (due := self.shape(name, self._whole[name])):
            raise ValueError(f"{name} is {tuple(mine.shape)}: {due} are due, parts {self.begin}..{self.end} of {self._parts}")
        return [aligned(self._slice(name, mine, part, part + 1, self.begin)) for part in range(self.begin, self.end)]

    def _slice(self, name: str, x: Tensor, begin: int, end: int, origin: int) -> Tensor:
        """Parts begin..end out of `x`, which starts with part `origin`."""
        whole = self._whole[name]
        axis, halves = _axis(name, len(whole))
        start, first, last = (self._edge(name, whole[axis] // halves, part) for part in (origin, begin, end))
        split = x.reshape(*x.shape[:axis], halves, -1, *x.shape[axis + 1 :])
        return split.narrow(axis + 1, first - start, last - first).flatten(axis, axis + 1)

    def _edge(self, name: str, width: int, part: int) -> int:
        """Where `part` begins in a width of so many."""
        unit = width // self._heads if HEADS.fullmatch(name) else UNIT
        return width // unit * part // self._parts * unit


def _axis(name: str, axes: int) -> tuple[int, int]:
    """(axis that is cut, how many equal halves lie along it) of a cut weight with so many axes."""
    which = name.removesuffix(".weight").rpartition(".")[2]
    return (axes - 2, 2) if which == "gate_up_proj" else (axes - 2 + AXIS[which], 1)
