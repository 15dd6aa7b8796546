"""Writes deepseek_v32_logits.json: what Hugging Face's DeepseekV32ForCausalLM says to the weights of `Model.random`.

Made with transformers 5.24.0, eager attention, float32, one thread.  Again, after `pip install '.[model]'`:

    python tests/unit/data/make_deepseek_v32_logits.py
"""

import json
from pathlib import Path

import torch
from transformers import DeepseekV32Config, DeepseekV32ForCausalLM

from tidegate.engine.model import Model, ModelConfig

CONFIG = ModelConfig(
    hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3, first_k_dense_replace=1,
    q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24, index_topk=12, index_head_dim=32,
    max_position_embeddings=4096, dtype="float32",
)
SEED = 7


def main() -> None:
    torch.set_num_threads(1)
    fields = {name: value for name, value in CONFIG.to_dict().items() if name not in ("dtype", "rope_theta")}
    rope = {"rope_type": "default", "rope_theta": CONFIG.rope_theta}
    config = DeepseekV32Config(
        **fields, n_group=1, topk_group=1, num_key_value_heads=CONFIG.num_attention_heads, rope_parameters=rope
    )
    config._attn_implementation = "eager"
    theirs = DeepseekV32ForCausalLM(config).eval()
    missing = theirs.load_state_dict(Model.random(CONFIG, SEED).weights, strict=False)
    assert not missing.unexpected_keys
    assert all(name.endswith("e_score_correction_bias") for name in missing.missing_keys)  # zeros
    prompt = torch.randint(0, 256, (40,), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logits = theirs(prompt[None], use_cache=False).logits[0, -4:]
    rows = [[round(x, 6) for x in row] for row in logits.tolist()]
    record = {"config": CONFIG.to_dict(), "seed": SEED, "prompt": prompt.tolist(), "last_logits": rows}
    Path(__file__).with_name("deepseek_v32_logits.json").write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
