"""The network and its MTP layer against a plain, independent one; and each mistake that is easily made, made and seen."""

import dataclasses

import pytest
import torch
from unit.plain_model import Plain

from tidegate.engine.model import Model, ModelConfig, ResidentKV, arithmetic, attention, feed_forward, network, reference_prefill
from tidegate.engine.model.rope import Rope, rotate_halves, rotate_interleaved

CONFIG = ModelConfig(
    hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3, first_k_dense_replace=1,
    num_nextn_predict_layers=1, q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24,
    index_topk=12, index_head_dim=32, n_routed_experts=8, n_group=4, topk_group=2, routed_scaling_factor=1.5, dtype="float64",
    max_position_embeddings=256, rope=Rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.7),
)  # fmt: skip
SHARING = dataclasses.replace(
    CONFIG, model_type="glm_moe_dsa", num_hidden_layers=4, indexer_types=("full", "shared", "full", "shared"), first_k_dense_replace=2
)
TEXT = torch.randint(0, 256, (80,), generator=torch.Generator().manual_seed(8)).tolist()


pytestmark = pytest.mark.usefixtures("one_thread")


def weights(tied=False):
    """tied: the indexer of layer 1 is blind, so that every key has the score 0."""
    w = Model.random(CONFIG, 3).weights
    if tied:
        w["model.layers.1.self_attn.indexer.weights_proj.weight"].zero_()
    return w


@pytest.fixture(scope="module")
def plain():
    """(logits, drafts) of the plain network for TEXT; a second pair with ties."""
    return [Plain(Model(CONFIG, weights(tied))).logits_and_drafts(TEXT) for tied in (False, True)]


def check(model, logits, drafts):
    """Prefill all but four tokens in chunks of 30, decode these, draft after each."""
    kv, split = ResidentKV(model.config, len(TEXT)), len(TEXT) - 4
    ends = [min(a + 30, split) for a in range(0, split, 30)]
    hidden = [model.prefill_chunk(TEXT[a:b], a, kv, next_token=TEXT[b]) for a, b in zip([0, *ends], ends, strict=False)]
    close(model.logits(torch.cat(hidden)), logits[:split], "prefill")
    for at in range(split, len(TEXT) - 1):
        hidden = model.decode_hidden([(TEXT[at], at, kv)])
        close(model.logits(hidden)[0], logits[at], "decode")
        close(model.draft_step([(TEXT[at + 1], at, kv)], hidden)[0], drafts[at], "draft")


def close(got, want, what):
    # Angles are float32 by rule, and the plain ones are not.
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5, msg=lambda text: f"{what} differs: {text}")


@pytest.mark.parametrize("tied", [False, True])
def test_logits_and_drafts_are_those_of_the_plain_network(plain, tied):
    check(Model(CONFIG, weights(tied)), *plain[tied])


@pytest.fixture(scope="module")
def shared():
    return Plain(Model.random(SHARING, 3)).logits_and_drafts(TEXT)


def test_layers_that_share_what_an_indexer_chose_are_those_of_the_plain_network(shared):
    model = Model.random(SHARING, 3)
    assert [name for name in model.weights if "layers.1.self_attn.indexer" in name or "layers.3.self_attn.indexer" in name] == []
    assert [[*SHARING.row_kinds(layer)] for layer in range(5)] == [["main", "index"], ["main"]] * 2 + [["main", "index"]]
    check(model, *shared)


def the_first_layers_choice_serves_all(model, patch):
    plain, kept = network.Model._pick, []

    def pick(self, layer, *rest):
        kept.extend([plain(self, layer, *rest)] if layer.number == 0 else [])
        return kept[-1]

    patch.setattr(network.Model, "_pick", pick)


def the_indexer_rotates_halves(model, patch):
    for layer in model.layers + model.extra:
        layer.attention._rotate_index = rotate_halves


def decode_shares_the_neighbours_choice(model, patch):
    attend = attention.Attention.attend
    patch.setattr(attention.Attention, "attend", lambda self, p, row, rows: attend(self, p, row, rows if self.has_indexer else rows[1:]))


SHARED_MISTAKES = {
    the_first_layers_choice_serves_all: "prefill", the_indexer_rotates_halves: "prefill", decode_shares_the_neighbours_choice: "decode",
}  # fmt: skip


@pytest.mark.parametrize("mistake", SHARED_MISTAKES, ids=lambda m: m.__name__)
def test_the_check_sees_shared(shared, mistake, monkeypatch):
    model = Model.random(SHARING, 3)
    mistake(model, monkeypatch)
    with pytest.raises(AssertionError, match=f"{SHARED_MISTAKES[mistake]} differs"):
        check(model, *shared)


# --- mistakes; each returns the model that makes it


def with_weights(tied=False, **changed):
    """changed: what becomes of the weights whose name ends so."""
    w = weights(tied)
    return Model(CONFIG, {name: next((f(t) for end, f in changed.items() if name.endswith(end)), t) for name, t in w.items()})


