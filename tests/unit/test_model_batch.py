"""Several requests in one prefill step and in one decode step, in blocks that they share: each bit-equal to itself alone."""

import functools
import random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paged_kv import Pages

from tidegate.engine.model import Chunk, Model, ModelConfig, ResidentKV, greedy, network

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK, NEW = 16, 3
DTYPES = ["bfloat16", "float32", "float64"]
TEXT = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(2)).tolist()


@functools.cache
def model_of(dtype):
    return Model.random(ModelConfig(
        hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2, first_k_dense_replace=1,
        num_nextn_predict_layers=1, q_lora_rank=32, kv_lora_rank=96, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24,
        index_topk=12, index_n_heads=8, index_head_dim=32, dtype=dtype,
    ), 5)  # fmt: skip


def prompt_of(which, length):
    return TEXT[which : which + length]


def after(prompt, end):
    return prompt[end] if end < len(prompt) else 0


@functools.cache
def alone(dtype, which, length):
    """(hidden states of the prompt, logits and drafts of each new token, the rows) of one request, prefilled at once."""
    model, prompt = model_of(dtype), prompt_of(which, length)
    kv = ResidentKV(model.config, length + NEW)
    hidden, logits, token = model.prefill_chunk(prompt, 0, kv), [], prompt[-1]
    for position in range(length - 1, length - 1 + NEW):
        last = model.decode_hidden([(token, position, kv)])
        logits.append(model.logits(last))
        [token] = greedy(logits[-1])
        logits.append(model.draft_step([(token, position, kv)], last))
    return hidden, torch.cat(logits, 1)[0], kv


class Request:
    """One of a schedule: it has its own chunk size, and comes when it likes."""

    def __init__(self, which, length, chunk, blocks):
        self.which, self.prompt, self.size, self.blocks = which, prompt_of(which, length), chunk, blocks
        self.done, self.hidden, self.tokens, self.logits = 0, [], [], []

    def chunk(self, pages):
        tokens = self.prompt[self.done : self.done + self.size]
        return pages.chunk(tokens, self.done, self.blocks, after(self.prompt, self.done + len(tokens)))

    def prefilled(self, hidden):
        self.hidden.append(hidden)
        self.done += len(hidden)

    @property
    def next(self):
        token = self.tokens[-1] if self.tokens else self.prompt[-1]
        return token, len(self.prompt) - 1 + len(self.tokens), self.blocks

    @property
    def phase(self):
        return "prefill" if self.done < len(self.prompt) else "decode" if len(self.tokens) < NEW else "over"


def scheduled(model, shapes, seed):
    """Requests of (which, length, chunk) each, in steps that take some of those that can go on."""
    draw, free = random.Random(seed), list(range(sum(-(-(length + NEW) // BLOCK) for _, length, _ in shapes)))
    pages = Pages(model.config, len(free), BLOCK)
    draw.shuffle(free)
    requests = [Request(*shape, [free.pop() for _ in range(-(-(shape[1] + NEW) // BLOCK))]) for shape in shapes]
    while going := [request for request in requests if request.phase != "over"]:
        some = draw.sample(going, draw.randint(1, len(going)))
        prefilling, decoding = ([one for one in some if one.phase == phase] for phase in ("prefill", "decode"))
        if prefilling:
            for one, hidden in zip(prefilling, model.prefill_step([one.chunk(pages) for one in prefilling]), strict=True):
                one.prefilled(hidden)
        if decoding:
            decode(model, pages, decoding)
    return requests, pages


def decode(model, pages, requests):
    steps = [one.next for one in requests]
    hidden = model.decode_hidden(pages.batch(steps))
    logits = model.logits(hidden)
    tokens = greedy(logits)
    after = [(token, position, blocks) for token, (_, position, blocks) in zip(tokens, steps, strict=True)]
    drafts = model.draft_step(pages.batch(after), hidden)
    for one, token, row, draft in zip(requests, tokens, logits, drafts, strict=True):
        one.tokens.append(token)
        one.logits += [row, draft]


def check(model, dtype, shapes, seed):
    requests, pages = scheduled(model, shapes, seed)
    for number, one in enumerate(requests):
        hidden, logits, kv = alone(dtype, one.which, len(one.prompt))
        places = pages.places(one.blocks, 0, len(one.prompt) + NEW - 1)
        compared = {"hidden states": (torch.cat(one.hidden), hidden), "logits": (torch.cat(one.logits), logits)}
        for layer, kinds in enumerate(pages.memory):
            for name, memory in kinds.items():
                compared[f"layer {layer} {name}"] = memory[places], getattr(kv, name)[layer, : len(places)]
        for what, (got, want) in compared.items():
            assert torch.equal(got, want), f"{what} of request {number} of {shapes} differ from its lone run (seed {seed})"


SHAPE = st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 12, 13, 63, 64, 65, 100, 130]), st.sampled_from([1, 30, 64, 100]))


@settings(max_examples=6, deadline=None)
@given(st.lists(SHAPE, min_size=1, max_size=5), st.sampled_from(DTYPES), st.integers(0, 99))
@example([(n % 4, 5 + n, 64) for n in range(18)], "bfloat16", 1)
@example([(0, 130, 64), (1, 1, 64), (2, 65, 30)], "float32", 2)
def test_requests_of_any_length_share_steps_and_blocks(shapes, dtype, seed):
    check(model_of(dtype), dtype, shapes, seed)


def test_a_layer_is_written_for_all_before_the_first_attends():
    model = model_of("float32")
    pages = Pages(model.config, 8, BLOCK)
    model.prefill_step([pages.chunk(TEXT[:20], 0, [0, 1]), pages.chunk(TEXT[:9], 0, [2])])
    assert pages.calls == [(call, layer) for layer in range(3) for call in ("wait", "wait", "written", "written", "done", "done")]
    pages.calls.clear()
    model.decode_step(pages.batch([(TEXT[19], 19, [0, 1]), (TEXT[8], 8, [2])]))
    assert pages.calls == [(call, layer) for layer in range(2) for call in ("append", "fetch")]


# --- the check sees what it should


def rows_of_the_neighbour(patch):
    plain = network.by_span
    patch.setattr(network, "by_span", lambda spans, tiles: reversed([*plain(spans, tiles)]))


def keys_of_the_first(patch):
    patch.setattr(network, "each_tile", lambda spans, of: ((begin, span, of[0]) for span in spans for begin in span.begins))


def keys_of_the_first_in_decode(patch):
    def choose(self, layer, p, token, batch):
        return layer.attention.choose(p, token % 8, batch.index_rows(layer.number, 0))

    patch.setattr(network.Model, "_choose", choose)


@pytest.mark.parametrize("mistake", [rows_of_the_neighbour, keys_of_the_first, keys_of_the_first_in_decode])
def test_the_check_sees(mistake, monkeypatch):
    shapes = [(0, 60, 64), (1, 60, 64), (2, 60, 64)]
    check(model_of("float32"), "float32", shapes, 3)
    mistake(monkeypatch)
    with pytest.raises(AssertionError, match="differ from its lone run"):
        check(model_of("float32"), "float32", shapes, 3)


def test_a_step_of_nothing_and_a_chunk_of_nothing():
    model = model_of("float32")
    assert model.prefill_step([]) == []
    with pytest.raises(ValueError, match="non-empty"):
        model.prefill_step([Chunk([1], 0, ResidentKV(model.config, 4)), Chunk([], 0, ResidentKV(model.config, 4))])
