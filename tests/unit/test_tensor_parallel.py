"""Several real processes compute one model: bit-equal to one alone, in every shape, cut and batch; and they end together."""

import dataclasses
import functools
import itertools
import os
import signal

import pytest
import rank_tools
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.engine.model import (
    ALONE,
    Chunk,
    GlooRanks,
    Model,
    ModelConfig,
    RankLost,
    ResidentKV,
    greedy,
    load_checkpoint,
    network,
    reference_prefill,
    save_checkpoint,
    tensor_parallel,
)  # fmt: skip
from tidegate.engine.model.checkpoint import CheckpointError
from tidegate.engine.model.shards import Shard, is_cut
from tidegate.engine.worker_io import run_worker

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3, "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1, "q_lora_rank": 32, "kv_lora_rank": 96, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
    "v_head_dim": 24, "index_topk": 12, "index_n_heads": 8, "index_head_dim": 32,
}  # fmt: skip
SHAPES = {
    "dense": {"first_k_dense_replace": 4},
    "lic8": {"lic8": True},
    "experts": {"n_routed_experts": 8, "n_group": 4, "topk_group": 2},
    "no shared expert": {"n_shared_experts": 0, "num_attention_heads": 8, "index_topk": 100},
    "shared indexers": {"model_type": "glm_moe_dsa", "indexer_types": ("full", "shared", "shared")},
    "uneven parts": {"intermediate_size": 104, "moe_intermediate_size": 24, "hidden_size": 72, "num_attention_heads": 12},
}
DTYPES = ["bfloat16", "float32", "float64"]
TEXT = torch.randint(0, 256, (90,), generator=torch.Generator().manual_seed(1)).tolist()


def config_of(shape, dtype):
    return ModelConfig(**{**SMALL, **SHAPES[shape]}, dtype=dtype)


@functools.cache
def model_of(shape, dtype, group):
    return Model.random(config_of(shape, dtype), 5, group)


# --- what every rank does


def compute(groups, size, shape, dtype, cuts, lengths, plant=None):
    """Everything that a model gives: rows, hidden states and logits of a batch of prompts, each prefilled in chunks that end at `cuts`,
    and then two tokens of each with their drafts."""
    group = groups[size]
    if plant:
        plant(group)
    try:
        return forward(model_of(shape, dtype, group), cuts, lengths)
    finally:
        network.summed = tensor_parallel.summed


def forward(model, cuts, lengths):
    kvs = [ResidentKV(model.config, n + 2) for n in lengths]
    pieces = [list(itertools.pairwise([0, *sorted(cut for cut in cuts if cut < n), n])) for n in lengths]
    out, now = [], [(TEXT[n - 1], n - 1, kv) for n, kv in zip(lengths, kvs, strict=True)]
    for step in itertools.zip_longest(*pieces):  # the requests' first chunks together, then their second ones, ...
        some = [(piece, n, kv) for piece, n, kv in zip(step, lengths, kvs, strict=True) if piece]
        out += model.prefill_step([Chunk(TEXT[a:b], a, kv, TEXT[b] if b < n else 0) for (a, b), n, kv in some])
    for _ in range(2):
        hidden = model.decode_hidden(now)
        logits = model.logits(hidden)
        tokens = greedy(logits)
        out += [hidden, logits, model.draft_step([(t, at, kv) for t, (_, at, kv) in zip(tokens, now, strict=True)], hidden)]
        now = [(token, at + 1, kv) for token, (_, at, kv) in zip(tokens, now, strict=True)]
    return out + [rows for kv in kvs for rows in (kv.main, kv.index, kv.scale)]


def check(ranks, size, shape, dtype, cuts, lengths, plant=None):
    want = compute({1: ALONE}, 1, shape, dtype, cuts, lengths)
    for rank, got in enumerate(ranks.call(compute, size, shape, dtype, cuts, lengths, plant)):
        if isinstance(got, Exception):
            raise got
        same = [torch.equal(one, two) for one, two in zip(got, want, strict=True)]
        assert all(same), f"rank {rank} of {size} differs from one rank alone in {same.count(False)} of {len(same)} results"


