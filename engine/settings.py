"""What a user configures: one Prefill and one Decode instance, under the names that vllm-ascend gives the same options.

Rules: keys, shapes and defaults are upstream's wherever upstream has the option (docs/configuration.md lists each difference);
everything is read whole and free of contradiction before anything uses it (`refusals`); the instances may come from a file, or be
put together from the command line's options, and pass the same checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from tidegate.engine.errors import ConfigError
from tidegate.engine.keys import Key, nearest, parse

__all__ = ["AdditionalConfig", "Connector", "Instance", "MultiExtra", "RemoteExtra", "Settings", "SparseConfig", "SpeculativeConfig",
           "StoreExtra", "Transfer", "parse_settings", "read_settings"]  # fmt: skip

STORE, REMOTE, MULTI = "AscendStoreConnector", "SfaRemoteD2HConnector", "MultiConnector"
ALIASES = {"MooncakeConnectorStoreV1": STORE}
FOREIGN = ("MooncakeLayerwiseConnector", "MooncakeConnectorV1", "MooncakeHybridConnector", "UCMConnector", "OffloadingConnector",
           "SimpleCPUOffloadConnector", "RecomputeCPUOffloadConnector", "LayerwisePullConnector")  # fmt: skip
"""Upstream's connectors that Tidegate has not."""
PROTOCOLS = ("sdma", "device_rdma", "device_urma")


def _least(least: int) -> Any:
    return lambda value: value is None or value >= least


def _only(*values: object) -> Any:
    return lambda value: value in values


NO = _only(False)


class StoreExtra(msgspec.Struct, frozen=True, kw_only=True):
    """`kv_connector_extra_config` of AscendStoreConnector: layer buffers and the host KV pool of Prefill."""

    backend: Annotated[str, Key("`local`, which stands in for Memcache within one host, or `memcache`", "`mooncake`; layerwise needs "
                                "`memcache`")] = "local"  # fmt: skip
    use_layerwise: Annotated[bool, Key("true to load and save layer by layer; needed for shared buffers")] = False
    layerwise_num_shared_buffers: Annotated[int | None, Key(
        "an integer of at least 1; leave it out to give every layer its buffer", good=_least(1))] = None  # fmt: skip
    layerwise_independent_layers: Annotated[tuple[int, ...] | Literal["all"], Key(
        'a list of layer numbers (negative ones count from the last; an empty one, or the option\'s "none": no layer), '
        'or "all"')] = (0,)  # fmt: skip
    layerwise_prefetch_layers: Annotated[int | None, Key(
        "an integer from 0 to below the number of shared buffers; left out: 1, which with one buffer waits until that is free; steps are "
        "claimed one at a time, so that more than 1 is as 1", "1, or min(B, 8)", _least(0))] = None  # fmt: skip
    layerwise_max_transfer_blocks: Annotated[int, Key("must be 0: a copy has no limit in this release", good=_only(0))] = 0
    layerwise_max_transfer_bytes: Annotated[int, Key("must be 0: a copy has no limit in this release", good=_only(0))] = 0
    discard_partial_chunks: Annotated[bool, Key(
        "must be false: shared buffers keep nothing, so partial blocks are saved too", "true in code, false in its layerwise guide",
        NO)] = False  # fmt: skip
    h2d_stagger_us: Annotated[int, Key("must be 0: the copies of several ranks are not staggered", good=_only(0))] = 0
    lookup_rpc_port: Annotated[int, Key("must be 0: the pool is looked up in place", good=_only(0))] = 0
    consumer_is_to_load: Annotated[bool, Key("must be false: Decode receives its KV from Prefill", good=NO)] = False
    consumer_is_to_put: Annotated[bool, Key("must be false: Decode saves nothing to the pool", good=NO)] = False
    save_decode_cache: Annotated[bool, Key("must be false: Decode saves nothing to the pool", good=NO)] = False
    load_async: Annotated[bool, Key("must be false: layers are always loaded while others compute", good=NO)] = False
    prefill_pp_size: Annotated[int, Key("must be 1: pipeline parallelism (PP) is not supported", good=_only(1))] = 1
    prefill_pp_layer_partition: Annotated[str | None, Key(
        "must be left out: pipeline parallelism (PP) is not supported", good=_only(None))] = None  # fmt: skip


