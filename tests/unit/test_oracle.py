"""The oracle: transformers agrees with the model, and says so when it does not."""

import dataclasses
import subprocess
import sys
import types

import pytest
import torch

from tidegate.engine.model import Model, ModelConfig, arithmetic, attention, load_checkpoint, reference_generate, save_checkpoint
from tidegate.engine.model.rope import Rope, rotate_halves
from tidegate.engine.oracle import OracleError, oracle_compare

CONFIG = ModelConfig(
    hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3, first_k_dense_replace=1,
    num_nextn_predict_layers=1, q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24,
    index_topk=12, index_head_dim=32, n_routed_experts=8, n_group=4, topk_group=2, routed_scaling_factor=1.5, max_position_embeddings=256,
    rope=Rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.7),
)  # fmt: skip
PROMPT = torch.randint(0, 256, (90,), generator=torch.Generator().manual_seed(2)).tolist()
NEW = 4


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint; one whose layer 1 has a blind indexer: every score there is 0, every top-k a tie; one whose layer 1 has none."""
    out = {}
    for name in ("plain", "tied", "shared"):
        shared = {"model_type": "glm_moe_dsa", "indexer_types": ("full", "shared", "full")}
        model = Model.random(dataclasses.replace(CONFIG, **(shared if name == "shared" else {})), 3)
        if name == "tied":
            model.weights["model.layers.1.self_attn.indexer.weights_proj.weight"].zero_()
        out[name] = tmp_path_factory.mktemp("oracle") / name
        save_checkpoint(model, out[name])
    return out


def logits(folder):
    return reference_generate(load_checkpoint(folder, dtype="float64"), PROMPT, 32, NEW)[1].float().numpy()


def compare(folder, engine=None):
    return oracle_compare(folder, PROMPT, 32, NEW, logits(folder) if engine is None else engine)


@pytest.mark.parametrize(("name", "indexers"), [("plain", 3), ("tied", 3), ("shared", 2)])
def test_the_model_is_that_of_transformers(folders, name, indexers):
    report = compare(folders[name])
    assert report.agrees, report.lines()
    assert report.max_difference < 1e-5
    assert report.resident_equal
    assert (report.sets, report.differing) == (indexers * (len(PROMPT) + NEW - 1), ())
    assert len(report.lines()) == 2


def test_other_logits_and_other_tokens_are_seen(folders):
    engine = logits(folders["plain"])
    engine[2, 7] += 0.001
    report = compare(folders["plain"], engine)
    assert not report.agrees
    assert report.max_difference == pytest.approx(0.001, rel=0.01)
    assert not report.resident_equal
    assert "look there first" in report.lines()[-1]
    engine[3, 5] = 99
    assert not compare(folders["plain"], engine).argmax_equal
    engine[3, 5] = float("nan")
    assert not compare(folders["plain"], engine).agrees


def test_other_arithmetic_is_seen(folders, monkeypatch):
    monkeypatch.setattr(attention, "rotate_interleaved", rotate_halves)
    report = compare(folders["plain"])
    assert not report.agrees
    assert report.resident_equal


def test_rows_chosen_otherwise_are_reported_with_their_gap(folders, monkeypatch):
    monkeypatch.setattr(attention, "top_mask", lambda scores, k: arithmetic.top_mask(scores.flip(-1), k).flip(-1))
    monkeypatch.setattr("tidegate.engine.oracle.top_mask", attention.top_mask)
    report = compare(folders["tied"])
    assert not report.agrees
    first = report.differing[0]
    assert (first.layer, first.position, first.gap) == (1, 12, 0.0)
    assert "first at layer 1, position 12" in report.lines()[2]


def test_without_transformers_the_way_out_is_named(folders, monkeypatch):
    engine = logits(folders["plain"])
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(OracleError, match=r"pip install 'tidegate\[model\]', or leave out --oracle"):
        compare(folders["plain"], engine)
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(__version__="4.57.0"))
    with pytest.raises(OracleError, match=r"4\.57\.0 has no DeepseekV32, version 5 has"):
        compare(folders["plain"], engine)


def test_logits_of_another_shape_are_refused(folders):
    with pytest.raises(ValueError, match=r"\(4, 263\) where \(4, 264\) are due"):
        compare(folders["plain"], logits(folders["plain"])[:, :-1])


def test_importing_the_oracle_does_not_import_transformers():
    code = "import sys, tidegate.engine.oracle; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
