"""The model: equal to Hugging Face's, bit-equal whatever the batch and the storage, and spoilt by spoilt KV."""

import dataclasses
import functools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.engine.model import Model, ModelConfig, ResidentKV, arithmetic, greedy, network, reference_generate
from tidegate.engine.model.reference import reference_prefill

TINY = ModelConfig(
    hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3, first_k_dense_replace=1,
    q_lora_rank=32, kv_lora_rank=96, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24, index_topk=12, index_head_dim=32,
)
DTYPES = ["bfloat16", "float32", "float64"]


pytestmark = pytest.mark.usefixtures("one_thread")


@functools.cache
def tiny(dtype, **changes):
    return Model.random(dataclasses.replace(TINY, dtype=dtype, **changes), 5)


def text(n, seed):
    return torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def copy_of(kv):
    twin = object.__new__(type(kv))
    rows = {name: getattr(kv, name).clone() for name in ("main", "index", "scale")}
    twin.__dict__ = {"config": kv.config, **rows, "length": list(kv.length)}
    return twin


# --- the arithmetic is the published one


def test_logits_are_those_of_transformers():
    record = json.loads((Path(__file__).parent / "data" / "deepseek_v32_logits.json").read_text())
    model = Model.random(ModelConfig.from_dict(record["config"]), record["seed"])
    want, prompt, kv = torch.tensor(record["last_logits"]), record["prompt"], ResidentKV(model.config, 40)
    hidden = [model.prefill_chunk(prompt[a : a + 17], a, kv) for a in range(0, 40, 17)]
    prefill = torch.cat(hidden)[-4:] @ model.weights["lm_head.weight"].t()
    torch.testing.assert_close(prefill, want, rtol=0, atol=1e-5)
    decode = model.decode_step([(prompt[-1], 39, kv)])[0]
    torch.testing.assert_close(decode, want[-1], rtol=0, atol=1e-5)


def test_chunks_of_any_size_agree_in_float64():
    model, prompt = tiny("float64"), text(70, 1)
    whole, pieces = ResidentKV(model.config, 70), ResidentKV(model.config, 70)
    reference_prefill(model, prompt, 70, whole)
    reference_prefill(model, prompt, 13, pieces)
    torch.testing.assert_close(whole.main, pieces.main, rtol=0, atol=1e-9)
    torch.testing.assert_close(whole.index, pieces.index, rtol=0, atol=1e-9)


# --- top-k


def plain_top(scores, k):
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


def check_top(positions, scores, k):
    assert positions(torch.tensor(scores, dtype=torch.float32), k).tolist() == plain_top(scores, k)


SCORES = st.lists(st.sampled_from([-float("inf"), -1.0, 0.0, 0.5, 2.0, float("inf")]), min_size=1, max_size=30)


@given(SCORES, st.integers(1, 35))
def test_top_positions_break_ties_downwards(scores, k):
    check_top(arithmetic.top_positions, scores, k)
    mask = arithmetic.top_mask(torch.tensor([scores, scores[::-1]]), k)
    assert [row.nonzero()[:, 0].tolist() for row in mask] == [
        sorted(plain_top(scores, k)),
        sorted(plain_top(scores[::-1], k)),
    ]


def test_the_check_sees_ties_broken_upwards():
    def upwards(scores, k):
        return len(scores) - 1 - arithmetic.top_positions(scores.flip(0), k)

    check_top(upwards, [1.0, 3.0, 2.0], 2)
    with pytest.raises(AssertionError):
        check_top(upwards, [1.0, 1.0, 0.0, 1.0], 2)


def test_spoilt_scores_are_chosen_not_passed_over():
    assert arithmetic.top_positions(torch.tensor([1.0, float("nan"), 5.0]), 2).tolist() == [1, 2]


# --- bit-equal whatever the batch, whatever the storage