class RemoteExtra(msgspec.Struct, frozen=True, kw_only=True):
    """`kv_connector_extra_config` of SfaRemoteD2HConnector: Decode's remote reads."""

    transfer_backend: Annotated[str, Key("`shm`, within one host, or `memfabric`", "required; only `memfabric`",
                                         _only("shm", "memfabric"))] = "shm"  # fmt: skip
    use_layerwise: Annotated[bool, Key("must be true: Decode reads layer by layer", good=_only(True))] = True
    memfabric_transfer_protocol: Annotated[str | None, Key(
        f"one of {', '.join(PROTOCOLS)}, for memfabric only; left out: sdma", "`sdma`", _only(None, *PROTOCOLS))] = None  # fmt: skip
    data_read_retries: Annotated[int, Key(
        "Decode's: further tries of a read that failed and of which nothing lands any more, 0 (its request fails at once) or more", "-",
        _least(0))] = 0  # fmt: skip


class SparseConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`sparse_kv_offload_config`: Decode's host pool and hot buffers."""

    enabled: Annotated[bool, Key("true on Decode, false on Prefill")] = False
    topk_buffer_size: Annotated[int, Key(
        "rows of a hot buffer: at least the model's index_topk and a multiple of block_size", good=_least(1))] = 4096  # fmt: skip
    dram_size_per_dp_GB: Annotated[float, Key(  # noqa: N815 - upstream's name
        "host memory for main KV in GiB: more than 0, and enough for one request", good=lambda value: value > 0)] = 128  # fmt: skip
    keep_device_kv_cache: Annotated[bool, Key(
        "must be false: a full device cache is a path for debugging, without Prefill and Decode apart", good=NO)] = False  # fmt: skip
    use_fused_overlap: Annotated[bool, Key("must be false: there is no fused operator", good=NO)] = False
    host_backend: Annotated[str, Key("`local`: pages of this host", "`memfabric`", _only("local"))] = "local"


class AdditionalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`additional_config` of an instance."""

    sparse_kv_offload_config: Annotated[SparseConfig, Key("an object, see below")] = SparseConfig()


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`speculative_config`: tokens that Decode guesses, and verifies several at a time."""

    method: Annotated[str, Key("`mtp`: the model's own MTP layer drafts", "left out, or one of many",
                               _only("mtp", "deepseek_mtp"))] = "mtp"  # fmt: skip
    num_speculative_tokens: Annotated[int, Key(
        "tokens drafted for each request in a forward, at least 0; more than 0 needs a model with an MTP layer, and is the same on both "
        "sides", "required", _least(0))] = 0  # fmt: skip


class Connector(msgspec.Struct, frozen=True, kw_only=True):
    """`kv_transfer_config`, and each entry of MultiConnector's `connectors`."""

    kv_connector: Annotated[str, Key(f"{MULTI}, {STORE} or {REMOTE}")] = ""
    kv_role: Annotated[str, Key("kv_producer for Prefill, kv_consumer for Decode; an entry of MultiConnector may leave it out",
                                good=_only("", "kv_producer", "kv_consumer", "kv_both"))] = ""  # fmt: skip
    kv_port: Annotated[int, Key("Decode's control port, 1 to 65535; 0 for any free one", "required on Decode",
                                lambda value: 0 <= value < 65536)] = 0  # fmt: skip
    engine_id: Annotated[str, Key("any name; left out: one is made")] = ""
    kv_load_failure_policy: Annotated[str, Key("must be `fail`: a request whose KV cannot be loaded fails", good=_only("fail"))] = "fail"
    kv_connector_extra_config: Annotated[dict[str, Any], Key("an object, see the connectors below")] = {}