def main_key_in_halves(patch):
    patch.setattr(attention, "rotate_interleaved", rotate_halves)
    return with_weights()


def indexer_key_interleaved(patch):
    patch.setattr(attention, "rotate_halves", rotate_interleaved)
    return with_weights()


def ties_to_the_highest(patch):
    patch.setattr(attention, "top_mask", lambda scores, k: arithmetic.top_mask(scores.flip(-1), k).flip(-1))
    return with_weights(tied=True)


def ties_to_the_highest_in_decode(patch):
    patch.setattr(attention, "top_positions", lambda scores, k: len(scores) - 1 - arithmetic.top_positions(scores.flip(0), k))
    return with_weights(tied=True)


def router_without_correction(patch):
    return with_weights(e_score_correction_bias=torch.zeros_like)


def correction_in_the_weights(patch):
    patch.setattr(feed_forward.Mixture, "shares", shares_of_ranks)
    return with_weights()


def shares_of_ranks(self, x):
    rank = (x @ self.router.t()).sigmoid() + self.correction
    groups = rank.view(len(x), self.config.n_group, -1)
    kept = arithmetic.top_mask(groups.topk(2, -1).values.sum(-1), self.config.topk_group)
    best = groups.masked_fill(~kept[..., None], -torch.inf).view_as(rank)
    share = rank * arithmetic.top_mask(best, self.config.num_experts_per_tok)
    return share / share.sum(-1, keepdim=True) * self.config.routed_scaling_factor


def groups_ignored(patch):
    return Model(dataclasses.replace(CONFIG, n_group=1, topk_group=1), weights())


def the_next_token_is_seen(patch):
    patch.setattr(attention, "_future", lambda begin: torch.ones(64, begin + 64, dtype=torch.bool).triu(begin + 2))
    return with_weights()


def the_token_itself_is_not_seen(patch):
    patch.setattr(attention, "_future", lambda begin: torch.ones(64, begin + 64, dtype=torch.bool).triu(begin or 1))
    return with_weights()


def yarn_does_not_scale_scores(patch):
    patch.setattr(Rope, "score_factor", 1.0)
    return with_weights()


def yarn_does_not_scale_rotations(patch):
    patch.setattr(Rope, "amplitude", 1.0)
    return with_weights()


def mtp_norms_swapped(patch):
    w = weights()
    e, h = "model.layers.3.enorm.weight", "model.layers.3.hnorm.weight"
    return Model(CONFIG, {**w, e: w[h], h: w[e]})


def mtp_halves_swapped(patch):
    return with_weights(**{"eh_proj.weight": lambda t: t.roll(64, 1)})


def mtp_takes_the_same_token(patch):
    plain = network.Model.prefill_chunk
    patch.setattr(network.Model, "prefill_chunk", lambda self, tokens, start, kv, next_token: plain(self, tokens, start, kv))
    return with_weights()


def mtp_ends_with_the_other_norm(patch):
    w = weights()
    return Model(CONFIG, {**w, "model.layers.3.shared_head.norm.weight": w["model.norm.weight"]})


MISTAKES = {
    main_key_in_halves: "prefill", indexer_key_interleaved: "prefill", ties_to_the_highest: "prefill",
    ties_to_the_highest_in_decode: "decode", router_without_correction: "prefill", correction_in_the_weights: "prefill",
    groups_ignored: "prefill", the_next_token_is_seen: "prefill", the_token_itself_is_not_seen: "prefill",
    yarn_does_not_scale_scores: "prefill", yarn_does_not_scale_rotations: "prefill", mtp_norms_swapped: "draft",
    mtp_halves_swapped: "draft", mtp_takes_the_same_token: "draft", mtp_ends_with_the_other_norm: "draft",
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.__name__)
def test_the_check_sees(plain, mistake, monkeypatch):
    model = mistake(monkeypatch)
    with pytest.raises(AssertionError, match=f"{MISTAKES[mistake]} differs"):
        check(model, *plain["ties" in mistake.__name__])


def test_a_model_without_an_mtp_layer_does_not_draft():
    config = dataclasses.replace(CONFIG, num_nextn_predict_layers=0)
    model = Model.random(config, 1)
    with pytest.raises(ValueError, match="num_nextn_predict_layers is 0"):
        model.draft_step([], torch.zeros(0, 64))


def test_a_draft_checked_in_one_step_with_its_token_is_bit_equal_to_two_steps():
    model, one, two = Model(CONFIG, weights()), ResidentKV(CONFIG, len(TEXT)), ResidentKV(CONFIG, len(TEXT))
    for kv in (one, two):
        reference_prefill(model, TEXT[:-2], 32, kv)
    n = len(TEXT)
    together = model.decode_step([(TEXT[-2], n - 2, one), (TEXT[-1], n - 1, one)])
    apart = [model.decode_step([(token, at, two)])[0] for token, at in ((TEXT[-2], n - 2), (TEXT[-1], n - 1))]
    assert torch.equal(together, torch.stack(apart))
    assert torch.equal(one.main, two.main)
