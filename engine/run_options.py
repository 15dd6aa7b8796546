"""From a configuration file and the options of `tidegate run` to what the workers are told.

Rules: an option is another name for a key of `settings` and passes that key's checks; an option wins over the file; what is given
nowhere is the demo's; nothing is refused later that can be refused here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tidegate.engine.config import Request, RunConfig
from tidegate.engine.errors import ConfigError
from tidegate.engine.keys import checked_value, refuse
from tidegate.engine.refusals import SETTINGS_RULES
from tidegate.engine.settings import (
    Connector,
    Instance,
    RemoteExtra,
    Settings,
    SparseConfig,
    SpeculativeConfig,
    StoreExtra,
    parse_settings,
)  # fmt: skip

__all__ = ["DEFAULTS", "KEYLESS", "OPTIONS", "Option", "default_deadline", "prompts_of", "run_config", "run_settings", "with_options"]

DEFAULTS: dict[str, Any] = {
    "prefill": {
        "block_size": 64, "enforce_eager": True,
        "kv_transfer_config": {
            "kv_connector": "MultiConnector", "kv_role": "kv_producer",
            "kv_connector_extra_config": {"connectors": [
                {"kv_connector": "SfaRemoteD2HConnector", "kv_connector_extra_config": {"transfer_backend": "shm"}},
                {"kv_connector": "AscendStoreConnector", "kv_connector_extra_config": {
                    "backend": "local", "use_layerwise": True, "layerwise_num_shared_buffers": 3,
                    "layerwise_independent_layers": [0]}},
            ]},
        },
    },
    "decode": {
        "block_size": 64,
        "kv_transfer_config": {
            "kv_connector": "SfaRemoteD2HConnector", "kv_role": "kv_consumer",
            "kv_connector_extra_config": {"transfer_backend": "shm"},
        },
        "additional_config": {"sparse_kv_offload_config": {"enabled": True, "topk_buffer_size": 128}},
    },
}  # fmt: skip
"""What `tidegate run` does without a file: the demo.  `tidegate config --example` prints it."""


LEAST_DEADLINE, SECONDS_A_TOKEN = 120.0, 0.1


class Option(NamedTuple):
    """The key that an option of `tidegate run` sets; if it is an instance's, on these sides."""

    kind: type[msgspec.Struct]
    key: str
    sides: tuple[str, ...] = ("prefill", "decode")


OPTIONS = {
    "--chunk": Option(Instance, "max_num_batched_tokens"),
    "--block-size": Option(Instance, "block_size"),
    "--kv-dtype": Option(Instance, "dtype"),
    "--device": Option(Instance, "device"),
    "--deadline": Option(Instance, "deadline_seconds"),
    "--concurrency": Option(Instance, "max_num_seqs", ("decode",)),
    "--prefill-concurrency": Option(Instance, "max_num_seqs", ("prefill",)),
    "--p-tp": Option(Instance, "tensor_parallel_size", ("prefill",)),
    "--d-tp": Option(Instance, "tensor_parallel_size", ("decode",)),
    "--d-dp": Option(Instance, "data_parallel_size", ("decode",)),
    "--mtp": Option(SpeculativeConfig, "num_speculative_tokens"),
    "--shared-buffers": Option(StoreExtra, "layerwise_num_shared_buffers"),
    "--independent-layers": Option(StoreExtra, "layerwise_independent_layers"),
    "--prefetch-layers": Option(StoreExtra, "layerwise_prefetch_layers"),
    "--hot-buffer": Option(SparseConfig, "topk_buffer_size"),
    "--host-memory": Option(SparseConfig, "dram_size_per_dp_GB"),
    "--port": Option(Connector, "kv_port"),
}


KEYLESS = {
    "--new-tokens": "new tokens", "--read-lease": "read lease", "--max-retries": "max retries", "--retry-delay": "retry delay",
    "--proxy-port": "proxy port", "--prefill-port": "prefill port", "--decode-port": "decode port", "--layers": "num_hidden_layers",
    "--prefills": "prefills", "--decodes": "decodes",
}  # fmt: skip
"""Options that set no key, and what errors call their value."""
_CALLED = {option: rf"\b{one.key}\b" for option, one in OPTIONS.items()} | {option: rf"\b{word} " for option, word in KEYLESS.items()} | {
    "--device": r"\bdevice is ", "--port": r"(?<!proxy )(?<!prefill )(?<!decode )\bport (is|and) ",
}  # fmt: skip


def with_options(why: str, typed: Collection[str]) -> str:
    """An error that begins with the options of `typed` whose values it speaks of, unless it names them itself."""
    meant = [option for option in typed if option not in why and re.search(_CALLED[option], why)]
    return f"{', '.join(meant)}: {why}" if meant else why