# --- bit-equal


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    with rank_tools.ranks(4, tmp_path_factory.mktemp("ranks") / "four") as started:
        yield started


CUTS, LENGTHS = st.sets(st.integers(1, 89), max_size=3), st.lists(st.integers(1, 90), min_size=1, max_size=10)


@settings(max_examples=100 if os.environ.get("TIDEGATE_LONG") else 5, deadline=None)
@given(st.sampled_from([2, 4]), st.sampled_from(list(SHAPES)), st.sampled_from(DTYPES), CUTS, LENGTHS)
@example(2, "dense", "bfloat16", {64}, [90, 1])
@example(4, "dense", "float32", {1, 65}, [70])
@example(2, "lic8", "bfloat16", {30}, [70, 12])
@example(4, "experts", "bfloat16", {30}, [90, 13, 2, 31, 66, 5, 90, 1, 12])
@example(2, "experts", "float64", set(), [14])
@example(4, "no shared expert", "float32", {50}, [80, 3])
@example(4, "shared indexers", "bfloat16", {40}, [70, 5])
@example(2, "uneven parts", "bfloat16", {63}, [64, 65])
@example(4, "uneven parts", "float32", {7}, [20])
def test_results_do_not_depend_on_the_number_of_ranks(four, size, shape, dtype, cuts, lengths):
    check(four, size, shape, dtype, cuts, lengths)


# --- mistakes that are easily made, and seen


def own_parts_first(group):
    """Every rank begins with what it has, and adds the others' as they come."""

    def summed(group, partials):
        every = group.gather(torch.stack([*partials]))
        return tensor_parallel.summed(ALONE, every.roll(-group.rank * len(partials), 0))

    network.summed = summed


def added_before_they_are_sent(group):
    """Fewer bytes, and another order of additions for every number of ranks."""
    network.summed = lambda group, partials: tensor_parallel.summed(group, [tensor_parallel.summed(ALONE, partials)])


def one_part_twice(group):
    def summed(group, partials):
        every = group.gather(torch.stack([*partials]))
        return tensor_parallel.summed(ALONE, [*every[:-1], every[0]])

    network.summed = summed


def last_part_forgotten(group):
    network.summed = lambda group, partials: tensor_parallel.summed(ALONE, group.gather(torch.stack([*partials]))[:-1])


MISTAKES = [  # with one part a rank there is nothing to add before it is sent
    (2, own_parts_first), (4, own_parts_first), (2, added_before_they_are_sent), (2, one_part_twice), (4, one_part_twice),
    (4, last_part_forgotten),
]  # fmt: skip


@pytest.mark.parametrize(("size", "plant"), MISTAKES)
def test_the_check_sees(four, size, plant):
    with pytest.raises(AssertionError, match="differs from one rank alone"):
        check(four, size, "experts", "float32", {30}, [40, 9], plant)


# --- weights


def weights_read(groups, size, folder):
    """(bytes of the rank's weights, identity, do they equal those that the seed gives this rank) of a checkpoint."""
    model, seeded = load_checkpoint(folder, group=groups[size]), Model.random(config_of("uneven parts", "bfloat16"), 5, groups[size])
    equal = model.weights.keys() == seeded.weights.keys() and all(torch.equal(t, seeded.weights[n]) for n, t in model.weights.items())
    return sum(t.untyped_storage().nbytes() for t in model.weights.values()), model.identity(), equal


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_reads_its_part_of_a_checkpoint_and_all_name_the_model_alike(four, size, tmp_path):
    model = model_of("uneven parts", "bfloat16", ALONE)
    save_checkpoint(model, folder := tmp_path / "model")
    cut, common = (sum(t.nbytes for name, t in model.weights.items() if is_cut(name) == kind) for kind in (True, False))
    found = four.call(weights_read, size, folder)
    assert [(identity, equal) for _, identity, equal in found] == [(model.identity(), True)] * 4
    assert sum(held for held, _, _ in found[:size]) == cut + size * common


def test_a_rank_does_not_save_its_part_as_a_model(tmp_path):
    class Two(tensor_parallel.Alone):
        size = 2

    with pytest.raises(CheckpointError, match="one of 2 ranks has only its part"):
        save_checkpoint(Model.random(config_of("dense", "float32"), 5, Two()), tmp_path / "part")


