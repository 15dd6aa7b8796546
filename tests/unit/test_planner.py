"""The planner: the seed's formulas for any uniform layout, upstream's scenarios, and one refusal for each rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engine.errors import ConfigError
from tidegate.engine.planner import CacheSpec, LayerPlan, layer_numbers, plan_layers
from tidegate.engine.recorder import Recorder
from tidegate.engine.tracing import trace_header
from tidegate.protocol.messages import ReadDone, Start
from tidegate.protocol.prefill import PrefillSession
from tidegate.protocol.topology import SlotPlan

BLOCK, BLOCKS = 16, 10


def cache(kind: str = "main", width: int = 576, dtype: str = "bfloat16", blocks: int = BLOCKS, **changes: Any) -> CacheSpec:
    item = {"bfloat16": 2, "float16": 2, "int8": 1}.get(dtype, 4)
    fields = {"kind": kind, "dtype": dtype, "widths": (width,), "block_size": BLOCK, "bytes": blocks * BLOCK * width * item}
    return CacheSpec(**(fields | changes))  # type: ignore[arg-type]


def model(layers: int, *, indexers: Any = None, mains: dict[int, CacheSpec] | None = None) -> dict[str, CacheSpec]:
    """`layers` base layers; an indexer in each of `indexers` (default: all); other main specs where `mains` says so."""
    out = {f"model.layers.{i}.self_attn.attn": (mains or {}).get(i, cache()) for i in range(layers)}
    has = range(layers) if indexers is None else indexers
    return out | {f"model.layers.{i}.self_attn.indexer.k_cache": cache("indexer", 128) for i in has}


def owners(plan: LayerPlan) -> list[list[int]]:
    """Layer numbers of each buffer."""
    return [[plan.layers[position - 1].number for position in buffer.layers] for buffer in plan.buffers]


@given(layers=st.integers(1, 70), buffers=st.integers(1, 9), data=st.data())
def test_a_uniform_layout_has_the_seeds_buffers_and_footprint(layers: int, buffers: int, data: st.DataObject) -> None:
    own = data.draw(st.lists(st.integers(-layers, layers - 1)))
    plan = plan_layers(model(layers), shared_buffers=buffers, independent=own)
    independent = len({number % layers for number in own})
    physical = independent + min(buffers, layers - independent)
    assert len(plan.buffers) == len(plan.slots.slots) == physical
    assert plan.main_footprint == pytest.approx(physical / layers)
    assert plan.scaling == pytest.approx(layers / physical)
    assert plan.bytes == physical * BLOCKS * BLOCK * 2 * (576 + 128)
    assert plan.slots == SlotPlan.make(layers=layers, independent=frozenset(n % layers + 1 for n in own), buffers=buffers)
    for buffer in plan.buffers:
        assert [plan.slots.slot_of(position) for position in buffer.layers] == [buffer.slot] * len(buffer.layers)


@given(widths=st.lists(st.sampled_from([64, 576, 640]), min_size=1, max_size=40), buffers=st.integers(1, 5), data=st.data())
def test_each_main_spec_has_a_bucket_of_its_own(widths: list[int], buffers: int, data: st.DataObject) -> None:
    layers = len(widths)
    own = data.draw(st.sets(st.integers(0, layers - 1)))
    indexers = data.draw(st.sets(st.integers(0, layers - 1)))
    mains = {i: cache(width=width) for i, width in enumerate(widths)}
    plan = plan_layers(model(layers, mains=mains, indexers=indexers), shared_buffers=buffers, independent=sorted(own))
    shared = [i for i in range(layers) if i not in own]
    sizes = {width: sum(widths[i] == width for i in shared) for width in widths}
    assert len(plan.buffers) == len(own) + sum(min(buffers, n) for n in sizes.values())
    assert sorted(n for numbers in owners(plan) for n in numbers) == list(range(layers))
    for buffer, numbers in zip(plan.buffers, owners(plan), strict=True):
        assert {mains[n].form for n in numbers} == {buffer.main.form}
        assert (buffer.indexer is not None) == any(n in indexers for n in numbers)
        if len(numbers) > 1:  # round robin: every `count`-th layer of the bucket
            bucket = [i for i in shared if widths[i] == widths[numbers[0]]]
            count = min(buffers, len(bucket))
            assert numbers == bucket[bucket.index(numbers[0]) :: count]
    assert plan.slots.shared == {i + 1 for i in shared}


def test_layers_take_turns_and_the_load_of_each_waits_for_the_one_before_it() -> None:
    plan = plan_layers(model(8), shared_buffers=3)
    assert owners(plan) == [[1, 4, 7], [2, 5], [3, 6], [0]]
    assert plan.previous_owner == {5: 2, 8: 5, 6: 3, 7: 4}
    assert plan.reuses
    assert plan.prefetch_layers == 1


def test_without_a_buffer_count_every_layer_owns_its_buffer() -> None:
    plan = plan_layers(model(8))
    assert len(plan.buffers) == 8
    assert not plan.reuses
    assert not plan.slots.shared
    assert (plan.main_footprint, plan.scaling) == (1, 1)


@pytest.mark.parametrize(("given_", "numbers"), [
    ([0], [0]), ([-1], [7]), ([0, -8, 0], [0]), ([], []), ((2, 3), [2, 3]), ("all", list(range(8))),
])  # fmt: skip
def test_independent_layers_as_users_write_them(given_: object, numbers: list[int]) -> None:
    plan = plan_layers(model(8), shared_buffers=2, independent=given_)
    assert [n for n in range(8) if not plan.slots.is_shared(n + 1)] == numbers


@pytest.mark.parametrize(("given_", "why"), [
    ([8], r"names \[8\]: layers with a cache are numbered 0 to 7"), ([0, -9], r"names \[-9\].*-8 to -1 count from the last"),
    (True, "is True"), ([True], r"is \[True\]"), ("first", "is 'first'"), (0, "is 0"), ([0.0], r"is \[0.0\]"), (None, "is None"),
])  # fmt: skip
def test_independent_layers_that_are_none_are_refused(given_: object, why: str) -> None:
    with pytest.raises(ConfigError, match=f"layerwise_independent_layers {why}"):
        plan_layers(model(8), shared_buffers=2, independent=given_)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3"])
def test_a_buffer_count_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"layerwise_num_shared_buffers is {value!r}: give an integer of at least 1"):
        plan_layers(model(8), shared_buffers=value)


def test_prefetch_is_below_the_buffers_and_can_be_overridden() -> None:
    assert plan_layers(model(8), shared_buffers=4, prefetch_layers=3).prefetch_layers == 3
    assert plan_layers(model(8), shared_buffers=1).prefetch_layers == 1, "left out: as soon as the one buffer is free"
    assert plan_layers(model(8), shared_buffers=1, prefetch_layers=0).prefetch_layers == 0
    with pytest.raises(ConfigError, match="layerwise_prefetch_layers is 4: below the number of shared buffers, 4"):
        plan_layers(model(8), shared_buffers=4, prefetch_layers=4)
    for strange in (-1, True, "1"):
        with pytest.raises(ConfigError, match=f"layerwise_prefetch_layers is {strange!r}"):
            plan_layers(model(8), shared_buffers=4, prefetch_layers=strange)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "number"), [
    ("model.layers.61.self_attn.attn", 61), ("mtp.0.attn", 62), ("mtp.layers.1.attn", 63), ("model.mtp.layers.0.self_attn", 62),
    ("decoder.17.attn", 17), ("h3.attn", 3), ("stage2.layers.5.attn", 5),
])  # fmt: skip
def test_the_layer_number_in_a_name(name: str, number: int) -> None:
    assert layer_numbers(["model.layers.61.self_attn.attn", name])[name] == number


def test_mtp_layers_share_as_the_others_do() -> None:
    caches = model(4) | {"mtp.layers.0.attn": cache(), "mtp.layers.0.indexer.k_cache": cache("indexer", 128)}
    plan = plan_layers(caches, shared_buffers=2)
    assert owners(plan) == [[1, 3], [2, 4], [0]]
    assert plan_layers(caches, shared_buffers=2, independent=[-1]).layers[-1].main == "mtp.layers.0.attn"


def test_layers_are_what_is_registered_and_keep_their_numbers() -> None:
    caches = {name: spec for name, spec in model(8).items() if ".layers.2." not in name}
    plan = plan_layers(caches, shared_buffers=2, independent=[3, -1])
    assert len(plan.layers) == 7
    assert owners(plan) == [[0, 4, 6], [1, 5], [3], [7]]
    with pytest.raises(ConfigError, match=r"names \[2\]: layers with a cache are numbered 0, 1, 3, 4, 5, 6, 7"):
        plan_layers(caches, shared_buffers=2, independent=[2])


def test_the_order_of_registration_says_nothing() -> None:
    caches = model(6, indexers=[1, 4])
    backwards = dict(reversed(caches.items()))
    one, two = plan_layers(caches, shared_buffers=2), plan_layers(backwards, shared_buffers=2)
    assert (one.layers, one.buffers, one.slots) == (two.layers, two.buffers, two.slots)


def test_an_indexer_lies_only_where_a_layer_of_the_buffer_owns_one() -> None:
    plan = plan_layers(model(7, indexers=[0, 2, 4]), shared_buffers=3)
    assert owners(plan) == [[1, 4], [2, 5], [3, 6], [0]]
    assert [buffer.indexer is not None for buffer in plan.buffers] == [True, True, False, True]
    logical, physical = 7 * 576 + 3 * 128, 4 * 576 + 3 * 128
    assert plan.scaling == pytest.approx(logical / physical)
    assert plan.main_footprint == pytest.approx(4 / 7)


def test_an_int8_indexer_brings_its_scale() -> None:
    caches = {name: cache("indexer", 128, "int8") if "indexer" in name else spec for name, spec in model(5).items()}
    caches |= {f"model.layers.{i}.self_attn.indexer.scale": cache("scale", 1, "float16") for i in range(5)}
    plan = plan_layers(caches, shared_buffers=2)
    assert plan.bytes == 3 * BLOCKS * BLOCK * (576 * 2 + 128 + 2)
    assert all(buffer.scale for buffer in plan.buffers)


REFUSED: list[tuple[dict[str, CacheSpec], str]] = [
    ({}, "no KV cache is registered"),
    ({"model.layers.0.a": cache("mamba")}, "of kind 'mamba': hybrid KV cache layouts are not supported"),
    (model(3) | {"model.layers.1.self_attn.other": cache()}, "layer 1 has two main caches"),
    (model(3) | {"model.layers.1.x": cache("indexer", 128)}, "layer 1 has two indexer caches"),
    (model(3) | {"model.layers.3.indexer.k_cache": cache("indexer", 128)}, "layer 3 has indexer cache .* and no main cache"),
    (model(3, indexers=[]) | {"model.layers.1.scale": cache("scale", 1)}, "layer 1 has scale cache .* and no indexer cache"),
    (model(3) | {"model.layers.2.self_attn.attn": cache(blocks=9)}, "has 9 blocks of 16 tokens, .* has 10 of 16"),
    (model(3) | {"model.layers.2.self_attn.attn": cache(block_size=8)}, "has 20 blocks of 8 tokens"),
    (model(3) | {"model.layers.2.self_attn.attn": cache(bytes=99)}, "is of 99 bytes: give a multiple of its block, 18432"),
    (model(3) | {"model.layers.2.self_attn.attn": cache(bytes=0)}, "is of 0 bytes"),
    (model(3) | {"model.layers.2.self_attn.attn": cache(dtype="float8")}, "has dtype 'float8'"),
    (model(3) | {"model.layers.2.self_attn.attn": cache(widths=())}, r"rows of \(\) elements"),
    (model(3) | {"embedding": cache()}, "cache 'embedding' names no layer"),
    (model(3) | {"model.layers.2.self_attn.indexer.k_cache": cache("indexer", 64)},
     r"indexer caches .*layers.1.* \(bfloat16 rows of 128\) and .*layers.2.* \(bfloat16 rows of 64\) would share a buffer"),
    (model(3, mains={1: cache(storage="pack"), 2: cache(storage="pack")}), "lies in storage 'pack' together with others"),
]  # fmt: skip


@pytest.mark.parametrize(("caches", "why"), REFUSED, ids=[why[:40] for _, why in REFUSED])
def test_a_layout_that_cannot_be_planned_is_refused_in_one_line(caches: dict[str, CacheSpec], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        plan_layers(caches, shared_buffers=1)
    assert "\n" not in str(refused.value)


def test_without_reuse_packed_caches_and_unequal_indexers_harm_nobody() -> None:
    caches = model(3, mains={1: cache(storage="pack"), 2: cache(storage="pack")})
    caches["model.layers.2.self_attn.indexer.k_cache"] = cache("indexer", 64)
    assert len(plan_layers(caches).buffers) == 3
    alone = caches | {"model.layers.2.self_attn.attn": cache(storage="other")}
    assert len(plan_layers(alone, shared_buffers=1, independent=[0, 2]).buffers) == 3


def test_a_session_runs_over_buckets() -> None:
    """Two kinds of layers: the gate is of the bucket's buffer, and the other bucket's layers pass it."""
    mains = {i: cache(width=640) for i in (1, 3)}
    plan = plan_layers(model(4, mains=mains), shared_buffers=1, independent=[]).slots
    assert [plan.slot_of(layer) for layer in (1, 2, 3, 4)] == [0, 1, 0, 1]
    session = PrefillSession(plan=plan, chunk_tokens=4, new_run=lambda s: len(s.runs) + 1)
    session.receive(Start("q", 1, 1, 4))
    for _ in range(2):
        session.claim(1)
        session.write(1)
    assert not session.can_claim(1)
    first, second = session.readies
    session.layer_done(second)
    session.save_end(second, True)
    session.receive(ReadDone(second, 1, 1, 1, 1))
    assert not session.can_claim(1)  # layer 3 waits for layer 1's buffer; layer 2's is of no use to it
    session.layer_done(first)
    session.save_end(first, True)
    session.receive(ReadDone(first, 0, 1, 1, 1))
    assert session.can_claim(1)


@pytest.mark.parametrize(("slots", "own", "why"), [
    ((0, 2, 0), set(), "skip none"), ((0, 1, 0), {1}, "independent layer 1 is in slot 0 with others"),
])  # fmt: skip
def test_a_table_of_slots_that_contradicts_itself_is_refused(slots: tuple[int, ...], own: set[int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SlotPlan.of(slots, independent=frozenset(own))


@pytest.mark.parametrize(("fields", "why"), [
    ({"table": (0, 1)}, "table has 2 slots for 3 layers"), ({"table": (0, 1, 1), "shared_slots": 1}, "shared_slots=1 is not"),
])  # fmt: skip
def test_a_table_that_does_not_fit_its_plan_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SlotPlan(**({"layers": 3, "shared": frozenset({1, 2, 3}), "shared_slots": 2} | fields))


def test_a_plan_that_the_model_does_not_describe_leaves_no_trace(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "prefill-0.jsonl", "prefill-0")
    plans = [plan_layers(model(4, mains=mains), shared_buffers=1, independent=[]).slots for mains in ({}, {1: cache(width=640)})]
    trace_header(recorder, role="prefill", rank=0, incarnation=1, layers=4, plan=plans[0], chunk_tokens=4)
    with pytest.raises(ValueError, match=r"slots \(0, 1, 0, 0\)"):
        trace_header(recorder, role="prefill", rank=0, incarnation=1, layers=4, plan=plans[1], chunk_tokens=4)
    recorder.close()
