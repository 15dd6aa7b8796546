"""Checkpoints: what is written is read back to the bit, by anyone; what does not fit is named, all of it, before a weight is read."""

import dataclasses
import json
import re
import sys

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from tidegate.engine.model import (
    CheckpointError,
    Model,
    ModelConfig,
    Tokenizer,
    check_checkpoint,
    checkpoint,
    load_checkpoint,
    read_config,
    save_checkpoint,
)
from tidegate.engine.model.hf_config import config_from_hf, config_to_hf
from tidegate.engine.model.rope import Rope

CONFIG = ModelConfig(
    hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2, first_k_dense_replace=1,
    num_nextn_predict_layers=1, q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24,
    index_topk=12, index_head_dim=32, n_routed_experts=4, n_group=2, topk_group=1, max_position_embeddings=256,
    rope=Rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.7),
)  # fmt: skip
PUBLISHED = {  # the fields of a released config.json of the family, at sizes of our own
    "architectures": ["DeepseekV32ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
    "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 64, "index_head_dim": 32,
    "index_n_heads": 32, "index_topk": 16, "initializer_range": 0.02, "intermediate_size": 96, "kv_lora_rank": 64,
    "max_position_embeddings": 163840, "model_type": "deepseek_v32", "moe_intermediate_size": 32, "moe_layer_freq": 1, "n_group": 2,
    "n_routed_experts": 8, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 4, "num_experts_per_tok": 2,
    "num_hidden_layers": 5, "num_key_value_heads": 4, "num_nextn_predict_layers": 1, "q_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "transformers_version": "4.44.2", "use_cache": True, "v_head_dim": 16, "vocab_size": 300,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    save_checkpoint(Model.random(CONFIG, 7), tmp_path / "model")
    return tmp_path / "model"


def same(one, two):
    assert one.config == two.config
    assert one.weights.keys() == two.weights.keys()
    assert all(torch.equal(tensor, two.weights[name]) for name, tensor in one.weights.items())


def test_a_checkpoint_is_read_back_to_the_bit(folder):
    same(load_checkpoint(folder), Model.random(CONFIG, 7))
    assert check_checkpoint(folder) == CONFIG
    assert check_checkpoint(folder, dtype="float64").dtype == "float64"


def test_a_model_is_named_by_what_it_computes(folder):
    names = [model.identity() for model in (load_checkpoint(folder), Model.random(CONFIG, 7), Model.random(CONFIG, 8))]
    names += [load_checkpoint(folder, dtype="float32").identity(), Model.random(dataclasses.replace(CONFIG, index_topk=13), 7).identity()]
    assert names[0] == names[1]
    assert len(set(names)) == 4


def test_the_seeded_model_has_the_heads_that_its_tests_need():
    assert ModelConfig().index_n_heads >= 32


def test_a_checkpoint_may_be_computed_in_a_wider_type_and_in_no_narrower_one(folder, tmp_path):
    wide = load_checkpoint(folder, dtype="float64")
    assert wide.config == dataclasses.replace(CONFIG, dtype="float64")
    assert all(torch.equal(t, wide.weights[n].bfloat16()) for n, t in load_checkpoint(folder).weights.items())
    save_checkpoint(wide, tmp_path / "wide")
    with pytest.raises(CheckpointError, match="the weights are float64, and dtype float32 would round them; choose float64 or wider"):
        load_checkpoint(tmp_path / "wide", dtype="float32")


def test_shards_with_an_index_are_read(folder):
    tensors = sorted(load_file(folder / "model.safetensors").items())
    (folder / "model.safetensors").unlink()
    where = {}
    for shard in range(3):
        part = dict(tensors[shard::3])
        save_file(part, folder / f"part-{shard}.safetensors")
        where |= dict.fromkeys(part, f"part-{shard}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    same(load_checkpoint(folder), Model.random(CONFIG, 7))
    index.write_text(json.dumps({"weight_map": {**where, "lm_head.weight": "../x"}}))
    with pytest.raises(CheckpointError, match=r"'../x' is not a file name"):
        load_checkpoint(folder)
    index.write_text(json.dumps({"weight_map": {**where, "more": "part-0.safetensors"}}))
    with pytest.raises(CheckpointError, match="more: not in the shard"):
        load_checkpoint(folder)
    index.write_text(json.dumps({"weight_map": where}))
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"part-1\.safetensors: no such file"):
        load_checkpoint(folder)


def test_what_publishers_keep_in_float32_is_read_as_it_is(folder):
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    tensors[name] = tensors[name].float() + 1e-6
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(load_checkpoint(folder).weights[name], tensors[name])


def test_an_mtp_layer_may_bring_its_own_embedding_and_head(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.shared_head.head.weight"] = -tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    own, shared = load_checkpoint(folder, dtype="float64"), Model(CONFIG, Model.random(CONFIG, 7).weights)
    assert torch.equal(own._mtp("shared_head.head.weight"), -shared._mtp("shared_head.head.weight").double())
    assert torch.equal(own._mtp("embed_tokens.weight"), own.weights["model.embed_tokens.weight"])


def test_the_tensors_of_an_mtp_layer_belong_to_a_model_that_has_one(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 0}))
    with pytest.raises(CheckpointError, match=r"not of this model: model\.layers\.2\."):
        load_checkpoint(folder)


def test_all_that_is_wrong_with_the_tensors_is_said_before_a_weight_is_read(folder, monkeypatch):
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:, :-1].contiguous()
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float()
    tensors["model.layers.1.mlp.experts.3.up_proj.weight"] = tensors["model.layers.1.mlp.experts.3.up_proj.weight"][:-1].contiguous()
    tensors["model.layers.9.mlp.up_proj.weight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    save_file(tensors, folder / "model.safetensors")
    monkeypatch.setattr(checkpoint, "_read", lambda *args: pytest.fail("a weight was read"))
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    with pytest.raises(CheckpointError, match=re.escape(str(caught.value))):
        check_checkpoint(folder)
    for part in (
        "1 missing: model.layers.0.mlp.up_proj.weight", "1 not of this model: model.layers.9.mlp.up_proj.weight",
        "lm_head.weight is [264, 63] where [264, 64] is due", "experts.3.up_proj.weight is [31, 64] where [32, 64] is due",
        "model.norm.weight is F32 where BF16 is due",
    ):  # fmt: skip
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_checkpoint_are_refused(folder, tmp_path):
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole = weights.read_bytes()
    for spoilt, message in (
        (whole[:-5], "it was cut, copy it again"), (whole[:100], "no safetensors file"), (b"", "no safetensors file"),
        (b"\xff" * 64, "no safetensors file"), (whole[:8] + b"[" + whole[9:], "no safetensors file"),
    ):  # fmt: skip
        weights.write_bytes(spoilt)
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(folder)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: no such file"):
        load_checkpoint(folder)
    for spoilt, message in (("{", "cannot be read"), ("[]", "holds no JSON object"), ("{}", "model_type is missing")):
        config.write_text(spoilt)
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="is there already"):
        save_checkpoint(Model.random(CONFIG, 7), folder)


