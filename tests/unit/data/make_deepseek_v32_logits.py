"""Writes deepseek_v32_logits.json: what Hugging Face's DeepseekV32ForCausalLM says to a checkpoint of `Model.random`.

Made with transformers 5.24.0, eager attention and experts, float32, one thread.  Again, after `pip install '.[model]'`:

    python tests/unit/data/make_deepseek_v32_logits.py
"""

import json
import tempfile
from pathlib import Path

import torch
from transformers import DeepseekV32ForCausalLM

from tidegate.engine.model import Model, ModelConfig, save_checkpoint
from tidegate.engine.model.rope import Rope

CONFIG = ModelConfig(
    hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3, first_k_dense_replace=1,
    q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24, index_topk=12, index_head_dim=32,
    n_routed_experts=8, n_group=4, topk_group=2, routed_scaling_factor=1.5, max_position_embeddings=256, dtype="float32",
    rope=Rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.7),
)
SEED = 7


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        save_checkpoint(Model.random(CONFIG, SEED), Path(scratch) / "model")
        theirs = DeepseekV32ForCausalLM.from_pretrained(
            Path(scratch) / "model", dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
        ).eval()
    prompt = torch.randint(0, 256, (40,), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logits = theirs(prompt[None], use_cache=False).logits[0, -4:]
    rows = [[round(x, 6) for x in row] for row in logits.tolist()]
    record = {"config": CONFIG.to_dict(), "seed": SEED, "prompt": prompt.tolist(), "last_logits": rows}
    Path(__file__).with_name("deepseek_v32_logits.json").write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
