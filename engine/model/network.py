"""The network, and what it asks of storage.

Rules: arithmetic never allocates, finds or keeps KV: it asks a provider, layer by layer, and forgets what it was
given when that layer is done; a decode step computes in blocks of exactly eight rows (short ones padded), attention
request by request, so a request's tokens are bit-equal alone, in any batch and over any storage; prefill is bit-equal
for equal chunks (both for one number of torch threads; with several models on a machine, one is by far the fastest).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tidegate.engine.model.arithmetic import gated_mlp, rms_norm, rotation, top_mask, wide
from tidegate.engine.model.attention import Attention, Projected
from tidegate.engine.model.config import ModelConfig, random_weights

ROW_BLOCK = 8


class PrefillKV(Protocol):
    """Storage of one prefill chunk; called from the computing thread, once per layer, layers in order."""

    def wait_for_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Block until the layer's buffer may be written and holds rows 0..start; its views (main [T, main_width],
        indexer [T, index_width]), T at least start + n."""

    def kv_written(self, layer: int) -> None:
        """Rows start..start+n of both views are written and change no more."""

    def layer_done(self, layer: int) -> None:
        """Attention of this layer reads the views no more."""


class DecodeKV(Protocol):
    """Storage of one decoding request; called from the computing thread, per layer in this order."""

    def append(self, layer: int, position: int, main_row: Tensor, index_row: Tensor) -> None:
        """Keep the rows of the token at `position`: before anyone reads them, and by copy."""

    def index_keys(self, layer: int) -> Tensor:
        """Indexer rows 0..position, [position + 1, index_width]."""

    def fetch(self, layer: int, positions: Tensor) -> Tensor:
        """Main rows of `positions` (int64 [k], best first, distinct), [k, main_width] in that order; valid until the
        next call.
        """


