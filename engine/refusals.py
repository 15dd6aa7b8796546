"""What is not supported, by name: the boundaries of the design, and settings that contradict each other.

Rules: everything here is known from the settings alone, so that it is refused before anything is allocated or started; each rule is
one line of docs/configuration.md and one test, and none is the shadow of another.  What a single value may be stands at its key
(`settings`); what depends on the model or the prompts stands in `config`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from tidegate.engine.errors import ConfigError
from tidegate.engine.keys import Rule, refuse
from tidegate.engine.settings import REMOTE, STORE, Settings

__all__ = ["CHECK_DTYPES", "DEVICES", "KV_DTYPE", "MODEL_RULES", "SETTINGS_RULES", "device_problem", "refuse_model"]

KV_DTYPE, CHECK_DTYPES = "bfloat16", ("float32", "float64")
DEVICES = ("cpu",)
"""The devices that this release's data path runs on."""


def device_problem(device: str) -> str:
    """Why nothing can run on `device` here; "" if it can."""
    if device in DEVICES:
        return ""
    here = f"choose one of {', '.join(DEVICES)}"
    if device == "npu":
        if importlib.util.find_spec("torch_npu") is None:
            return f"device is 'npu': torch_npu is not installed here; {here}"
        return f"device is 'npu': this release's data path runs on {', '.join(DEVICES)} only; {here}"
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            return f"device is 'cuda': torch finds no CUDA device on this machine; {here}"
        return f"device is 'cuda': this release's data path runs on {', '.join(DEVICES)} only; {here}"
    return f"device is {device!r}: unknown; {here}"


def _device(s: Settings) -> str:
    return device_problem(s.prefill.device) or device_problem(s.decode.device)


def _dtype(s: Settings) -> str:
    for name, one in (("prefill", s.prefill), ("decode", s.decode)):
        if one.dtype in CHECK_DTYPES and not s.check_mode:
            return (f"{name}.dtype is {one.dtype!r}: the main KV cache must be {KV_DTYPE}; {' and '.join(CHECK_DTYPES)} are for checks "
                    "of arithmetic only, and need check mode (check_mode, --check-mode)")  # fmt: skip
        if one.dtype not in (KV_DTYPE, *CHECK_DTYPES):
            return (f"{name}.dtype is {one.dtype!r}: the main KV cache must be {KV_DTYPE}; give that, or {' or '.join(CHECK_DTYPES)} in "
                    "check mode (check_mode, --check-mode)")  # fmt: skip
    return ""


def _quantized(s: Settings) -> str:
    for name, one in (("prefill", s.prefill), ("decode", s.decode)):
        if one.kv_cache_dtype not in ("auto", one.dtype):
            return (f"{name}.kv_cache_dtype is {one.kv_cache_dtype!r} and dtype {one.dtype!r}: the main KV cache is kept as it was "
                    "computed, for quantized ones (C8) are not supported; give 'auto'")  # fmt: skip
    return ""


def _colocation(s: Settings) -> str:
    for name, one, role in (("prefill", s.source, "kv_producer"), ("decode", s.target, "kv_consumer")):
        if one.role == "kv_both":
            return f"{name} has kv_role 'kv_both': Prefill and Decode in one instance (P/D colocation) is not supported; give {role!r}"
    return ""


def _roles(s: Settings) -> str:
    for name, one, role in (("prefill", s.source, "kv_producer"), ("decode", s.target, "kv_consumer")):
        if one.role not in (role, "kv_both"):
            return f"{name} has kv_role {one.role!r}: give {role!r}"
    return ""


def _hybrid(s: Settings) -> str:
    if "MooncakeHybridConnector" in s.source.foreign + s.target.foreign:
        return f"kv_connector is 'MooncakeHybridConnector': hybrid KV cache layouts are not supported; use {REMOTE}"
    return ""


def _ungated(s: Settings) -> str:
    foreign = [name for name in s.source.foreign if name != "MooncakeHybridConnector"]
    if foreign and s.store.layerwise_num_shared_buffers:
        return (f"{foreign[0]} is combined with layerwise_num_shared_buffers {s.store.layerwise_num_shared_buffers}: it has no "
                f"completion gate for each buffer, so a buffer could be overwritten while it is sent; use {REMOTE}")  # fmt: skip
    return ""


