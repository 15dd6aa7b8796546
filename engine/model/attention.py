"""Sparse attention of one layer: MLA with the key and value projections absorbed, and the lightning indexer that
picks its rows.

Rules: a main KV row is the normed latent followed by the rotated key, an indexer row is one key; both are written
once, before they are read; attention reads whole rows, never expanded heads, so a row in a slot, in the host pool or
in a hot buffer is the same bytes; the main key rotates in interleaved pairs, the indexer's in halves (as released
weights expect).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tidegate.engine.model.arithmetic import (
    aligned,
    rms_norm,
    rotate_halves,
    rotate_interleaved,
    top_mask,
    top_positions,
    wide,
)
from tidegate.engine.model.config import ModelConfig

QUERY_BLOCK = 128  # queries scored at once in a prefill: bounds the memory of scores to heads x 128 x tokens


class Projected(NamedTuple):
    """What a layer needs of n tokens: rows to store, and queries over stored rows."""

    query: Tensor  # [heads, n, main_width], absorbed
    main_rows: Tensor  # [n, main_width]
    index_query: Tensor  # [index heads, n, index_width], wide
    index_weight: Tensor  # [index heads, n], wide, scaled
    index_rows: Tensor  # [n, index_width]


class Attention:
    """One layer's attention; stateless but for its weights."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], prefix: str) -> None:
        self.config = config
        self.w = {
            name.removeprefix(prefix).removesuffix(".weight"): t for name, t in weights.items() if name.startswith(prefix)
        }
        heads, nope = config.num_attention_heads, config.qk_nope_head_dim
        kv_b = self.w.pop("kv_b_proj").view(heads, nope + config.v_head_dim, config.kv_lora_rank)
        self.absorb_key = kv_b[:, :nope].contiguous()  # [heads, nope, latent]
        self.absorb_value = kv_b[:, nope:].transpose(1, 2).contiguous()  # [heads, latent, v]
        self.scale = (nope + config.qk_rope_head_dim) ** -0.5
        self.index_scale = (config.index_head_dim * config.index_n_heads) ** -0.5

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> Projected:
        """Queries and rows of the normed hidden states `x` [n, hidden] at the angles `cos`, `sin` [n, rope / 2]."""
        c, w, n = self.config, self.w, x.shape[0]
        residual = rms_norm(functional.linear(x, w["q_a_proj"]), w["q_a_layernorm"], c.rms_norm_eps)
        query = functional.linear(residual, w["q_b_proj"]).view(n, c.num_attention_heads, -1)
        plain, rope = query.tensor_split([c.qk_nope_head_dim], -1)
        absorbed = torch.bmm(plain.transpose(0, 1), self.absorb_key)
        rotated = rotate_interleaved(rope, cos, sin).transpose(0, 1)
        latent, key = functional.linear(x, w["kv_a_proj_with_mqa"]).tensor_split([c.kv_lora_rank], -1)
        main = [rms_norm(latent, w["kv_a_layernorm"], c.rms_norm_eps), rotate_interleaved(key, cos, sin)]
        index_query = functional.linear(residual, w["indexer.wq_b"]).view(n, c.index_n_heads, -1)
        index_key = functional.layer_norm(
            functional.linear(x, w["indexer.wk"]),
            (c.index_head_dim,),
            w["indexer.k_norm"],
            w["indexer.k_norm.bias"],
            1e-6,
        )
        return Projected(
            query=torch.cat([absorbed, rotated], -1),
            main_rows=torch.cat(main, -1),
            index_query=wide(self._rotate_head(index_query, cos, sin)).transpose(0, 1).contiguous(),
            index_weight=(wide(functional.linear(x, w["indexer.weights_proj"])) * self.index_scale).t().contiguous(),
            index_rows=self._rotate_head(index_key, cos, sin),
        )

    def _rotate_head(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rope = self.config.qk_rope_head_dim
        return torch.cat([rotate_halves(x[..., :rope], cos, sin), x[..., rope:]], -1)

    def output(self, latent: Tensor) -> Tensor:
        """Hidden states [n, hidden] of attended latents [heads, n, kv_lora_rank]."""
        value = torch.bmm(latent, self.absorb_value).transpose(0, 1)
        return functional.linear(value.reshape(value.shape[0], -1), self.w["o_proj"])

    def choose(self, p: Projected, row: int, keys: Tensor) -> Tensor:
        """Positions (int64, best first) that token `row` of `p` attends to among `keys` [n, index_width]."""
        scores = torch.relu(aligned(p.index_query[:, row]) @ wide(aligned(keys)).t())
        return top_positions((aligned(p.index_weight[:, row])[None] @ scores)[0], self.config.index_topk)

    def attend(self, query: Tensor, rows: Tensor) -> Tensor:
        """Latent [heads, kv_lora_rank] of one token's `query` [heads, main_width] over the chosen `rows` [k,
        main_width].
        """
        rows = aligned(rows)
        weight = wide(aligned(query) @ rows.t()).mul(self.scale).softmax(-1)
        return weight.to(rows.dtype) @ rows[:, : self.config.kv_lora_rank]

    def attend_chunk(self, p: Projected, start: int, main: Tensor, keys: Tensor) -> Tensor:
        """Latents [heads, n, kv_lora_rank] of tokens start..start+n, each over its own top-k of the rows up to itself.

        A dense product under a mask: at the lengths of a chunk it is faster than gathering k rows for each query.
        """
        main, keys = aligned(main), wide(aligned(keys))
        n = p.main_rows.shape[0]
        return torch.cat(
            [self._attend_block(p, start, b, min(b + QUERY_BLOCK, n), main, keys) for b in range(0, n, QUERY_BLOCK)], 1
        )

    def _attend_block(self, p: Projected, start: int, begin: int, end: int, main: Tensor, keys: Tensor) -> Tensor:
        total = start + end
        future = torch.arange(total)[None] > torch.arange(start + begin, total)[:, None]
        score = torch.zeros(future.shape, dtype=keys.dtype)
        for query, weight in zip(p.index_query[:, begin:end], p.index_weight[:, begin:end], strict=True):
            score.addcmul_((query @ keys[:total].t()).relu_(), weight[:, None])
        unseen = ~top_mask(score.masked_fill_(future, -torch.inf), self.config.index_topk) | future
        weight = wide(p.query[:, begin:end] @ main[:total].t()).mul_(self.scale).masked_fill_(unseen, -torch.inf).softmax(-1)
        return weight.to(main.dtype) @ main[:total, : self.config.kv_lora_rank]
