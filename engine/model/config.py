"""Shape of the model, under the field names of a Hugging Face `config.json`, and its seeded random weights.

Rules: a configuration that cannot be computed is refused when it is made; a weight depends on the seed, its name and
its shape only, so that two processes that agree on both build the same model without sending it; weights carry
Hugging Face names.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

BYTES = 256  # a token below this is the byte itself
BOS, EOS = 256, 257
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model; the defaults are the demo's.  Raises ValueError for a shape that cannot be computed."""

    vocab_size: int = 264
    hidden_size: int = 256
    intermediate_size: int = 512
    moe_intermediate_size: int = 128
    num_hidden_layers: int = 8
    first_k_dense_replace: int = 3
    num_attention_heads: int = 4
    q_lora_rank: int = 128
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 64
    qk_rope_head_dim: int = 64
    v_head_dim: int = 64
    index_topk: int = 64
    index_n_heads: int = 32
    index_head_dim: int = 128
    n_routed_experts: int = 4
    n_shared_experts: int = 1
    num_experts_per_tok: int = 2
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 65536
    initializer_range: float = 0.08
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("first_k_dense_replace", "n_shared_experts") else 1
            if field.type == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ValueError(f"{field.name} is {value!r}: give an integer of at least {least}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}: choose one of {', '.join(DTYPES)}")
        if self.vocab_size <= EOS:
            raise ValueError(f"vocab_size is {self.vocab_size}: bytes and two marks need at least {EOS + 1}")
        if self.qk_rope_head_dim % 2 or self.qk_rope_head_dim > self.index_head_dim:
            raise ValueError(
                f"qk_rope_head_dim is {self.qk_rope_head_dim}: it must be even "
                f"and at most index_head_dim ({self.index_head_dim})"
            )
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ValueError(f"num_experts_per_tok is {self.num_experts_per_tok}: there are {self.n_routed_experts} experts")

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def main_width(self) -> int:
        """Elements of one main KV row: the compressed latent, then the rotated key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def index_width(self) -> int:
        """Elements of one indexer key."""
        return self.index_head_dim

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelConfig:
        """Inverse of `to_dict`; ValueError for a field this model does not have."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise ValueError(f"unknown model field {', '.join(unknown)}: this model has {', '.join(sorted(known))}")
        return cls(**fields)


def weight_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every weight, as Hugging Face's DeepseekV32ForCausalLM has them."""
    c = config
    yield "model.embed_tokens.weight", (c.vocab_size, c.hidden_size)
    for layer in range(c.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (c.hidden_size,)
        yield prefix + "post_attention_layernorm.weight", (c.hidden_size,)
        for name, shape in _attention_shapes(c):
            yield f"{prefix}self_attn.{name}.weight", shape
        yield prefix + "self_attn.indexer.k_norm.bias", (c.index_head_dim,)
        if layer < c.first_k_dense_replace:
            yield from _mlp_shapes(prefix + "mlp.", c.hidden_size, c.intermediate_size)
            continue
        yield prefix + "mlp.gate.weight", (c.n_routed_experts, c.hidden_size)
        yield prefix + "mlp.experts.gate_up_proj", (c.n_routed_experts, 2 * c.moe_intermediate_size, c.hidden_size)
        yield prefix + "mlp.experts.down_proj", (c.n_routed_experts, c.hidden_size, c.moe_intermediate_size)
        if c.n_shared_experts:
            yield from _mlp_shapes(prefix + "mlp.shared_experts.", c.hidden_size, c.moe_intermediate_size * c.n_shared_experts)
    yield "model.norm.weight", (c.hidden_size,)
    yield "lm_head.weight", (c.vocab_size, c.hidden_size)


def _attention_shapes(c: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    heads = c.num_attention_heads
    yield "q_a_proj", (c.q_lora_rank, c.hidden_size)
    yield "q_a_layernorm", (c.q_lora_rank,)
    yield "q_b_proj", (heads * (c.qk_nope_head_dim + c.qk_rope_head_dim), c.q_lora_rank)
    yield "kv_a_proj_with_mqa", (c.main_width, c.hidden_size)
    yield "kv_a_layernorm", (c.kv_lora_rank,)
    yield "kv_b_proj", (heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank)
    yield "o_proj", (c.hidden_size, heads * c.v_head_dim)
    yield "indexer.wq_b", (c.index_n_heads * c.index_head_dim, c.q_lora_rank)
    yield "indexer.wk", (c.index_head_dim, c.hidden_size)
    yield "indexer.k_norm", (c.index_head_dim,)
    yield "indexer.weights_proj", (c.index_n_heads, c.hidden_size)


def _mlp_shapes(prefix: str, hidden: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield prefix + "gate_proj.weight", (inner, hidden)
    yield prefix + "up_proj.weight", (inner, hidden)
    yield prefix + "down_proj.weight", (hidden, inner)


def random_weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    """Normal weights of `initializer_range`; norms are 1 and biases 0.

    The default range of 0.08 gives attention a large say in every layer, so that spoilt KV changes the tokens soon.
    """
    weights = {}
    for name, shape in weight_shapes(config):
        if len(shape) == 1:
            weights[name] = torch.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype=config.torch_dtype)
            continue
        digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
        weights[name] = (torch.randn(shape, generator=generator) * config.initializer_range).to(config.torch_dtype)
    return weights
