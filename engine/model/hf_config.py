"""Between a Hugging Face `config.json` of the DeepSeek-V3.2 family (GLM-5 is of it) and a `ModelConfig`.

Rules: a field that changes a number is computed or refused, by its name and with the way out, never passed over; a field that this
reader has not heard of is refused too, because it may be one of those; all that is wrong is said at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tidegate.engine.model.config import BOS, EOS, MODEL_TYPES, ModelConfig
from tidegate.engine.model.rope import Rope

__all__ = ["config_from_hf", "config_to_hf", "indexer_types_of"]

ARCHITECTURES = {"deepseek_v32": "DeepseekV32ForCausalLM", "glm_moe_dsa": "GlmMoeDsaForCausalLM"}
NEEDED = (
    "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers", "first_k_dense_replace",
    "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_topk",
    "index_n_heads", "index_head_dim", "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "norm_topk_prob",
    "routed_scaling_factor", "rms_norm_eps", "max_position_embeddings",
)  # fmt: skip
OPTIONAL = ("num_nextn_predict_layers", "n_group", "topk_group", "initializer_range")
# What transformers and the publishers write beside these, and what of it is computed.
ONLY: dict[str, Any] = {
    "hidden_act": "silu", "scoring_func": "sigmoid", "topk_method": "noaux_tc", "attention_bias": False,
    "mlp_bias": False, "tie_word_embeddings": False, "moe_layer_freq": 1, "rope_interleave": True,
    "is_encoder_decoder": False,
}  # fmt: skip
HARMLESS = (
    "architectures", "attention_dropout", "auto_map", "aux_loss_alpha", "bos_token_id", "chunk_size_feed_forward", "dtype",
    "eos_token_id", "ep_size", "id2label", "label2id", "name_or_path", "_name_or_path", "output_attentions", "output_hidden_states",
    "output_router_logits", "pad_token_id", "pretraining_tp", "problem_type", "return_dict", "router_aux_loss_coef", "seq_aux",
    "torch_dtype", "transformers_version", "use_cache",
)  # fmt: skip
SHARING = ("indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
# What follows from the rest: transformers writes it, and another value would be another model.
DERIVED = (
    "num_key_value_heads", "head_dim", "qk_head_dim", "mlp_layer_types", "layer_types", "num_experts", "num_local_experts",
    "indexer_rope_interleave",
)  # fmt: skip
ELSEWHERE = ("model_type", "quantization_config", "rope_scaling", "rope_parameters", "rope_theta")
ROPE = frozenset(field.name for field in dataclasses.fields(Rope))


def config_from_hf(fields: Mapping[str, Any], *, dtype: str = "") -> ModelConfig:
    """The model that a `config.json` describes.  dtype: compute in this instead of what the file says (the weights are widened).

    Raises ValueError, in one line that names every field that is missing, unknown, or has a value that is not computed here.
    """
    wrong = [f"{name} is missing" for name in ("model_type", *NEEDED) if name not in fields]
    family = fields.get("model_type", "deepseek_v32")
    if family not in MODEL_TYPES:
        wrong.append(f"model_type is {family!r} (only {' and '.join(map(repr, MODEL_TYPES))} are computed)")
    wrong += [f"{name} is {fields[name]!r} (only {good!r} is computed)" for name, good in ONLY.items() if fields.get(name, good) != good]
    if fields.get("quantization_config"):
        method = fields["quantization_config"]
        wrong.append(f"quantization_config is {method!r} (quantized weights are not read: convert the checkpoint to bfloat16)")
    wrong += _unequal(fields)
    rope, why = _rope(fields)
    wrong += why
    said = {*NEEDED, *OPTIONAL, *ONLY, *SHARING, *HARMLESS, *DERIVED, *ELSEWHERE}
    if unknown := sorted(set(fields) - said):
        wrong.append(f"{', '.join(unknown)}: unknown here, and might change the result")
    if wrong:
        raise ValueError(f"this model is not one of {' or '.join(MODEL_TYPES)} as computed here: {'; '.join(wrong)}")
    sizes = {name: fields[name] for name in (*NEEDED, *OPTIONAL) if fields.get(name) is not None}
    stored = fields.get("dtype") or fields.get("torch_dtype") or "float32"
    types = indexer_types_of(fields)
    return ModelConfig(
        **sizes, model_type=family, indexer_types=types, rope=rope,
        dtype=dtype or str(stored).removeprefix("torch."),
    )  # fmt: skip


def indexer_types_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """`ModelConfig.indexer_types`: a list, or a pattern of letters, or else every `index_topk_freq`-th layer from an offset on is full.

    fields: of a config.json; num_hidden_layers is needed.
    """
    types = _said_types(fields)
    return types if "shared" in types else ()


def _said_types(fields: Mapping[str, Any]) -> tuple[str, ...]:
    given = fields.get("indexer_types") or fields.get("index_topk_pattern")
    if given:
        return tuple({"F": "full", "S": "shared"}.get(one, one) for one in given)
    every, offset = max(fields.get("index_topk_freq", 1), 1), fields.get("index_skip_topk_offset", 2)
    return tuple("shared" if max(layer - offset + 1, 0) % every else "full" for layer in range(fields["num_hidden_layers"]))


def _unequal(fields: Mapping[str, Any]) -> list[str]:
    if any(name not in fields for name in NEEDED):
        return []
    layers, dense = fields["num_hidden_layers"], min(fields["first_k_dense_replace"], fields["num_hidden_layers"])
    due = {
        "num_key_value_heads": fields["num_attention_heads"],
        "head_dim": fields["qk_rope_head_dim"],
        "qk_head_dim": fields["qk_nope_head_dim"] + fields["qk_rope_head_dim"],
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (layers - dense),
        "layer_types": ["indexed_attention"] * layers,
        "indexer_rope_interleave": MODEL_TYPES.get(fields.get("model_type", ""), False),
        "num_experts": fields["n_routed_experts"],
        "num_local_experts": fields["n_routed_experts"],
    }
    other = {name: value for name, value in due.items() if fields.get(name, value) != value}
    return [f"{name} is {fields[name]!r} ({value!r} follows from the rest)" for name, value in other.items()]


def _rope(fields: Mapping[str, Any]) -> tuple[Rope, list[str]]:
    """The rope, and what is wrong with it; in the form of transformers 5 (rope_parameters), or of before (rope_scaling)."""
    given = dict(fields.get("rope_parameters") or fields.get("rope_scaling") or {})
    kind = given.pop("rope_type", given.get("type", "default"))
    given.pop("type", None)
    theta = given.pop("rope_theta", fields.get("rope_theta", 10000.0))
    if kind == "default" and not given:
        return Rope(rope_theta=float(theta)), []
    if kind != "yarn":
        return Rope(), [f"rope_scaling is of type {kind!r} with {sorted(given)} (default and yarn are computed)"]
    wrong = [f"rope_scaling.{name} is missing" for name in ("factor", "original_max_position_embeddings") if given.get(name) is None]
    more = [name for name in sorted(set(given) - ROPE) if (name, given[name]) != ("truncate", True)]
    wrong += [f"rope_scaling.{name} is not computed" for name in more]
    if wrong:
        return Rope(), wrong
    numbers = {name: value for name, value in given.items() if name in ROPE and value is not None}
    return Rope(rope_type="yarn", rope_theta=float(theta), **numbers), []


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """What to write as `config.json`, so that transformers' classes of its type and `config_from_hf` read the same model."""
    fields: dict[str, Any] = {name: getattr(config, name) for name in (*NEEDED, *OPTIONAL)}
    rope = dataclasses.asdict(config.rope)
    if config.rope.rope_type == "default":
        rope = {"rope_type": "default", "rope_theta": config.rope.rope_theta}
    marks = {"bos_token_id": BOS, "eos_token_id": EOS} if config.vocab_size > EOS else {"bos_token_id": None, "eos_token_id": None}
    if config.indexer_types:
        fields["indexer_types"] = [*config.indexer_types]
    return {
        **fields, **marks, "architectures": [ARCHITECTURES[config.model_type]], "model_type": config.model_type, "dtype": config.dtype,
        "hidden_act": "silu", "scoring_func": "sigmoid", "topk_method": "noaux_tc", "attention_bias": False, "tie_word_embeddings": False,
        "num_key_value_heads": config.num_attention_heads, "rope_parameters": rope,
    }  # fmt: skip