def run_settings(file: Mapping[str, Any] | None, options: Mapping[str, Any], *, check_mode: bool = False) -> Settings:
    """The settings of `file` (plain data; None: DEFAULTS) with `options` (name -> value, those given only), checked. ConfigError."""
    settings = parse_settings(DEFAULTS if file is None else file)
    for name, value in options.items():
        settings = _set(settings, name, value)
    if check_mode:
        settings = msgspec.structs.replace(settings, check_mode=True)
    refuse(settings, SETTINGS_RULES)
    return settings


def _set(s: Settings, option: str, given: Any) -> Settings:
    kind, key, sides = OPTIONS[option]
    change = {key: checked_value(kind, key, given, option)}
    replace = msgspec.structs.replace
    if kind is Instance:
        return replace(s, **{side: replace(getattr(s, side), **change) for side in sides})
    if kind is SpeculativeConfig:
        both = {side: replace(getattr(s, side).speculative_config, **change) for side in sides}
        return replace(s, **{side: replace(getattr(s, side), speculative_config=one) for side, one in both.items()})
    if kind is StoreExtra:
        if s.source.store is None:
            raise ConfigError(f"{option} is given and prefill has no AscendStoreConnector: add it, or leave {option} out")
        return replace(s, source=replace(s.source, store=replace(s.store, **change)))
    if kind is Connector:
        return replace(s, target=replace(s.target, port=change["kv_port"]))
    additional = replace(s.decode.additional_config, sparse_kv_offload_config=replace(s.sparse, **change))
    return replace(s, decode=replace(s.decode, additional_config=additional))


def run_config(settings: Settings, requests: tuple[Request, ...], **rest: Any) -> RunConfig:
    """What the workers are told: `settings` flattened, and `rest` (other fields of RunConfig) as it is. ConfigError."""
    p, store, drafts = settings.prefill, settings.store, settings.decode.speculative_config.num_speculative_tokens
    seeded = {"num_nextn_predict_layers": 1} if drafts and not rest.get("checkpoint") else {}  # a checkpoint says it itself
    return RunConfig(**(rest | {
        "requests": requests,
        "model": seeded | rest.get("model", {}) | {"dtype": p.dtype},
        "drafts": drafts,
        "chunk": p.long_prefill_token_threshold or p.max_num_batched_tokens,
        "step_tokens": p.max_num_batched_tokens,
        "prefill_lanes": p.max_num_seqs or 1,
        "block_size": p.block_size,
        "num_blocks": p.num_gpu_blocks_override or 0,
        "shared_buffers": store.layerwise_num_shared_buffers,
        "independent_layers": store.layerwise_independent_layers,
        "prefetch_layers": store.layerwise_prefetch_layers,
        "p_tp": p.tensor_parallel_size,
        "d_tp": settings.decode.tensor_parallel_size,
        "d_dp": settings.decode.data_parallel_size,
        "hot_buffer": settings.sparse.topk_buffer_size,
        "host_memory_gib": settings.sparse.dram_size_per_dp_GB,
        "port": settings.target.port,
        "concurrency": settings.decode.max_num_seqs or max(1, len(requests)),
        "wait_limit_seconds": min(p.wait_limit_seconds, settings.decode.wait_limit_seconds),
        "read_retries": (settings.target.remote or RemoteExtra()).data_read_retries,
        "preempt_after": settings.decode.preempt_after_tokens,
        "prefill_preempt_after": p.preempt_after_tokens,
        "deadline_seconds": settings.decode.deadline_seconds or default_deadline(requests),
    })).checked()  # fmt: skip


def default_deadline(requests: Sequence[Request]) -> float:
    """Seconds that a request may wait for its KV: prompts wait for one another, so what all of them take on a slow core."""
    return max(LEAST_DEADLINE, SECONDS_A_TOKEN * sum(len(request.prompt) for request in requests))


def prompts_of(tokens: Sequence[int], count: int, block_size: int) -> tuple[Request, ...]:
    """`count` different prompts of one text: all of it; a part shorter than a block; exactly a block; then all but 37, 74, ... tokens.

    ConfigError for a text that has no token, and for no prompt.
    """
    if count < 1:
        raise ConfigError(f"--prompts is {count}: give at least 1")
    if not tokens:
        raise ConfigError("the prompt file is empty: a prompt has at least one token")
    short, whole = max(1, block_size * 5 // 8), len(tokens)
    lengths = [whole, short, block_size] + [max(1, whole - 37 * extra) for extra in range(1, count - 2)]
    firsts = [0, 101, 211] + [37 * extra for extra in range(1, count - 2)]
    spans = [(min(first, max(0, whole - length)), length) for first, length in zip(firsts, lengths, strict=True)]
    return tuple(Request(f"request-{n}", tuple(tokens[at : at + length])) for n, (at, length) in enumerate(spans[:count], 1))