@pytest.mark.parametrize(("heads", "size", "use"), [(4, 3, "1, 2, 4"), (6, 4, "1, 2"), (5, 2, "use 1$"), (4, 8, "1, 2, 4")])
def test_ranks_that_cannot_have_equal_parts_are_refused(heads, size, use):
    class Some(tensor_parallel.Alone):
        pass

    Some.size = size
    with pytest.raises(ValueError, match=f"{size} tensor-parallel ranks: {heads} heads.*{use}"):
        Shard(dataclasses.replace(config_of("dense", "float32"), num_attention_heads=heads), Some())


def test_a_whole_weight_is_not_taken_for_a_part():
    class Two(tensor_parallel.Alone):
        size = 2

    with pytest.raises(ValueError, match=r"q_b_proj.weight is \(128, 32\): \(64, 32\) are due, parts 0..2 of 4"):
        Model(config_of("dense", "float32"), model_of("dense", "float32", ALONE).weights, Two())


# --- the group


def exchanged(groups, size):
    group = groups[size]
    return group.exchange(b"x" * group.rank), group.exchange(b""), group.gather(torch.full((2, 0), 1.0)).shape


def agreed(groups, what):
    try:
        groups[4].agree("top-k of layer 3", what[groups[4].rank :][:1])
    except RuntimeError as error:
        return str(error)


def test_ranks_exchange_bytes_of_any_length_and_see_who_differs(four):
    assert four.call(exchanged, 4) == [([b"", b"x", b"xx", b"xxx"], [b""] * 4, (8, 0))] * 4
    assert four.call(exchanged, 2) == [([b"", b"x"], [b""] * 2, (4, 0))] * 4
    assert four.call(agreed, b"aaaa") == [None] * 4
    said = "top-k of layer 3: ranks [2] of 4 have another than rank 0; a group that disagrees must end"
    assert four.call(agreed, b"aaba") == [said] * 4


def test_a_rank_that_nobody_meets_says_so(tmp_path):
    with pytest.raises(RankLost, match=r"rank 0 of 2: not all ranks came \(limit 0.2 s\)"):
        GlooRanks(tmp_path / "meeting", rank=0, size=2, timeout=0.2)
    with pytest.raises(ValueError, match="rank is 2: between 0 and 1"):
        GlooRanks(tmp_path / "meeting", rank=2, size=2)


# --- one failure domain


def decode_for_ever(meeting, rank, size, timeout, ready):
    def body(parent):
        model = model_of("experts", "float32", GlooRanks(meeting, rank=rank, size=size, timeout=timeout))
        kv = ResidentKV(model.config, 20)
        reference_prefill(model, TEXT[:20], 20, kv)
        ready.send(True)
        while True:
            model.decode_step([(TEXT[19], 19, kv)])

    run_worker("rank", body)


@pytest.mark.parametrize(("size", "last", "limit"), [(4, signal.SIGKILL, 600.0), (2, signal.SIGSTOP, 2.0)])
def test_when_a_rank_dies_or_falls_silent_all_end_with_one_code(tmp_path, size, last, limit):
    """A dead rank is noticed at once, however long the limit; a silent one within it, and it ends itself when it wakes."""
    ends = [rank_tools.CONTEXT.Pipe(duplex=False) for _ in range(size)]
    ranks = [
        rank_tools.CONTEXT.Process(target=decode_for_ever, args=(tmp_path / "meeting", rank, size, limit, end))
        for rank, (_, end) in enumerate(ends)
    ]
    for rank in ranks:
        rank.start()
    try:
        assert all(ready.poll(rank_tools.BOUND) for ready, _ in ends)
        os.kill(ranks[-1].pid, last)
        for rank in ranks[:-1]:
            rank.join(rank_tools.BOUND)
        assert [rank.exitcode for rank in ranks[:-1]] == [4] * (size - 1)
        if last == signal.SIGSTOP:
            os.kill(ranks[-1].pid, signal.SIGCONT)
            ranks[-1].join(rank_tools.BOUND)
            assert ranks[-1].exitcode == 4
    finally:
        for rank in ranks:
            rank.kill()
