"""Prefill is bit-equal however the prompt is cut, wherever it begins, and whatever lies beyond it in storage."""

import functools
import itertools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.engine.model import Model, ModelConfig, ResidentKV, arithmetic, attention, network
from tidegate.engine.model.config import ROW_DTYPES

SHAPES = {
    "lic8": {"index_topk": 12, "lic8": True},
    "sparse": {"index_topk": 12},
    "dense and sparse": {"index_topk": 100},
    "no power of two": {"index_topk": 12, "hidden_size": 72, "kv_lora_rank": 88, "v_head_dim": 40, "moe_intermediate_size": 56},
}
DTYPES = ["bfloat16", "float32", "float64"]
LENGTH = 210  # more than three tiles


pytestmark = pytest.mark.usefixtures("one_thread")


@functools.cache
def model_of(shape, dtype):
    fields = {
        "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3, "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1, "q_lora_rank": 32, "kv_lora_rank": 96, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
        "v_head_dim": 24, "index_head_dim": 32, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "dtype": dtype,
    }  # fmt: skip
    return Model.random(ModelConfig(**{**fields, **SHAPES[shape]}), 5)


TEXT = torch.randint(0, 256, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()


class OddStorage:
    """Rows in memory that no allocator would choose: off alignment, rows apart, NaN wherever nothing was written."""

    def __init__(self, config, shift):
        self.rows = {name: self.spread(config, shift, *kind) for name, kind in config.row_kinds(0).items()}

    @staticmethod
    def spread(config, shift, dtype, width):
        layers = config.cache_layers
        memory = torch.empty(layers * LENGTH * (width + 3) + shift, dtype=ROW_DTYPES[dtype])
        memory.view(torch.uint8).fill_(0xFF)
        return memory[shift:].view(layers, LENGTH, width + 3)[..., :width]

    def wait_for_layer(self, layer):
        return {name: rows[layer] for name, rows in self.rows.items()}

    def kv_written(self, layer):
        pass

    def layer_done(self, layer):
        pass


def prefill(model, kv, cuts):
    """Hidden states of TEXT[cuts[0]:], chunk by chunk."""
    pairs = itertools.pairwise(cuts)
    return torch.cat([model.prefill_chunk(TEXT[a:b], a, kv, next_token=[*TEXT, 0][b]) for a, b in pairs])


@functools.cache
def whole(shape, dtype):
    model = model_of(shape, dtype)
    kv = ResidentKV(model.config, LENGTH)
    return kv, prefill(model, kv, [0, LENGTH])


def check(shape, dtype, cuts, reused, shift):
    """reused: so many tokens come out of a pool, the others are computed in chunks that end at `cuts`."""
    model, (kv, hidden) = model_of(shape, dtype), whole(shape, dtype)
    odd = OddStorage(model.config, shift)
    for name, rows in odd.rows.items():
        rows[:, :reused] = getattr(kv, name)[:, :reused]
    got = prefill(model, odd, [reused, *sorted(cut for cut in cuts if cut > reused), LENGTH])
    stored = [(name, rows, getattr(kv, name)) for name, rows in odd.rows.items()]
    for what, one, two in [("hidden", got, hidden[reused:]), *stored]:
        assert torch.equal(one, two), f"{what} of {shape} {dtype} depends on {cuts}, {reused} reused, at {shift}"


CUTS = st.sets(st.integers(1, LENGTH - 1), max_size=5)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(SHAPES)), st.sampled_from(DTYPES), CUTS, st.integers(0, LENGTH - 1), st.integers(0, 40))
@example("sparse", "bfloat16", {1, 2}, 0, 1)
@example("lic8", "bfloat16", {1, 70}, 20, 3)
@example("lic8", "float64", {64}, 0, 0)
@example("no power of two", "float32", {64, 65, 128}, 63, 0)
@example("dense and sparse", "float64", set(range(1, 20)), 0, 3)
def test_rows_do_not_depend_on_chunks_reuse_or_storage(shape, dtype, cuts, reused, shift):
    check(shape, dtype, cuts, reused, shift)


# --- and the check sees what it should


def test_the_check_sees_rows_that_look_at_their_neighbours(monkeypatch):
    leaky = lambda x, *args: arithmetic.rms_norm(x, *args) + 1e-6 * x.sum(0)  # noqa: E731
    monkeypatch.setattr(network, "rms_norm", leaky)
    whole.cache_clear()
    with pytest.raises(AssertionError, match="depends on"):
        check("sparse", "float32", {100}, 0, 0)
    whole.cache_clear()


def test_the_check_sees_that_unwritten_rows_are_read(monkeypatch):
    monkeypatch.setattr(attention, "_future", lambda begin: torch.zeros(64, begin + 64, dtype=torch.bool))
    whole.cache_clear()
    with pytest.raises(AssertionError, match="depends on"):
        check("sparse", "float32", {100}, 0, 0)
    whole.cache_clear()


def test_the_check_sees_a_next_token_that_is_forgotten(monkeypatch):
    """The MTP layer's row of a chunk's last token."""
    plain = network.Model.prefill_chunk
    monkeypatch.setattr(network.Model, "prefill_chunk", lambda self, tokens, start, kv, next_token: plain(self, tokens, start, kv))
    with pytest.raises(AssertionError, match="main of"):
        check("sparse", "float32", {100}, 0, 0)
