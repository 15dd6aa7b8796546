"""`tidegate run` over a model folder: the engine computes that model, the oracle agrees, and a folder that does not fit is refused."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from pair_tools import bound_runs, config, run, written_tags
from rich.console import Console
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from typer.testing import CliRunner, Result

from tidegate.engine.cli import app
from tidegate.engine.model import Model, ModelConfig, save_checkpoint

CONFIG = ModelConfig(
    hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=4, first_k_dense_replace=2,
    num_nextn_predict_layers=1, q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24,
    index_topk=12, index_head_dim=32, n_routed_experts=8, n_group=4, topk_group=2, max_position_embeddings=1024,
)  # fmt: skip
SMALL = ["--prompts", "2", "--new-tokens", "4", "--chunk", "80", "--block-size", "16", "--hot-buffer", "16"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(Model.random(CONFIG, 5), tmp_path / "model")
    return tmp_path / "model"


def invoke(tmp_path: Path, *args: str, prompt: bytes = b"The tide comes in and goes out again. " * 6) -> Result:
    (tmp_path / "prompt").write_bytes(prompt)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["run", "--prompt-file", str(tmp_path / "prompt"), *SMALL, *args])


def test_a_folder_with_an_mtp_layer_and_a_tokenizer_runs_and_the_oracle_agrees(folder: Path, tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={char: n for n, char in enumerate([*alphabet, "Ġt"])}, merges=[("Ġ", "t")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.save(str(folder / "tokenizer.json"))
    result = invoke(tmp_path, "--model", str(folder), "--oracle")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "2 requests of 222, 10 tokens" in said  # " t" is one token, six times
    assert "5 layers over" in said
    assert "all tokens and logits are bit-equal" in said
    assert "limit 0.0001), argmax equal" in said
    assert "random weights" not in said


def test_a_run_of_the_seeded_model_says_that_its_weights_are_random(tmp_path: Path) -> None:
    result = invoke(tmp_path, "--layers", "4", "--hot-buffer", "64")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "random weights: the text means nothing" in said
    assert "hot-buffer hit rate (of random weights)" in said
    assert "bit-equal" in said


def test_a_run_fails_where_the_oracle_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.engine import oracle
    from tidegate.engine.cli.run import _agrees

    monkeypatch.setattr(oracle, "LIMIT", 0.0)
    console = Console(record=True, width=200)
    assert not _agrees(config(new_tokens=2), console)
    assert "(limit 0), argmax equal" in console.export_text()


def test_rows_of_an_mtp_layer_reach_decode_as_prefill_wrote_them(tmp_path: Path) -> None:
    small = {name: value for name, value in dataclasses.asdict(CONFIG).items() if name not in ("rope", "norm_topk_prob")}
    c = config(model=small, trace=str(tmp_path), hot_buffer=16)
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    written, runs = written_tags(tmp_path), bound_runs(tmp_path)
    for line in result.results.values():
        tags = {tuple(map(int, name.split("/"))): tag for name, tag in line.tags.items()}
        assert {layer for _, layer in tags} == {1, 2, 3, 4, 5}
        for (chunk, layer), tag in tags.items():
            assert tag == written[runs[line.attempt], chunk, layer]


def refused(result: Result, message: str) -> None:
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert result.output.count("\n") == 1


def test_a_folder_that_does_not_fit_is_refused_before_anything_starts(folder: Path, tmp_path: Path) -> None:
    model = ["--model", str(folder)]
    refused(invoke(tmp_path, *model, "--layers", "3"), "--layers is 3 beside --model")
    refused(invoke(tmp_path, *model, "--seed", "0"), "--seed is 0 beside --model")
    refused(invoke(tmp_path, "--model", str(tmp_path / "none")), "config.json: no such file")
    refused(invoke(tmp_path, *model, "--hot-buffer", "16", "--new-tokens", "900"), "the model ends at 1024")
    fields = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"sliding_window": 4}, "hybrid KV cache layouts"), ({"index_topk": 0}, "needs a model with a top-k indexer"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2}}, "of type 'linear'"),
        ({"attention_bias": True}, "attention_bias is True"),
    ):  # fmt: skip
        (folder / "config.json").write_text(json.dumps({**fields, **change}))
        refused(invoke(tmp_path, *model), message)
    (folder / "config.json").write_text(json.dumps(fields))
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].contiguous()
    save_file(tensors, folder / "model.safetensors")
    refused(invoke(tmp_path, *model), "lm_head.weight is [263, 64] where [264, 64] is due")


def test_a_prompt_that_the_tokenizer_cannot_read_is_refused(folder: Path, tmp_path: Path) -> None:
    Tokenizer(models.BPE()).save(str(folder / "tokenizer.json"))
    refused(invoke(tmp_path, "--model", str(folder), prompt=b"a\xff"), "byte 1 of the prompt is not UTF-8")


def test_the_oracle_of_rows_in_eight_bits_is_refused(tmp_path: Path) -> None:
    refused(invoke(tmp_path, "--oracle", "--lic8", "--hot-buffer", "64"), "--oracle beside --lic8: transformers keeps the indexer's rows")


def test_the_oracle_without_transformers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(invoke(tmp_path, "--oracle", "--hot-buffer", "64"), "pip install 'tidegate[model]', or leave out --oracle")