class OddStorage(ResidentKV):
    """The same rows in memory that no allocator would choose: off alignment, rows apart, rubbish between."""

    def __init__(self, kv, shift):
        self.config, self.length = kv.config, list(kv.length)
        self.main, self.index, self.scale = self.spread(kv.main, shift), self.spread(kv.index, shift + 2), kv.scale.clone()
        self.out = torch.empty(4096 + shift, dtype=kv.main.dtype)[shift:]

    @staticmethod
    def spread(rows, shift):
        layers, tokens, width = rows.shape
        memory = torch.full((layers * tokens * (width + 3) + shift,), -1 if rows.dtype == torch.int8 else torch.nan, dtype=rows.dtype)
        view = memory[shift:].view(layers, tokens, width + 3)[..., :width]
        return view.copy_(rows)

    def fetch(self, layer, positions):
        rows = super().fetch(layer, positions)
        return self.out[: rows.numel()].view(rows.shape).copy_(rows)


EIGHTS = {  # widths that fill no vector of a CPU, and an MTP layer
    "hidden_size": 72, "intermediate_size": 104, "moe_intermediate_size": 40, "q_lora_rank": 24, "kv_lora_rank": 88,
    "qk_nope_head_dim": 24, "v_head_dim": 40, "n_routed_experts": 12, "vocab_size": 263, "num_nextn_predict_layers": 1,
}  # fmt: skip
KINDS = [*DTYPES, *(f"{dtype} eights" for dtype in DTYPES), "bfloat16 lic8"]
LENGTHS = [1, 2, 7, 11, 12, 13, 14, 30, 31, 47, 64]


@functools.cache
def prefilled(kind):
    dtype, *odd = kind.split()
    model, requests = tiny(dtype, **({"lic8": True} if odd == ["lic8"] else EIGHTS if odd else {})), []
    for n in LENGTHS:
        kv = ResidentKV(model.config, n + 4)
        reference_prefill(model, text(n, n), 16, kv)
        requests.append((text(n, n)[-1], n - 1, kv))
    return model, requests


@functools.cache
def alone(kind, which):
    model, requests = prefilled(kind)
    return run(model, [(requests[which][0], requests[which][1], copy_of(requests[which][2]))])[0]


def run(model, requests, steps=3):
    """Logits [requests, steps, vocab] of a greedy batch, with those of the drafts beside them where the model has an MTP layer."""
    logits, now = [], requests
    for _ in range(steps):
        hidden = model.decode_hidden(now)
        logits.append(model.logits(hidden))
        tokens = greedy(logits[-1])
        if model.extra:
            drafts = model.draft_step([(token, position, kv) for token, (_, position, kv) in zip(tokens, now, strict=True)], hidden)
            logits[-1] = torch.cat([logits[-1], drafts], -1)
        now = [(token, position + 1, kv) for token, (_, position, kv) in zip(tokens, now, strict=True)]
    return torch.stack(logits, 1)


def check_batch(model, kind, members):
    _, requests = prefilled(kind)
    batch = []
    for which, shift in members:
        token, position, kv = requests[which]
        batch.append((token, position, copy_of(kv) if shift is None else OddStorage(kv, shift)))
    together = run(model, batch)
    for row, (which, _) in zip(together, members, strict=True):
        assert torch.equal(row, alone(kind, which)), f"request {which} of {members} differs from its lone run"


BATCH = st.lists(st.tuples(st.integers(0, len(LENGTHS) - 1), st.none() | st.integers(0, 40)), min_size=1, max_size=20)


