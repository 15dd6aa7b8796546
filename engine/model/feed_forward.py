"""The dense MLP and the mixture of experts.

Rules: a row is added to by the experts that the router gave it, in the order of their numbers, and by no other: what a row meets
does not depend on its neighbours; experts are ranked by score plus correction and weighed by the score alone; equal ranks go to the
lowest number; a part of the inner width is computed from the first product to the last, and what the parts give is added up by the
caller, over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from tidegate.engine.model.arithmetic import gated_mlp, top_mask, wide
from tidegate.engine.model.config import ModelConfig
from tidegate.engine.model.shards import Shard

__all__ = ["Dense", "Mixture", "feed_forward"]


class Dense:
    """down(silu(gate x) * up x); weights [inner, hidden], [inner, hidden], [hidden, inner] under `prefix`."""

    def __init__(self, weights: Mapping[str, Tensor], prefix: str, shard: Shard) -> None:
        names = [f"{prefix}{part}_proj.weight" for part in ("gate", "up", "down")]
        self._parts = [*zip(*(shard.pieces(name, weights[name]) for name in names), strict=True)]

    def outputs(self, x: Tensor) -> list[Tensor]:
        """What each part of this rank gives for `x` [n, hidden]: [n, hidden], to be summed over the parts."""
        return [gated_mlp(x, *weights) for weights in self._parts]


class Mixture:
    """Shared experts for every row, routed ones for the rows they are given."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], prefix: str, shard: Shard) -> None:
        self.config = config
        self.router = wide(weights[prefix + "gate.weight"])
        self.correction = wide(weights[prefix + "gate.e_score_correction_bias"])
        names = [prefix + "experts.gate_up_proj", prefix + "experts.down_proj"]
        self._experts = [*zip(*(shard.pieces(name, weights[name]) for name in names), strict=True)]
        self.shared = Dense(weights, prefix + "shared_experts.", shard) if config.n_shared_experts else None

    def shares(self, x: Tensor) -> Tensor:
        """Weight of every expert for every row, wide [n, experts]; 0 where the row is not given to the expert."""
        c = self.config
        score = functional.linear(wide(x), self.router).sigmoid()
        rank = score + self.correction
        if c.n_group > 1:
            groups = rank.view(-1, c.n_group, c.n_routed_experts // c.n_group)
            kept = top_mask(groups.topk(2, -1).values.sum(-1), c.topk_group)
            rank = groups.masked_fill(~kept[..., None], -torch.inf).view_as(rank)
        share = torch.where(top_mask(rank, c.num_experts_per_tok), score, 0.0)
        if c.norm_topk_prob:
            share = share / (share.sum(-1, keepdim=True) + 1e-20)
        return share * c.routed_scaling_factor

    def outputs(self, x: Tensor) -> list[Tensor]:
        """As `Dense.outputs`."""
        share = self.shares(x)
        chosen = (share != 0).any(0).nonzero()[:, 0].tolist()
        routed = [self._routed(x, share, chosen, *weights) for weights in self._experts]
        return [one + more for one, more in zip(routed, self.shared.outputs(x), strict=True)] if self.shared else routed

    def _routed(self, x: Tensor, share: Tensor, chosen: list[int], gate_up: Tensor, down: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert in chosen:
            gate, up = gate_up[expert].chunk(2)
            weight = share[:, expert, None]
            out = torch.where(weight != 0, out + (gated_mlp(x, gate, up, down[expert]) * weight).to(x.dtype), out)
        return out


def feed_forward(config: ModelConfig, weights: Mapping[str, Tensor], layer: int, shard: Shard) -> Dense | Mixture:
    """What layer `layer` (from 0) has after its attention."""
    prefix = f"model.layers.{layer}.mlp."
    return Dense(weights, prefix, shard) if layer < config.first_k_dense_replace else Mixture(config, weights, prefix, shard)
