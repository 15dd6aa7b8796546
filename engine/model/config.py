"""Shape of the model, under the field names of a Hugging Face `config.json`.

Rules: a configuration that cannot be computed is refused when it is made, by the name of the field; the fields are those that
change a number; how a `config.json` is read, and what of it is refused, is `hf_config`'s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from tidegate.engine.model.rope import PLAIN, Rope

__all__ = ["BOS", "BYTES", "DTYPES", "EOS", "MODEL_TYPES", "ROW_DTYPES", "ModelConfig"]

BYTES = 256  # without a tokenizer, a token below this is the byte itself
BOS, EOS = 256, 257
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
ROW_DTYPES = DTYPES | {"int8": torch.int8, "float16": torch.float16}  # of rows that are stored
# Products of eight rows are the same to the bit wherever a row is among the eight, in all widths tried that are multiples of 8, with one
# column or at least 4 (`arithmetic.linear`); in many others they are not.  So are sigmoids of eight rows that fill whole pairs of
# vectors: torch takes the rest one by one, by another formula.
EIGHTS = (
    "hidden_size", "intermediate_size", "moe_intermediate_size", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim",
)  # fmt: skip
# The published family, and whether the indexer rotates interleaved pairs, as the main key does, or halves.
MODEL_TYPES = {"deepseek_v32": False, "glm_moe_dsa": True}
MAY_BE_ZERO = ("first_k_dense_replace", "n_shared_experts", "num_nextn_predict_layers")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model; the defaults are the demo's.  Raises ValueError for a shape that cannot be computed.

    indexer_types: of each layer but the MTP layer "full", or "shared" for one that has no indexer and attends to what the last full
    layer before it chose; left out, all are full.
    """

    model_type: str = "deepseek_v32"
    vocab_size: int = 264
    hidden_size: int = 256
    intermediate_size: int = 512
    moe_intermediate_size: int = 128
    num_hidden_layers: int = 8
    num_nextn_predict_layers: int = 0
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
    indexer_types: tuple[str, ...] = ()
    lic8: bool = False
    n_routed_experts: int = 4
    n_shared_experts: int = 1
    num_experts_per_tok: int = 2
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    rope: Rope = PLAIN
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 65536
    initializer_range: float = 0.08
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in MAY_BE_ZERO else 1
            if field.type == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ValueError(f"{field.name} is {value!r}: give an integer of at least {least}")
        for good, why in self._rules():
            if not good:
                raise ValueError(why)

    def _rules(self) -> list[tuple[bool, str]]:
        rope, index, experts = self.qk_rope_head_dim, self.index_head_dim, self.n_routed_experts
        eights = [
            (getattr(self, name) % 8 == 0, f"{name} is {getattr(self, name)}: give a multiple of 8, or results depend on the batch")
            for name in EIGHTS
        ]
        return [
            *eights,
            (experts % 4 == 0, f"n_routed_experts is {experts}: give a multiple of 4, or results depend on the batch"),
            (self.model_type in MODEL_TYPES, f"model_type is {self.model_type!r}: choose one of {', '.join(MODEL_TYPES)}"),
            *self._indexer_rules(),
            (self.dtype in DTYPES, f"dtype is {self.dtype!r}: choose one of {', '.join(DTYPES)}"),
            (rope <= index, f"qk_rope_head_dim is {rope}: it must be at most index_head_dim ({index})"),
            (self.num_experts_per_tok <= experts, f"num_experts_per_tok is {self.num_experts_per_tok}: there are {experts} experts"),
            (experts % self.n_group == 0, f"n_group is {self.n_group}: it must divide n_routed_experts ({experts})"),
            (self.topk_group <= self.n_group, f"topk_group is {self.topk_group}: there are {self.n_group} groups"),
            (self.n_group == 1 or experts >= 2 * self.n_group,
             f"n_group is {self.n_group}: a group is judged by its two best experts; {experts} experts make groups of "
             f"{experts // self.n_group}"),
            (self.num_experts_per_tok * self.n_group <= experts * self.topk_group,
             f"num_experts_per_tok is {self.num_experts_per_tok}: {self.topk_group} of {self.n_group} groups hold "
             f"{experts // self.n_group * self.topk_group} experts"),
            (self.num_nextn_predict_layers <= 1, f"num_nextn_predict_layers is {self.num_nextn_predict_layers}: 0 or 1 is computed"),
        ]  # fmt: skip

    def _indexer_rules(self) -> list[tuple[bool, str]]:
        types, layers = self.indexer_types, self.num_hidden_layers
        strange = sorted(set(types) - {"full", "shared"})
        return [
            (not strange, f"indexer_types has {strange}: a layer is full or shared"),
            (len(types) in (0, layers), f"indexer_types has {len(types)} entries: there are {layers} layers (num_hidden_layers)"),
            (types[:1] != ("shared",), "indexer_types begins with 'shared': no layer before the first has chosen anything"),
            ("shared" not in types or self.model_type == "glm_moe_dsa",
             f"indexer_types shares, which {self.model_type} does not: model_type glm_moe_dsa does"),
        ]  # fmt: skip

    def has_indexer(self, layer: int) -> bool:
        """Has `layer` (from 0; the MTP layer has) an indexer of its own?"""
        return layer >= len(self.indexer_types) or self.indexer_types[layer] == "full"

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def cache_layers(self) -> int:
        """Layers that have KV: those of the network, then the MTP layer if there is one."""
        return self.num_hidden_layers + self.num_nextn_predict_layers

    @property
    def lookahead(self) -> int:
        """Tokens after its own on which a token's row of some layer depends: 1 for the MTP layer's, which takes the next one in.

        Rows that were computed for another continuation of the same prefix are its rows but for the last `lookahead` of them.
        """
        return self.num_nextn_predict_layers

    @property
    def parts(self) -> int:
        """Parts in which products over heads and over inner widths are computed and added up, whatever the number of ranks.

        So a tensor-parallel group has as many ranks, or a divisor of it (`shards.Shard`).
        """
        return next(n for n in (4, 2, 1) if self.num_attention_heads % n == 0)

    @property
    def main_width(self) -> int:
        """Elements of one main KV row: the compressed latent, then the rotated key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def index_width(self) -> int:
        """Elements of one indexer key."""
        return self.index_head_dim

    def row_kinds(self, layer: int) -> dict[str, tuple[str, int]]:
        """(dtype, elements) of each kind of row that a token has in `layer`: "main", then the indexer's."""
        kinds = {"main": (self.dtype, self.main_width)}
        if self.has_indexer(layer):
            kinds["index"] = ("int8" if self.lic8 else self.dtype, self.index_width)
            kinds |= {"scale": ("float16", 1)} if self.lic8 else {}
        return kinds

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelConfig:
        """Inverse of `to_dict`; ValueError for a field this model does not have."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise ValueError(f"unknown model field {', '.join(unknown)}: this model has {', '.join(sorted(known))}")
        rope = fields.get("rope", {})
        types = tuple(fields.get("indexer_types") or ())
        return cls(**{**fields, "rope": rope if isinstance(rope, Rope) else Rope(**rope), "indexer_types": types})
