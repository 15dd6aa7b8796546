"""Every boundary by name: one case for each rule, refused in that rule's words and in no other's."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from settings_tools import EXTRA, raw

from tidegate.engine.config import Request, RunConfig
from tidegate.engine.errors import ConfigError
from tidegate.engine.keys import refuse
from tidegate.engine.refusals import MODEL_RULES, SETTINGS_RULES, device_problem, refuse_model
from tidegate.engine.run_options import run_settings
from tidegate.engine.settings import parse_settings


def with_connector(name: str, **changes: Any) -> dict[str, Any]:
    out = raw(**changes)
    out["prefill"]["kv_transfer_config"][EXTRA]["connectors"][0]["kv_connector"] = name
    return out


def without(connector: int) -> dict[str, Any]:
    out = raw()
    del out["prefill"]["kv_transfer_config"][EXTRA]["connectors"][connector]
    return out


SAME = {"source__transfer_backend": "memfabric", "target__transfer_backend": "memfabric"}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("hybrid", with_connector("MooncakeHybridConnector"), "hybrid KV cache layouts are not supported; use SfaRemoteD2HConnector"),
    ("ungated", with_connector("MooncakeLayerwiseConnector"),
     "MooncakeLayerwiseConnector is combined with layerwise_num_shared_buffers 3: it has no completion gate for each buffer"),
    ("foreign", with_connector("MooncakeConnectorV1", store__layerwise_num_shared_buffers=...), "kv_connector is 'MooncakeConnectorV1'"),
    ("foreign", raw(d__kv_connector="UCMConnector", **{f"d__{EXTRA}": {}}), "kv_connector is 'UCMConnector'"),
    ("colocation", raw(p__kv_role="kv_both"), r"prefill has kv_role 'kv_both': .* \(P/D colocation\) is not supported"),
    ("colocation", raw(d__kv_role="kv_both"), "decode has kv_role 'kv_both'.*give 'kv_consumer'"),
    ("roles", raw(p__kv_role="kv_consumer"), "prefill has kv_role 'kv_consumer': give 'kv_producer'"),
    ("roles", raw(d__kv_role=...), "decode has kv_role '': give 'kv_consumer'"),
    ("connectors", without(0), "prefill needs both AscendStoreConnector and SfaRemoteD2HConnector"),
    ("connectors", without(1), "prefill needs both"),
    ("connectors", raw(decode__kv_transfer_config={"kv_role": "kv_consumer"}), "decode needs SfaRemoteD2HConnector"),
    ("connectors", raw(decode__kv_transfer_config=raw(p__kv_role="kv_consumer")["prefill"]["kv_transfer_config"]),
     "decode has AscendStoreConnector"),
    ("sparse", raw(sparse__enabled=False), "sparse_kv_offload_config.enabled false"),
    ("sparse", raw(prefill__additional_config={"sparse_kv_offload_config": {"enabled": True}}), "prefill has sparse_kv_offload_config"),
    ("topology", raw(decode__tensor_parallel_size=2), "is 1 on Prefill and 2 on Decode: Prefill's must be at least Decode's"),
    ("topology", raw(prefill__tensor_parallel_size=3, decode__tensor_parallel_size=2), "Decode's must divide Prefill's; choose 2, 4, 6"),
    ("one DP rank", raw(prefill__data_parallel_size=2), "prefill.data_parallel_size is 2: Prefill has one DP rank; give 1, and run"),
    ("chunk", raw(prefill__long_prefill_token_threshold=513), "long_prefill_token_threshold is 513 and max_num_batched_tokens 512"),
    ("dtype", raw(prefill__dtype="float16", decode__dtype="float16"),
     "dtype is 'float16': the main KV cache must be bfloat16; give that, or float32 or float64 in check mode"),
    ("dtype", raw(decode__dtype="float64"), "decode.dtype is 'float64': the main KV cache must be bfloat16; .* need check mode"),
    ("quantized", raw(prefill__kv_cache_dtype="int8"), "kv_cache_dtype is 'int8' and dtype 'bfloat16'"),
    ("eager", raw(prefill__enforce_eager=False), "enforce_eager is false .* shared buffers need eager mode"),
    ("layerwise", raw(store__backend="mooncake"), "backend 'mooncake': layerwise offload needs Memcache; give 'local', which stands in"),
    ("layerwise", raw(store__use_layerwise=False), "use_layerwise false"),
    ("protocols", raw(**SAME, source__memfabric_transfer_protocol="device_rdma"),
     "memfabric_transfer_protocol is 'device_rdma' on Prefill and 'sdma' on Decode: both sides must use the same"),
    ("transfer backends", raw(source__transfer_backend="memfabric"), "transfer_backend is 'memfabric' on Prefill and 'shm' on Decode"),
    ("stray protocol", raw(source__memfabric_transfer_protocol="sdma"), "protocol is memfabric's; leave it out"),
    ("block size", raw(prefill__block_size=32), "block_size is 32 on Prefill and 64 on Decode"),
    ("drafts", raw(mtp__num_speculative_tokens=2), "num_speculative_tokens is 0 on Prefill and 2 on Decode: .* give both the same"),
    ("backends", raw(store__backend="memcache"), "backend 'memcache': it needs an Ascend device"),
    ("backends", raw(**SAME), "transfer_backend 'memfabric': it needs an Ascend device"),
    ("device", raw(prefill__device="tpu"), "device is 'tpu': unknown; choose one of cpu"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "file", "why"), CASES, ids=[f"{n}-{rule}" for n, (rule, _, _) in enumerate(CASES)])
def test_what_is_not_supported_is_refused_by_its_own_rule(rule: str, file: dict[str, Any], why: str) -> None:
    settings = parse_settings(file)
    with pytest.raises(ConfigError, match=why) as refused:
        refuse(settings, SETTINGS_RULES)
    assert "\n" not in str(refused.value)
    others = {one.why(settings) for one in SETTINGS_RULES if one.name != rule}
    assert str(refused.value) not in others


def test_every_rule_has_a_case_and_the_demo_breaks_none() -> None:
    assert {rule for rule, _, _ in CASES} == {rule.name for rule in SETTINGS_RULES}
    refuse(parse_settings(raw()), SETTINGS_RULES)
    assert len({rule.about for rule in SETTINGS_RULES + MODEL_RULES}) == len(SETTINGS_RULES + MODEL_RULES)


def test_check_mode_allows_wider_types_and_nothing_else() -> None:
    for dtype in ("float32", "float64"):
        assert run_settings(None, {"--kv-dtype": dtype}, check_mode=True).prefill.dtype == dtype
        assert run_settings(raw(top__check_mode=True, prefill__dtype=dtype, decode__dtype=dtype), {}).check_mode
        with pytest.raises(ConfigError, match="need check mode"):
            run_settings(None, {"--kv-dtype": dtype})
    with pytest.raises(ConfigError, match="must be bfloat16"):
        run_settings(None, {"--kv-dtype": "int8"}, check_mode=True)


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_problem("cpu") == ""
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert ("torch finds no CUDA device" in device_problem("cuda")) is not there
        assert "device is 'cuda'" in device_problem("cuda")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, there=there: object() if there else None)
        assert ("torch_npu is not installed" in device_problem("npu")) is not there
        assert "device is 'npu'" in device_problem("npu")


MODELS: list[tuple[str, dict[str, Any], str]] = [
    ("model layout", {"compress_ratios": [4, 128]}, "compress_ratios is .*: hybrid KV cache layouts are not supported"),
    ("model layout", {"sliding_window": 128}, "sliding_window is 128: hybrid"),
    ("model layout", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types has full_attention, linear_attention: hybrid"),
    ("top-k", {"index_topk": None}, "index_topk is missing: .* a model with a top-k indexer"),
    ("latent", {"kv_lora_rank": None}, "kv_lora_rank is missing"),
]
GOOD = {"index_topk": 2048, "kv_lora_rank": 512, "sliding_window": None, "layer_types": ["indexed_attention"] * 3}


@pytest.mark.parametrize(("rule", "fields", "why"), MODELS)
def test_a_model_that_cannot_be_offloaded_is_refused(rule: str, fields: dict[str, Any], why: str) -> None:
    refuse_model(GOOD, "here")
    with pytest.raises(ConfigError, match=f"^here: {why}"):
        refuse_model(GOOD | fields, "here")
    refuse(GOOD | fields, [one for one in MODEL_RULES if one.name != rule])
    assert {name for name, _, _ in MODELS} == {one.name for one in MODEL_RULES}


def config(**changes: Any) -> RunConfig:
    return RunConfig(**({"requests": (Request("a", (1,) * 100),), "new_tokens": 28, "block_size": 64} | changes)).checked()


def test_a_host_pool_too_small_for_one_request_says_how_much_is_needed() -> None:
    need = 128 * 8 * 576 * 2
    assert (config().request_blocks, config().block_bytes) == (2, need / 2)
    assert config(model={"num_nextn_predict_layers": 1}).block_bytes == need / 2 // 8 * 9  # an MTP layer has a cache too
    assert config(host_memory_gib=need / 2**30).decode_blocks == 2
    with pytest.raises(ConfigError, match=r"0.001 GiB \(dram_size_per_dp_GB\): one request of 128 tokens needs 0.002 GiB; give at least"):
        config(host_memory_gib=0.001)


def test_there_are_no_more_blocks_than_the_host_pool_holds() -> None:
    two = (Request("a", (1,) * 100), Request("b", (1,) * 100))
    assert config(requests=two, concurrency=2).decode_blocks == 4
    assert config(requests=two, concurrency=2, host_memory_gib=0.002).decode_blocks == 3
