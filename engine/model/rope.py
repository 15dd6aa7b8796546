"""Rotary positions: angles of the plain and the yarn kind, and the two ways in which this family pairs what it rotates.

Rules: angles are float32 whatever the model's type, as in every other implementation (two that differ there differ in their
logits at long prompts); the main key rotates in interleaved pairs, the indexer's in halves, as released weights expect.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from tidegate.engine.model.arithmetic import wide

__all__ = ["PLAIN", "Rope", "rotate_halves", "rotate_interleaved"]


@dataclasses.dataclass(frozen=True)
class Rope:
    """The position encoding of a model, under the names of `rope_scaling` in its `config.json`.

    rope_type: default, or yarn (https://arxiv.org/abs/2309.00071), to which all but theta belong.
    """

    rope_type: str = "default"
    rope_theta: float = 10000.0
    factor: float = 1.0
    original_max_position_embeddings: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0

    def frequencies(self, width: int) -> Tensor:
        """Radians per position of each pair, float32 [width // 2]."""
        plain = 1.0 / self.rope_theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
        if self.rope_type == "default":
            return plain

        def pair_that_turns(times: float) -> float:
            """The pair that makes so many turns within the context that the model was first trained on."""
            return width * math.log(self.original_max_position_embeddings / (times * 2 * math.pi)) / (2 * math.log(self.rope_theta))

        low, high = max(math.floor(pair_that_turns(self.beta_fast)), 0), min(math.ceil(pair_that_turns(self.beta_slow)), width - 1)
        ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / (high - low or 0.001)).clamp(0, 1)
        return plain / self.factor * ramp + plain * (1 - ramp)

    @property
    def amplitude(self) -> float:
        """What yarn multiplies cosines and sines by."""
        if self.rope_type == "default":
            return 1.0
        if self.mscale and self.mscale_all_dim:
            return self._gain(self.mscale) / self._gain(self.mscale_all_dim)
        return self._gain(1.0)

    @property
    def score_factor(self) -> float:
        """What yarn multiplies attention scores by."""
        return self._gain(self.mscale_all_dim) ** 2 if self.rope_type == "yarn" else 1.0

    def _gain(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def angles(self, positions: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """(cos, sin) of `positions` [n], float32 [n, width // 2], amplitude included."""
        angle = positions.float()[:, None] * self.frequencies(width)
        return angle.cos() * self.amplitude, angle.sin() * self.amplitude


PLAIN = Rope()


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (0, 1), (2, 3), ... of the last axis; the result holds first members, then second members."""
    return _rotated(x[..., 0::2], x[..., 1::2], cos, sin, x.dtype)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (0, w/2), (1, w/2 + 1), ... of the last axis."""
    half = x.shape[-1] // 2
    return _rotated(x[..., :half], x[..., half:], cos, sin, x.dtype)


def _rotated(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
    a, b = wide(first), wide(second)
    while cos.dim() < a.dim():  # [n, w] beside [n, heads, w]
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(dtype)