def _foreign(s: Settings) -> str:
    used = s.target.foreign + (() if s.store.layerwise_num_shared_buffers else s.source.foreign)
    foreign = [name for name in used if name != "MooncakeHybridConnector"]
    return f"kv_connector is {foreign[0]!r}: Tidegate has {STORE} and {REMOTE}; use those" if foreign else ""


def _connectors(s: Settings) -> str:
    if s.source.store is None or s.source.remote is None:
        return f"prefill needs both {STORE} and {REMOTE}: list them in a MultiConnector"
    if s.target.remote is None:
        return f"decode needs {REMOTE}: set decode.kv_transfer_config.kv_connector"
    if s.target.store is not None:
        return f"decode has {STORE}: Decode receives its KV from Prefill, not from a pool; remove it"
    return ""


def _eager(s: Settings) -> str:
    if s.store.layerwise_num_shared_buffers and not s.prefill.enforce_eager:
        return ("prefill.enforce_eager is false and layerwise_num_shared_buffers is set: a captured graph replays without asking the "
                "gates, so shared buffers need eager mode; set enforce_eager, or leave layerwise_num_shared_buffers out")  # fmt: skip
    return ""


def _layerwise(s: Settings) -> str:
    store = s.store
    if store.backend not in ("local", "memcache"):
        return (f"{STORE} has backend {store.backend!r}: layerwise offload needs Memcache; give 'local', which stands in for it within "
                "one host, or 'memcache'")  # fmt: skip
    if not store.use_layerwise:
        return f"{STORE} has use_layerwise false: Prefill loads and saves layer by layer; set it to true"
    return ""


def _backends(s: Settings) -> str:
    if s.store.backend == "memcache":
        return f"{STORE} has backend 'memcache': it needs an Ascend device, and this release has 'local' only; give 'local'"
    for name, one in (("prefill", s.source), ("decode", s.target)):
        if one.remote and one.remote.transfer_backend == "memfabric":
            return (f"{name} has transfer_backend 'memfabric': it needs an Ascend device, and this release has 'shm' only; give 'shm', "
                    "and leave memfabric_transfer_protocol out")  # fmt: skip
    return ""


def _same_backend(s: Settings) -> str:
    return _equal(s, "transfer_backend", "shm")


def _protocols(s: Settings) -> str:
    return _equal(s, "memfabric_transfer_protocol", "sdma")


def _equal(s: Settings, name: str, default: str) -> str:
    p, d = (getattr(one.remote, name, None) or default for one in (s.source, s.target))
    return "" if p == d else f"{name} is {p!r} on Prefill and {d!r} on Decode: both sides must use the same; change either"


def _stray_protocol(s: Settings) -> str:
    for name, one in (("prefill", s.source), ("decode", s.target)):
        if one.remote and one.remote.transfer_backend == "shm" and one.remote.memfabric_transfer_protocol:
            return (f"{name} has memfabric_transfer_protocol {one.remote.memfabric_transfer_protocol!r} and transfer_backend 'shm': "
                    "the protocol is memfabric's; leave it out")  # fmt: skip
    return ""


def _sparse(s: Settings) -> str:
    if s.prefill.additional_config.sparse_kv_offload_config.enabled:
        return "prefill has sparse_kv_offload_config enabled: Sparse Decode Offload is Decode's alone; remove it"
    if not s.sparse.enabled:
        return "decode has sparse_kv_offload_config.enabled false: Decode keeps main KV in host memory; set it to true"
    return ""


def _topology(s: Settings) -> str:
    p, d = s.prefill.tensor_parallel_size, s.decode.tensor_parallel_size
    if p < d:
        return f"tensor_parallel_size is {p} on Prefill and {d} on Decode: Prefill's must be at least Decode's; raise Prefill's to {d}"
    if p % d:
        return (f"tensor_parallel_size is {p} on Prefill and {d} on Decode: Decode's must divide Prefill's; choose {d}, {2 * d}, "
                f"{3 * d}, ... for Prefill")  # fmt: skip
    return ""


def _one_dp_rank(s: Settings) -> str:
    if (size := s.prefill.data_parallel_size) > 1:
        return f"prefill.data_parallel_size is {size}: Prefill has one DP rank; give 1, and run as many Prefills as you need"
    return ""


