"""Speculation gives the tokens, logits and rows of plain greedy decoding, whatever is drafted; and drafts that are right are used."""

import functools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.engine.model import (
    Model,
    ModelConfig,
    ResidentKV,
    SeparateStore,
    Speculating,
    greedy,
    reference_prefill,
    speculate,
    speculation,
)

pytestmark = pytest.mark.usefixtures("one_thread")

NEW = 10
TEXT = torch.randint(0, 256, (90,), generator=torch.Generator().manual_seed(4)).tolist()
LENGTHS = [1, 11, 40, 64]


@functools.cache
def model_of(dtype):
    return Model.random(ModelConfig(
        hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2, first_k_dense_replace=1,
        num_nextn_predict_layers=1, q_lora_rank=32, kv_lora_rank=96, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24,
        index_topk=12, index_n_heads=8, index_head_dim=32, dtype=dtype, model_type="glm_moe_dsa", indexer_types=("full", "shared"),
    ), 5)  # fmt: skip


@functools.cache
def deaf_model():
    """What follows a token depends on it alone, in the network and in its MTP layer, so that every draft is right."""
    model = model_of("float32")
    weights = {name: t * 0 if "o_proj" in name or "down_proj" in name else t for name, t in model.weights.items()}
    size, last = model.config.hidden_size, "model.layers.2."
    weights[last + "eh_proj.weight"] = torch.cat([torch.eye(size), torch.zeros(size, size)], 1)
    ones = torch.ones(size)
    norms = {last + name: ones for name in ("enorm.weight", "shared_head.norm.weight")} | {"model.norm.weight": ones}
    return Model(model.config, weights | norms)


def prefilled(model, length, room):
    kv = ResidentKV(model.config, length + room)
    reference_prefill(model, TEXT[:length], 64, kv)
    return kv


@functools.cache
def plain(model, length):
    """(tokens, logits, storage with NEW tokens decoded and drafted after) of plain greedy decoding."""
    kv, token, tokens, logits = prefilled(model, length, NEW), TEXT[length - 1], [], []
    for position in range(length - 1, length - 1 + NEW):
        hidden = model.decode_hidden([(token, position, kv)])
        logits.append(model.logits(hidden)[0])
        [token] = greedy(logits[-1][None])
        tokens.append(token)
        model.draft_step([(token, position, kv)], hidden)
    return tokens, torch.stack(logits), kv


def run(model, lengths, drafts, guesses=None):
    """The requests to their ends; what came of each, and how many forwards there were.

    guesses: of a request (its number, the tokens it has so far), instead of what the MTP layer drafts.
    """
    requests = [Speculating(prefilled(model, n, NEW), TEXT[n - 1], n - 1, n - 1 + NEW) for n in lengths]
    tokens, logits, forwards = [[] for _ in lengths], [[] for _ in lengths], 0
    while going := [i for i, one in enumerate(requests) if one.position < one.end]:
        for i in going if guesses else ():
            requests[i].drafts = guesses(i, len(tokens[i]))[: requests[i].end - requests[i].position - 1]
        forwards += 1
        for i, (more, rows) in zip(going, speculate(model, [requests[i] for i in going], SeparateStore(), drafts=drafts), strict=True):
            tokens[i] += more
            logits[i].append(rows)
            lengths_now = requests[i].key.length[: 3 if drafts else 2]
            assert set(lengths_now) == {requests[i].position}, "every layer has the rows of the known tokens and no more"
    return tokens, [torch.cat(rows) for rows in logits], [one.key for one in requests], forwards


def check(model, lengths, drafts, guesses=None):
    tokens, logits, storage, forwards = run(model, lengths, drafts, guesses)
    for i, n in enumerate(lengths):
        want_tokens, want_logits, want = plain(model, n)
        assert tokens[i] == want_tokens, f"tokens of request {i} differ"
        assert torch.equal(logits[i], want_logits), f"logits of request {i} differ"
        for layer in range(3 if drafts else 2):
            for name in model.config.row_kinds(layer):
                got, due = (getattr(kv, name)[layer, : n - 1 + NEW] for kv in (storage[i], want))
                assert torch.equal(got, due), f"layer {layer} {name} rows of request {i} differ"
    return forwards


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("drafts", [1, 3])
def test_drafts_of_the_mtp_layer_change_nothing(dtype, drafts):
    check(model_of(dtype), LENGTHS, drafts)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=6), st.integers(1, 5), st.floats(0, 1), st.integers(0, 99))
def test_guesses_that_are_right_now_and_then_change_nothing(lengths, drafts, right, seed):
    model, draw = model_of("bfloat16"), random.Random(seed)

    def guesses(i, done):
        following = plain(model, lengths[i])[0][done : done + draw.randint(0, drafts)]
        return [token if draw.random() < right else draw.randrange(256) for token in following]

    check(model, lengths, drafts, guesses)


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_drafts_that_are_right_save_forwards(drafts):
    assert check(deaf_model(), [40, 11], drafts) == 1 + -(-(NEW - 1) // (drafts + 1))


def test_without_drafts_it_is_plain_decoding():
    assert check(model_of("float32"), [11], 0) == NEW


def test_a_model_that_cannot_draft_says_so():
    config = ModelConfig.from_dict({**model_of("float32").config.to_dict(), "num_nextn_predict_layers": 0})
    kv = ResidentKV(config, 4)
    with pytest.raises(ValueError, match="num_nextn_predict_layers is 0"):
        speculate(Model.random(config, 1), [Speculating(kv, 1, 0, 3)], SeparateStore(), drafts=1)


# --- and the check sees what it should


def nothing_is_rolled_back(patch):
    patch.setattr(SeparateStore, "rollback", lambda self, request, length: None)


def one_row_too_few_stays(patch):
    patch.setattr(SeparateStore, "rollback", lambda self, request, length: request.rollback(length - 1))


@pytest.mark.parametrize("mistake", [nothing_is_rolled_back, one_row_too_few_stays])
def test_the_check_sees(mistake, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        check(model_of("float32"), [40], 2)


def test_the_check_sees_a_draft_that_is_believed(monkeypatch):
    """Verification that compares a draft with itself."""
    monkeypatch.setattr(speculation, "next", lambda found, end: end, raising=False)
    with pytest.raises(AssertionError, match="tokens of request 0 differ"):
        check(model_of("float32"), [40], 2)