@settings(max_examples=24, deadline=None)
@given(BATCH, st.sampled_from(KINDS))
def test_tokens_and_logits_do_not_depend_on_batch_or_storage(members, kind):
    check_batch(prefilled(kind)[0], kind, members)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eight_rows_are_multiplied_alike_wherever_they_stand(dtype):
    """What the rule about multiples of 8 rests on, in widths that no model of these tests has."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(getattr(torch, dtype))

    for width in (8, 40, 64, 128, 320, 512, 576):
        x, order = draw(8, width), torch.randperm(8, generator=generator)
        for out in (1, 2, 3, 4, 6, 23, 64, 263, 512):
            weight, heads = draw(out, width), draw(4, width, -(-out // 8) * 8)
            assert torch.equal(arithmetic.linear(x, weight)[order], arithmetic.linear(x[order], weight)), (width, out)
            assert torch.allclose(arithmetic.linear(x, weight), x @ weight.t(), rtol=1e-2, atol=1e-1), (width, out)
            many = x[None].expand(4, -1, -1)
            assert torch.equal((many @ heads)[:, order], many[:, order] @ heads), (width, out)
        router = arithmetic.wide(draw(8, width // 2))
        assert torch.equal(torch.sigmoid(router)[order], torch.sigmoid(router[order]))
        assert torch.equal(torch.nn.functional.silu(x)[order], torch.nn.functional.silu(x[order]))


def test_the_check_sees_a_batch_that_leaks(monkeypatch):
    def leaky(x, *args):
        return arithmetic.rms_norm(x, *args) + (
            1e-6 * x.sum(0) if x.dim() == 2 and x.shape[0] == network.ROW_BLOCK else 0
        )

    monkeypatch.setattr(network, "rms_norm", leaky)
    alone.cache_clear()
    with pytest.raises(AssertionError, match="differs from its lone run"):
        check_batch(prefilled("float32")[0], "float32", [(3, None), (8, None)])
    alone.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_is_bit_equal_over_any_storage(dtype):
    model, prompt = tiny(dtype), text(45, 3)
    plain = ResidentKV(model.config, 45)
    odd = OddStorage(ResidentKV(model.config, 45), 5)
    reference_prefill(model, prompt, 16, plain)
    reference_prefill(model, prompt, 16, odd)
    assert torch.equal(plain.main, odd.main)
    assert torch.equal(plain.index, odd.index)


def test_equal_seeds_give_equal_models_and_others_do_not():
    one, two, other = (Model.random(TINY, seed).weights for seed in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


# --- what storage may rely on


class SharedSlots(ResidentKV):
    """Two slots for all layers: a layer's rows move out at `kv_written`, and its slot is spoilt once the layer is
    done.
    """

    def __init__(self, config, capacity):
        super().__init__(config, capacity)
        self.calls = []

    def wait_for_layer(self, layer):
        self.calls.append(("wait", layer))
        self.slot = {"main": self.main[layer].clone(), "index": self.index[layer].clone()}
        return self.slot

    def kv_written(self, layer):
        self.calls.append(("written", layer))
        self.main[layer], self.index[layer] = self.slot["main"], self.slot["index"]

    def layer_done(self, layer):
        self.calls.append(("done", layer))
        for view in self.slot.values():
            view.fill_(float("nan"))


def test_a_slot_is_whole_at_kv_written_and_unread_after_layer_done():
    model, prompt = tiny("float32"), text(30, 4)
    plain, shared = ResidentKV(model.config, 30), SharedSlots(model.config, 30)
    assert torch.equal(model.prefill_chunk(prompt, 0, plain), model.prefill_chunk(prompt, 0, shared))
    assert torch.equal(plain.main, shared.main)
    assert shared.calls == [(call, layer) for layer in range(3) for call in ("wait", "written", "done")]


def test_decode_appends_before_it_reads_and_asks_for_top_k_rows():
    model, prompt, calls = tiny("float32"), text(30, 4), []

    class Watched(ResidentKV):
        def append(self, layer, position, rows):
            calls.append(("append", layer, position))
            super().append(layer, position, rows)

        def index_rows(self, layer):
            calls.append(("keys", layer))
            return super().index_rows(layer)

        def fetch(self, layer, positions):
            assert len(set(positions.tolist())) == len(positions) == model.config.index_topk
            calls.append(("fetch", layer))
            return super().fetch(layer, positions)

    kv = Watched(model.config, 31)
    reference_prefill(model, prompt, 30, kv)
    model.decode_step([(prompt[-1], 29, kv)])
    assert calls == [call for layer in range(3) for call in (("append", layer, 29), ("keys", layer), ("fetch", layer))]


# --- spoilt KV shows


def tokens_after(model, prompt, new, spoil):
    kv = ResidentKV(model.config, len(prompt) + new)
    reference_prefill(model, prompt, 32, kv)
    spoil(kv)
    token, tokens = prompt[-1], []
    for position in range(len(prompt) - 1, len(prompt) - 1 + new):
        token = greedy(model.decode_step([(token, position, kv)]))[0]
        tokens.append(token)
    return tokens


def other_rows(name, layer, rows):
    def spoil(kv):
        view = getattr(kv, name)[layer]
        view[rows] = view[rows].flip(0) if name == "main" else -view[rows]

    return spoil


SPOIL = [other_rows(name, layer, slice(32, 64)) for name in ("main", "index") for layer in range(3)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("spoil", SPOIL)
def test_one_chunk_of_one_layer_spoilt_changes_the_tokens(dtype, spoil):
    model, prompt = tiny(dtype), text(96, 6)
    assert tokens_after(model, prompt, 24, lambda kv: None) == reference_generate(model, prompt, 32, 24)[0]
    assert tokens_after(model, prompt, 24, spoil) != reference_generate(model, prompt, 32, 24)[0]


def test_the_check_sees_a_model_that_is_deaf_to_its_kv():
    deaf = {name: t * 0 if "o_proj" in name else t for name, t in tiny("float32").weights.items()}
    model, prompt = Model(tiny("float32").config, deaf), text(96, 6)
    assert tokens_after(model, prompt, 24, SPOIL[1]) == reference_generate(model, prompt, 32, 24)[0]


def test_rows_of_a_free_slot_show():
    model, prompt = tiny("bfloat16"), text(96, 6)

    def poison(kv):
        kv.main[1, 40:48].view(torch.uint8).fill_(0xFF)
        kv.index[1, 40:48].view(torch.uint8).fill_(0xFF)

    assert tokens_after(model, prompt, 8, poison) != reference_generate(model, prompt, 32, 8)[0]


# --- bad input

BAD = [
    ({"model_type": "glm4"}, "model_type is 'glm4': choose one of deepseek_v32, glm_moe_dsa"),
    ({"indexer_types": ["full", "half"]}, r"indexer_types has \['half'\]"),
    ({"indexer_types": ["full"] * 7}, "7 entries: there are 8 layers"),
    ({"indexer_types": ["shared"] * 8}, "begins with 'shared'"),
    ({"indexer_types": ["full"] + ["shared"] * 7}, "which deepseek_v32 does not: model_type glm_moe_dsa does"),
    ({"index_topk": 0}, "index_topk is 0"),
    ({"hidden_size": True}, "hidden_size is True"),
    ({"dtype": "int8"}, "choose one of bfloat16"),
    ({"n_routed_experts": 8, "n_group": 3}, "n_group is 3: it must divide n_routed_experts"),
    ({"n_routed_experts": 8, "n_group": 8}, "make groups of 1"),
    ({"n_routed_experts": 8, "n_group": 2, "topk_group": 3}, "there are 2 groups"),
    ({"n_routed_experts": 8, "n_group": 4, "num_experts_per_tok": 4}, "1 of 4 groups hold 2 experts"),
    ({"num_nextn_predict_layers": 2}, "0 or 1 is computed"),
    ({"qk_rope_head_dim": 15}, "qk_rope_head_dim is 15: give a multiple of 8, or results depend on the batch"),
    ({"v_head_dim": 23}, "v_head_dim is 23: give a multiple of 8"),
    ({"n_routed_experts": 3}, "n_routed_experts is 3: give a multiple of 4"),
    ({"qk_rope_head_dim": 64, "index_head_dim": 32}, "at most index_head_dim"),
    ({"num_experts_per_tok": 9}, "there are 4 experts"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_a_shape_that_cannot_be_computed_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(fields)


def test_unknown_fields_tokens_positions_and_views_are_refused():
    model = tiny("float32")
    kv = ResidentKV(model.config, 8)
    with pytest.raises(ValueError, match="unknown model field heads"):
        ModelConfig.from_dict({"heads": 3})
    with pytest.raises(ValueError, match="vocabulary has 264"):
        model.prefill_chunk([300], 0, kv)
    with pytest.raises(ValueError, match="non-empty"):
        model.prefill_chunk([], 0, kv)
    with pytest.raises(ValueError, match="ends at 65536"):
        model.decode_step([(1, 65536, kv)])
    with pytest.raises(ValueError, match="at least 9 rows"):
        model.prefill_chunk(text(9, 1), 0, kv)
    with pytest.raises(ValueError, match="at least 4 rows of 112"):
        model.prefill_chunk(text(4, 1), 0, ResidentKV(tiny("bfloat16").config, 8))
    kv.length = [3, 3, 3]
    kv.append = lambda *a: None
    with pytest.raises(ValueError, match=r"index rows are \(3, 32\) torch.float32: 8 rows of 32 float32 are due"):
        model.decode_step([(1, 7, kv)])
    with pytest.raises(ValueError, match="chunk is 0"):
        reference_generate(model, [1], 0, 1)
    assert model.decode_step([]).shape == (0, 264)