class Model:
    """The whole network over given weights."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        self.config, self.weights = config, dict(weights)
        prefixes = [f"model.layers.{layer}." for layer in range(config.num_hidden_layers)]
        self.attention = [Attention(config, weights, prefix + "self_attn.") for prefix in prefixes]

    @classmethod
    def random(cls, config: ModelConfig, seed: int) -> Model:
        """The model that (config, seed) names; equal in every process."""
        return cls(config, random_weights(config, seed))

    def prefill_chunk(self, tokens: Sequence[int] | Tensor, start: int, kv: PrefillKV) -> Tensor:
        """Write the KV of `tokens` at positions start.. through every layer; the final hidden states [n, hidden].

        Raises ValueError for tokens outside the vocabulary, and for a layer view that cannot hold start + n rows.
        """
        x = self._embed(tokens)
        end = start + x.shape[0]
        cos, sin = self._angles(torch.arange(start, end))
        for layer, attention in enumerate(self.attention):
            p = attention.project(self._norm(x, layer, "input_layernorm"), cos, sin)
            main, keys = kv.wait_for_layer(layer)
            self._check_views(layer, end, main, keys)
            main[start:end], keys[start:end] = p.main_rows, p.index_rows
            kv.kv_written(layer)
            latent = attention.attend_chunk(p, start, main[:end], keys[:end])
            kv.layer_done(layer)
            x = self._after_attention(x, attention.output(latent), layer)
        return rms_norm(x, self.weights["model.norm.weight"], self.config.rms_norm_eps)

    def decode_step(self, requests: Sequence[tuple[int, int, DecodeKV]]) -> Tensor:
        """Logits [requests, vocab] after one token of each (token, position, kv); each kv must be of a request of its
        own.
        """
        blocks = [self._decode_block(requests[i : i + ROW_BLOCK]) for i in range(0, len(requests), ROW_BLOCK)]
        return (
            torch.cat(blocks) if blocks else wide(self.weights["lm_head.weight"])[:0, :0].new_zeros(0, self.config.vocab_size)
        )

    def _decode_block(self, requests: Sequence[tuple[int, int, DecodeKV]]) -> Tensor:
        idle = [0] * (ROW_BLOCK - len(requests))
        x = self._embed([token for token, _, _ in requests] + idle)
        cos, sin = self._angles(torch.tensor([position for _, position, _ in requests] + idle))
        for layer, attention in enumerate(self.attention):
            p = attention.project(self._norm(x, layer, "input_layernorm"), cos, sin)
            latent = torch.zeros(self.config.num_attention_heads, ROW_BLOCK, self.config.kv_lora_rank, dtype=x.dtype)
            for row, (_, position, kv) in enumerate(requests):
                latent[:, row] = self._attend_stored(layer, p, row, position, kv)
            x = self._after_attention(x, attention.output(latent), layer)
        hidden = rms_norm(x, self.weights["model.norm.weight"], self.config.rms_norm_eps)
        return wide(functional.linear(hidden, self.weights["lm_head.weight"]))[: len(requests)]

    def _attend_stored(self, layer: int, p: Projected, row: int, position: int, kv: DecodeKV) -> Tensor:
        attention = self.attention[layer]
        kv.append(layer, position, p.main_rows[row], p.index_rows[row])
        keys = kv.index_keys(layer)
        if keys.shape != (position + 1, self.config.index_width):
            raise ValueError(
                f"layer {layer}: indexer keys are {tuple(keys.shape)} where {(position + 1, self.config.index_width)} are due"
            )
        return attention.attend(p.query[:, row], kv.fetch(layer, attention.choose(p, row, keys)))

    def _embed(self, tokens: Sequence[int] | Tensor) -> Tensor:
        ids = torch.as_tensor(tokens, dtype=torch.int64)
        if ids.dim() != 1 or ids.numel() == 0:
            raise ValueError(f"tokens of shape {tuple(ids.shape)}: give one flat, non-empty sequence")
        if int(ids.min()) < 0 or int(ids.max()) >= self.config.vocab_size:
            raise ValueError(
                f"tokens reach from {int(ids.min())} to {int(ids.max())}: the vocabulary has {self.config.vocab_size}"
            )
        return self.weights["model.embed_tokens.weight"][ids]

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        if int(positions.max()) >= self.config.max_position_embeddings or int(positions.min()) < 0:
            raise ValueError(
                f"position {int(positions.max())}: this model ends at {self.config.max_position_embeddings} tokens"
            )
        return rotation(positions, self.config.qk_rope_head_dim, self.config.rope_theta, self.config.torch_dtype)

    def _norm(self, x: Tensor, layer: int, name: str) -> Tensor:
        return rms_norm(x, self.weights[f"model.layers.{layer}.{name}.weight"], self.config.rms_norm_eps)

    def _after_attention(self, x: Tensor, attended: Tensor, layer: int) -> Tensor:
        x = x + attended
        h = self._norm(x, layer, "post_attention_layernorm")
        return x + (self._dense(h, layer, "mlp") if layer < self.config.first_k_dense_replace else self._mixture(h, layer))

    def _dense(self, h: Tensor, layer: int, name: str) -> Tensor:
        gate, up, down = (self.weights[f"model.layers.{layer}.{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
        return gated_mlp(h, gate, up, down)

    def _mixture(self, h: Tensor, layer: int) -> Tensor:
        """Every expert sees every row and the router's weights pick: what a row meets does not depend on its
        neighbours.
        """
        c, prefix = self.config, f"model.layers.{layer}.mlp."
        affinity = wide(h) @ wide(self.weights[prefix + "gate.weight"]).t()
        share = affinity.sigmoid() * top_mask(affinity, c.num_experts_per_tok)
        if c.norm_topk_prob:
            share = share / (share.sum(-1, keepdim=True) + 1e-20)
        share = (share * c.routed_scaling_factor).to(h.dtype)
        gate_up, down = self.weights[prefix + "experts.gate_up_proj"], self.weights[prefix + "experts.down_proj"]
        out = self._dense(h, layer, "mlp.shared_experts") if c.n_shared_experts else torch.zeros_like(h)
        for expert in range(c.n_routed_experts):
            gate, up = gate_up[expert].chunk(2)
            out = out + share[:, expert, None] * gated_mlp(h, gate, up, down[expert])
        return out

    def _check_views(self, layer: int, end: int, main: Tensor, keys: Tensor) -> None:
        for name, view, width in (("main", main, self.config.main_width), ("indexer", keys, self.config.index_width)):
            if view.dim() != 2 or view.shape[1] != width or view.shape[0] < end or view.dtype != self.config.torch_dtype:
                raise ValueError(
                    f"layer {layer}: the {name} view is {tuple(view.shape)} {view.dtype}: "
                    f"at least {end} rows of {width} {self.config.torch_dtype} are due"
                )


def greedy(logits: Tensor) -> list[int]:
    """The best token of each row, the lowest of equals."""
    return [int(row.argmax()) for row in logits.numpy()]
