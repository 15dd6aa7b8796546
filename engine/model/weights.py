"""Names and shapes of the weights, and the seeded random ones.

Rules: weights carry the names that released checkpoints give them, except that the experts of a layer lie side by side in one
tensor (as the arithmetic wants them, and as transformers keeps them); a random weight depends on the seed, its name and its shape
only, so that two processes that agree on these build the same model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch

from tidegate.engine.model.config import ModelConfig

__all__ = ["MTP_MAY", "random_weights", "weight_shapes"]

# An MTP layer may bring these; where it does not, the network's own serve (in released checkpoints they are copies).
MTP_MAY = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}


def weight_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every weight, as Hugging Face's DeepseekV32ForCausalLM has them; then those of the MTP layer."""
    c = config
    yield "model.embed_tokens.weight", (c.vocab_size, c.hidden_size)
    for layer in range(c.cache_layers):
        yield from _layer_shapes(c, layer)
    yield "model.norm.weight", (c.hidden_size,)
    yield "lm_head.weight", (c.vocab_size, c.hidden_size)
    for layer in range(c.num_hidden_layers, c.cache_layers):
        prefix = f"model.layers.{layer}."
        for name in ("enorm", "hnorm", "shared_head.norm"):
            yield f"{prefix}{name}.weight", (c.hidden_size,)
        yield prefix + "eh_proj.weight", (c.hidden_size, 2 * c.hidden_size)


def _layer_shapes(c: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    prefix = f"model.layers.{layer}."
    yield prefix + "input_layernorm.weight", (c.hidden_size,)
    yield prefix + "post_attention_layernorm.weight", (c.hidden_size,)
    for name, shape in _attention_shapes(c):
        yield f"{prefix}self_attn.{name}.weight", shape
    if c.has_indexer(layer):
        for name, shape in _indexer_shapes(c):
            yield f"{prefix}self_attn.indexer.{name}", shape
    if layer < c.first_k_dense_replace:
        yield from _mlp_shapes(prefix + "mlp.", c.hidden_size, c.intermediate_size)
        return
    yield prefix + "mlp.gate.weight", (c.n_routed_experts, c.hidden_size)
    yield prefix + "mlp.gate.e_score_correction_bias", (c.n_routed_experts,)
    yield prefix + "mlp.experts.gate_up_proj", (c.n_routed_experts, 2 * c.moe_intermediate_size, c.hidden_size)
    yield prefix + "mlp.experts.down_proj", (c.n_routed_experts, c.hidden_size, c.moe_intermediate_size)
    if c.n_shared_experts:
        yield from _mlp_shapes(prefix + "mlp.shared_experts.", c.hidden_size, c.moe_intermediate_size * c.n_shared_experts)


def _attention_shapes(c: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    heads = c.num_attention_heads
    yield "q_a_proj", (c.q_lora_rank, c.hidden_size)
    yield "q_a_layernorm", (c.q_lora_rank,)
    yield "q_b_proj", (heads * (c.qk_nope_head_dim + c.qk_rope_head_dim), c.q_lora_rank)
    yield "kv_a_proj_with_mqa", (c.main_width, c.hidden_size)
    yield "kv_a_layernorm", (c.kv_lora_rank,)
    yield "kv_b_proj", (heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank)
    yield "o_proj", (c.hidden_size, heads * c.v_head_dim)


def _indexer_shapes(c: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "wq_b.weight", (c.index_n_heads * c.index_head_dim, c.q_lora_rank)
    yield "wk.weight", (c.index_head_dim, c.hidden_size)
    yield "k_norm.weight", (c.index_head_dim,)
    yield "weights_proj.weight", (c.index_n_heads, c.hidden_size)
    yield "k_norm.bias", (c.index_head_dim,)


def _mlp_shapes(prefix: str, hidden: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield prefix + "gate_proj.weight", (inner, hidden)
    yield prefix + "up_proj.weight", (inner, hidden)
    yield prefix + "down_proj.weight", (hidden, inner)


def random_weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    """Normal weights of `initializer_range`, the router's correction included; norms are near 1 and other biases near 0.

    The default range of 0.08 gives attention a large say in every layer, so that spoilt KV changes the tokens soon.  Norms differ
    from 1 so that one taken for another shows.
    """
    weights = {}
    for name, shape in weight_shapes(config):
        digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
        centre = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        weights[name] = (torch.randn(shape, generator=generator) * config.initializer_range + centre).to(config.torch_dtype)
    return weights