def _blocks(s: Settings) -> str:
    p, d = s.prefill.block_size, s.decode.block_size
    return "" if p == d else f"block_size is {p} on Prefill and {d} on Decode: Decode copies whole blocks; give both one size"


def _chunk(s: Settings) -> str:
    chunk, step = s.prefill.long_prefill_token_threshold, s.prefill.max_num_batched_tokens
    if chunk <= step:
        return ""
    return (f"long_prefill_token_threshold is {chunk} and max_num_batched_tokens {step}: a step holds a chunk at least; give at most "
            f"{step}, or 0")  # fmt: skip


def _drafts(s: Settings) -> str:
    p, d = (one.speculative_config.num_speculative_tokens for one in (s.prefill, s.decode))
    return "" if p == d else (f"num_speculative_tokens is {p} on Prefill and {d} on Decode: what the MTP layer drafts from, Prefill "
                              "computes; give both the same")  # fmt: skip


SETTINGS_RULES: tuple[Rule[Settings], ...] = (
    Rule("hybrid", "hybrid KV cache layouts", _hybrid),
    Rule("ungated", "shared buffers with a connector that has no completion gate for each buffer (MooncakeLayerwiseConnector)", _ungated),
    Rule("foreign", "connectors that Tidegate has not", _foreign),
    Rule("colocation", "P/D colocation (`kv_both`)", _colocation),
    Rule("roles", "a Prefill that is no producer, a Decode that is no consumer", _roles),
    Rule("connectors", "a connector that is missing, or on the wrong side", _connectors),
    Rule("sparse", "Sparse Decode Offload on Prefill, or off on Decode", _sparse),
    Rule("topology", "a Prefill TP below Decode's, or that Decode's does not divide", _topology),
    Rule("one DP rank", "more than one data-parallel rank on a side (this release)", _one_dp_rank),
    Rule("dtype", "a main KV cache other than bfloat16 (float32 and float64 in check mode)", _dtype),
    Rule("quantized", "a quantized main KV cache", _quantized),
    Rule("eager", "graph mode with shared buffers", _eager),
    Rule("layerwise", "layerwise offload over another pool than Memcache, or its stand-in `local`", _layerwise),
    Rule("protocols", "unequal `memfabric_transfer_protocol` on the two sides", _protocols),
    Rule("transfer backends", "unequal `transfer_backend` on the two sides", _same_backend),
    Rule("stray protocol", "a memfabric protocol without memfabric", _stray_protocol),
    Rule("block size", "unequal `block_size` on the two sides", _blocks),
    Rule("chunk", "chunks that are longer than a step", _chunk),
    Rule("drafts", "unequal `num_speculative_tokens` on the two sides", _drafts),
    Rule("backends", "`memcache` and `memfabric` (this release)", _backends),
    Rule("device", "a device that is not there", _device),
)


def _model_hybrid(fields: Mapping[str, Any]) -> str:
    for name in ("compress_ratios", "sliding_window"):
        if fields.get(name):
            return f"{name} is {fields[name]!r}: hybrid KV cache layouts are not supported; use a model whose layers are all alike"
    kinds = sorted(set(fields.get("layer_types") or ()))
    return f"layer_types has {', '.join(kinds)}: hybrid KV cache layouts are not supported" if len(kinds) > 1 else ""


def _model_topk(fields: Mapping[str, Any]) -> str:
    if fields.get("index_topk"):
        return ""
    return "index_topk is missing: Sparse Decode Offload needs a model with a top-k indexer (DeepSeek-V3.2, GLM-5)"


def _model_mla(fields: Mapping[str, Any]) -> str:
    if fields.get("kv_lora_rank"):
        return ""
    return "kv_lora_rank is missing: Sparse Decode Offload needs a model with latent attention (MLA)"


MODEL_RULES: tuple[Rule[Mapping[str, Any]], ...] = (
    Rule("model layout", "models with hybrid KV cache layouts", _model_hybrid),
    Rule("top-k", "models without a top-k indexer", _model_topk),
    Rule("latent", "models without MLA", _model_mla),
)


def refuse_model(fields: Mapping[str, Any], where: str) -> None:
    """ConfigError if a model with this Hugging Face config.json cannot be offloaded; where: names it in the error."""
    try:
        refuse(fields, MODEL_RULES)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