class MultiExtra(msgspec.Struct, frozen=True, kw_only=True):
    """`kv_connector_extra_config` of MultiConnector."""

    connectors: Annotated[list[dict[str, Any]], Key("the connectors, in any order", good=lambda value: len(value) > 0)] = []


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """`kv_transfer_config` with its connectors sorted out; foreign: names of connectors that Tidegate has not."""

    role: str = ""
    port: int = 0
    store: StoreExtra | None = None
    remote: RemoteExtra | None = None
    foreign: tuple[str, ...] = ()


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One instance's options, as on the command line of a vLLM server."""

    block_size: Annotated[int, Key("tokens of a KV block, at least 1, the same on both sides", good=_least(1))] = 128
    max_num_batched_tokens: Annotated[int, Key(
        "Prefill's: tokens that are computed in one step, of one request or of several, at least 1", "2048 or more", _least(1))] = 512
    long_prefill_token_threshold: Annotated[int, Key(
        "Prefill's: tokens of one chunk, so the most of one request in a step, at most max_num_batched_tokens; 0: as many", "0",
        _least(0))] = 0  # fmt: skip
    max_num_seqs: Annotated[int | None, Key(
        "requests at once, at least 1. Decode's left out: all that are given; Prefill's, the requests of one step: 1", "256",
        _least(1))] = None  # fmt: skip
    deadline_seconds: Annotated[float | None, Key(
        "Decode's: seconds until a request whose KV is not complete fails, more than 0; left out: 120, or 0.1 for each token of all "
        "prompts", "-", lambda value: value is None or value > 0)] = None  # fmt: skip
    wait_limit_seconds: Annotated[float, Key(
        "seconds after which what waits (a slot for Decode's answer, a prompt for memory) is said in the log and makes /health false, more "
        "than 0; the smaller of both sides' counts", "-", lambda value: value > 0)] = 30.0  # fmt: skip
    preempt_after_tokens: Annotated[int, Key(
        "tokens after which who waits for memory may have it, 0 or more; 0: never. Decode's: that a request makes before it gives its "
        "place away; Prefill's: of a prompt, that it computes before it gives its blocks away, between two chunks", "-", _least(0))] = 0
    num_gpu_blocks_override: Annotated[int | None, Key(
        "blocks of each layer buffer, at least 1; left out: what the prompts at once need", "what memory allows",
        _least(1))] = None  # fmt: skip
    dtype: Annotated[str, Key("bfloat16; float32 or float64 in check mode", "auto")] = "bfloat16"
    kv_cache_dtype: Annotated[str, Key("`auto` (as dtype) or the same as dtype: rows are kept as they were computed")] = "auto"
    enforce_eager: Annotated[bool, Key("true where layers share buffers")] = False
    tensor_parallel_size: Annotated[int, Key("at least 1; Prefill's a multiple of Decode's", good=_least(1))] = 1
    data_parallel_size: Annotated[int, Key(
        "at least 1: DP ranks of Decode, each with a pool and ports of its own; Prefill's is 1", good=_least(1))] = 1  # fmt: skip
    pipeline_parallel_size: Annotated[int, Key("must be 1: pipeline parallelism (PP) is not supported", good=_only(1))] = 1
    prefill_context_parallel_size: Annotated[int, Key("must be 1: context parallelism (CP) is not supported", good=_only(1))] = 1
    decode_context_parallel_size: Annotated[int, Key("must be 1: context parallelism (CP) is not supported", good=_only(1))] = 1
    model_runner: Annotated[str, Key(
        "must be `v1`: Sparse Decode Offload needs Model Runner V1", "`VLLM_USE_V2_MODEL_RUNNER`", _only("v1"))] = "v1"  # fmt: skip
    device: Annotated[str, Key("`cpu`; `npu` or `cuda` where this machine and release have it", "`npu`")] = "cpu"
    speculative_config: Annotated[SpeculativeConfig, Key("an object, see below")] = SpeculativeConfig()
    kv_transfer_config: Annotated[dict[str, Any], Key("an object, see below")] = {}
    additional_config: Annotated[AdditionalConfig, Key("an object, see below")] = AdditionalConfig()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Both instances, and the transfer of each with its connectors sorted out."""

    prefill: Instance
    decode: Instance
    source: Transfer
    target: Transfer
    check_mode: bool = False

    @property
    def sparse(self) -> SparseConfig:
        return self.decode.additional_config.sparse_kv_offload_config

    @property
    def store(self) -> StoreExtra:
        return self.source.store or StoreExtra()


def read_settings(path: Path) -> dict[str, Any]:
    """The plain data of a JSON file, for `parse_settings`. ConfigError."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}; give a readable file with --config") from None
    except ValueError as error:
        raise ConfigError(f"configuration file {path} is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"configuration file {path} holds no object: give {{\"prefill\": ..., \"decode\": ...}}")
    return data


def parse_settings(raw: Mapping[str, Any]) -> Settings:
    """Settings of {"prefill": instance, "decode": instance, "check_mode": bool}; what is left out has its default. ConfigError."""
    if unknown := sorted(set(raw) - {"prefill", "decode", "check_mode"}):
        raise ConfigError(f"the configuration has no key {unknown[0]!r}: {nearest(unknown[0], ('prefill', 'decode', 'check_mode'))}")
    if not isinstance(raw.get("check_mode", False), bool):
        raise ConfigError(f"check_mode is {raw['check_mode']!r}: give true or false")
    prefill, decode = (parse(Instance, raw.get(role, {}), role) for role in ("prefill", "decode"))
    return Settings(
        prefill=prefill, decode=decode, check_mode=raw.get("check_mode", False),
        source=_transfer(prefill.kv_transfer_config, "prefill.kv_transfer_config"),
        target=_transfer(decode.kv_transfer_config, "decode.kv_transfer_config"),
    )  # fmt: skip


def _transfer(raw: Mapping[str, Any], path: str) -> Transfer:
    top = parse(Connector, raw, path)
    connectors = {path: top}
    if top.kv_connector == MULTI:
        inner = f"{path}.kv_connector_extra_config"
        found = parse(MultiExtra, top.kv_connector_extra_config, inner).connectors
        connectors = {f"{inner}.connectors[{n}]": parse(Connector, one, f"{inner}.connectors[{n}]") for n, one in enumerate(found)}
    out = Transfer(role=_agreed({path: top} | connectors, "kv_role"), port=_agreed({path: top} | connectors, "kv_port"))
    for where, one in connectors.items():
        out = _with(out, one, where)
    return out


def _agreed(connectors: Mapping[str, Connector], name: str) -> Any:
    """The one value that is given; ConfigError for two."""
    given = {where: value for where, one in connectors.items() if (value := getattr(one, name))}
    for where, value in given.items():
        if value != (first := next(iter(given.values()))):
            raise ConfigError(f"{where}.{name} is {value!r} and {next(iter(given))}.{name} is {first!r}: give one of them, once")
    return next(iter(given.values()), "" if name == "kv_role" else 0)


def _with(out: Transfer, one: Connector, where: str) -> Transfer:
    name, inner = ALIASES.get(one.kv_connector, one.kv_connector), f"{where}.kv_connector_extra_config"
    if not name and not one.kv_connector_extra_config:
        return out
    if (name == STORE and out.store) or (name == REMOTE and out.remote):
        raise ConfigError(f"{where} is a second {name}: an instance has one; remove either")
    if name == STORE:
        return msgspec.structs.replace(out, store=parse(StoreExtra, one.kv_connector_extra_config, inner))
    if name == REMOTE:
        return msgspec.structs.replace(out, remote=parse(RemoteExtra, one.kv_connector_extra_config, inner))
    if name in FOREIGN:
        return msgspec.structs.replace(out, foreign=(*out.foreign, name))
    if name == MULTI:
        raise ConfigError(f"{where} is a {MULTI} within another: list its connectors in the outer one")
    raise ConfigError(f"{where}.kv_connector is {name!r}: {nearest(name, (MULTI, STORE, REMOTE))}")