def test_a_checkpoint_that_could_not_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(Model.random(CONFIG, 7), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


# --- config.json


def test_a_published_config_is_read():
    config = config_from_hf(PUBLISHED)
    assert (config.n_group, config.num_nextn_predict_layers, config.dtype) == (2, 1, "bfloat16")
    assert config.rope == Rope("yarn", 10000.0, 40, 4096, 32, 1, 1.0, 1.0)
    assert config.cache_layers == 6


@pytest.mark.parametrize("config", [CONFIG, ModelConfig(), ModelConfig(dtype="float64", rope=Rope(rope_theta=5e5))])
def test_a_config_is_read_back(config):
    assert config_from_hf(json.loads(json.dumps(config_to_hf(config)))) == config


GLM = {
    **PUBLISHED, "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "num_hidden_layers": 78,
    "indexer_rope_interleave": True,
}  # fmt: skip


@pytest.mark.parametrize("said", [
    {"index_topk_freq": 4}, {"index_topk_freq": 4, "index_skip_topk_offset": 2}, {"index_topk_pattern": "F" + "FSSS" * 19 + "F"},
    {"indexer_types": ["full", *(["full"] + ["shared"] * 3) * 19, "full"]},
])  # fmt: skip
def test_layers_that_share_an_indexer_are_read_in_all_forms(said):
    config = config_from_hf({**GLM, **said})
    assert [config.has_indexer(layer) for layer in range(79)] == [True] + ([True] + [False] * 3) * 19 + [True, True]
    assert sum(map(config.has_indexer, range(78))) == 21
    assert config_from_hf(json.loads(json.dumps(config_to_hf(config)))) == config
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config_from_hf(GLM).indexer_types == ()


REFUSED = [
    ({"index_topk_freq": 4}, "indexer_types shares, which deepseek_v32 does not"),
    ({"indexer_rope_interleave": True}, "indexer_rope_interleave is True (False follows from the rest)"),
    ({"model_type": "deepseek_v3"}, "model_type is 'deepseek_v3' (only 'deepseek_v32' and 'glm_moe_dsa' are computed)"),
    ({"index_topk": None}, "index_topk is missing"),
    ({"quantization_config": {"quant_method": "fp8"}}, "convert the checkpoint to bfloat16"),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling is of type 'linear'"),
    ({"rope_scaling": {"type": "yarn", "factor": 2}}, "rope_scaling.original_max_position_embeddings is missing"),
    ({"rope_scaling": {**PUBLISHED["rope_scaling"], "truncate": False}}, "rope_scaling.truncate is not computed"),
    ({"rope_scaling": {**PUBLISHED["rope_scaling"], "attention_factor": 2.0}}, "rope_scaling.attention_factor is not computed"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
    ({"attention_bias": True}, "attention_bias is True"),
    ({"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    ({"topk_method": "greedy"}, "topk_method is 'greedy'"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ({"num_key_value_heads": 2}, "num_key_value_heads is 2 (4 follows from the rest)"),
    ({"mlp_layer_types": ["sparse"] * 5}, "mlp_layer_types is"),
    ({"layer_types": ["full_attention"] * 5}, "layer_types is"),
    ({"sliding_window": 512}, "sliding_window: unknown here, and might change the result"),
    ({"num_nextn_predict_layers": 3}, "num_nextn_predict_layers is 3: 0 or 1 is computed"),
    ({"torch_dtype": "float16"}, "dtype is 'float16': choose one of bfloat16"),
    ({"hidden_size": "64"}, "hidden_size is '64': give an integer"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=lambda x: next(iter(x)) if isinstance(x, dict) else "")
def test_what_is_not_computed_is_refused_by_name(tmp_path, fields, message):
    given = {name: value for name, value in {**PUBLISHED, **fields}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(CheckpointError) as caught:
        read_config(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_that_is_wrong_with_a_config_is_said_at_once():
    with pytest.raises(ValueError, match=r"vocab_size is missing; .*hidden_act is 'relu'.*; window: unknown"):
        config_from_hf({**{k: v for k, v in PUBLISHED.items() if k != "vocab_size"}, "hidden_act": "relu", "window": 1})


# --- tokens


@pytest.mark.parametrize("folder", ["", "/"])
def test_without_a_tokenizer_bytes_are_tokens(folder):
    tokens = Tokenizer(folder)
    assert tokens.encode(b"a\xff\n") == [97, 255, 10]
    assert tokens.decode([97, 255, 258, 98]) == "a\ufffdb"
    assert not tokens.reads_text


def test_the_folders_tokenizer_goes_there_and_back(tmp_path):
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False)
    inner.train_from_iterator(["the tide comes in, the tide goes out"] * 4, trainer)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokens, text = Tokenizer(tmp_path), "the tide, with é and\n two  spaces"
    assert tokens.decode(tokens.encode(text.encode())) == text
    assert tokens.encode(text.encode()) == inner.encode(text).ids
    assert len(tokens.encode(text.encode())) < len(text)
    assert tokens.decode([0, *tokens.encode(b"tide")]) == "tide"
    assert tokens.reads_text
    with pytest.raises(ValueError, match="byte 1 of the prompt is not UTF-8"):
        tokens.encode(b"a\xff")


def test_a_tokenizer_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot read it"):
        Tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(CheckpointError, match=r"pip install 'tidegate\[model\]'"):
        Tokenizer(tmp_path)
