"""The pieces of arithmetic that all parts of the network share.

Rules: sums, exponentials and scores are kept in float32 at least, whatever the weights' type; equal scores are broken
towards the lower position; nothing here looks at how many requests are in a step.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["aligned", "gated_mlp", "linear", "rms_norm", "top_mask", "top_positions", "wide"]

FEWEST = 4  # columns of a product: on some CPUs what comes out of 2 or 3 depends on where a row stands
ALIGNMENT = 64  # bytes; vector kernels may add up in another order where a row starts elsewhere


def wide(x: Tensor) -> Tensor:
    """`x` in the type that sums are kept in: float64 stays, everything else becomes float32."""
    return x if x.dtype == torch.float64 else x.float()


def aligned(x: Tensor) -> Tensor:
    """`x` itself where it lies as a fresh tensor would, else a copy: the same bits come out whatever the storage."""
    return x if x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0 else x.clone(memory_format=torch.contiguous_format)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x` [n, width] times `weight` [out, width], for weights of any number of outputs."""
    if (out := weight.shape[0]) >= FEWEST:
        return functional.linear(x, weight)
    padded = weight.new_zeros(FEWEST, weight.shape[1])
    padded[:out] = weight
    return functional.linear(x, padded)[:, :out].contiguous()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis."""
    h = wide(x)
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def top_mask(scores: Tensor, k: int) -> Tensor:
    """True at the k highest scores of each row (all where there are no more than k); ties go to the lowest position.

    NaN counts as the highest score, so that spoilt keys are read and show, instead of being passed over.
    """
    if scores.shape[-1] <= k:
        return torch.ones_like(scores, dtype=torch.bool)
    scores = torch.nan_to_num(scores, nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    least = scores.topk(k, -1).values.amin(-1, keepdim=True)
    above, equal = scores > least, scores == least
    room = k - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1) <= room))


def top_positions(scores: Tensor, k: int) -> Tensor:
    """Positions of the k highest of one row of scores, best first, ties by position; all where there are no more than
    k.
    """
    chosen = top_mask(scores, k).nonzero()[:, 0]
    best = torch.nan_to_num(scores[chosen], nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    return chosen[best.sort(descending=True, stable=True).indices]


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """down(silu(gate x) * up x)."""
    return functional.linear(functional.silu(functional.linear(x, gate)) * functional.linear(x, up), down)
