"""Settings: upstream's shapes are read, and what is unknown, mistyped or contradictory is refused by its whole path."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from settings_tools import EXTRA, raw
from typer.testing import CliRunner

from tidegate.engine.cli import app
from tidegate.engine.cli.run import command
from tidegate.engine.config import Request, RunConfig
from tidegate.engine.config_page import page
from tidegate.engine.errors import ConfigError
from tidegate.engine.keys import documented, keys_of, parse
from tidegate.engine.run_options import KEYLESS, OPTIONS, prompts_of, run_config, run_settings, with_options
from tidegate.engine.settings import (
    Connector,
    Instance,
    RemoteExtra,
    SparseConfig,
    SpeculativeConfig,
    StoreExtra,
    parse_settings,
    read_settings,
)

ROOT = Path(__file__).resolve().parents[2]


def test_upstreams_forms_of_the_same_configuration_are_read() -> None:
    swapped = raw()
    swapped["prefill"]["kv_transfer_config"][EXTRA]["connectors"].reverse()
    assert run_settings(swapped, {}).source == run_settings(None, {}).source
    old = raw()
    old["prefill"]["kv_transfer_config"][EXTRA]["connectors"][1]["kv_connector"] = "MooncakeConnectorStoreV1"
    assert run_settings(old, {}).source == run_settings(None, {}).source
    inner = raw(p__kv_role=...)
    for one in inner["prefill"]["kv_transfer_config"][EXTRA]["connectors"]:
        one["kv_role"] = "kv_producer"
    assert run_settings(inner, {}).source.role == "kv_producer"
    assert run_settings(raw(d__kv_port=20050), {}).target.port == 20050


def test_what_is_left_out_has_upstreams_default() -> None:
    assert StoreExtra().layerwise_independent_layers == (0,)
    assert StoreExtra().layerwise_num_shared_buffers is None
    assert (StoreExtra().use_layerwise, RemoteExtra().use_layerwise, Instance().enforce_eager) == (False, True, False)
    assert (SparseConfig().enabled, SparseConfig().topk_buffer_size, SparseConfig().dram_size_per_dp_GB) == (False, 4096, 128)
    assert (Instance().block_size, Connector().kv_load_failure_policy) == (128, "fail")


def test_every_default_is_good_by_its_own_rule() -> None:
    for kind in (Instance, Connector, StoreExtra, RemoteExtra, SparseConfig, SpeculativeConfig):
        for name, default, key in documented(kind):
            assert key.good(default), f"{kind.__name__}.{name}"
            assert key.rule


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"store__layerwise_num_shared_buffer": 3}, r"connectors\[1\].kv_connector_extra_config has no key 'layerwise_num_shared_buffer': "
                                                "the nearest known one is 'layerwise_num_shared_buffers'"),
    ({"sparse__topk_bufer_size": 3}, "sparse_kv_offload_config has no key 'topk_bufer_size': the nearest known one is 'topk_buffer_size'"),
    ({"prefill__blocksize": 3}, "prefill has no key 'blocksize': the nearest known one is 'block_size'"),
    ({"target__protocol": "sdma"}, "has no key 'protocol': known are data_read_retries, memfabric_transfer_protocol"),
    ({"d__kv_prot": 1}, "decode.kv_transfer_config has no key 'kv_prot': the nearest known one is 'kv_port'"),
    ({"top__decoder": {}}, "the configuration has no key 'decoder': the nearest known one is 'decode'"),
    ({"d__kv_connector": "SfaRemoteD2H"}, "kv_connector is 'SfaRemoteD2H': the nearest known one is 'SfaRemoteD2HConnector'"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "why"), UNKNOWN, ids=[next(iter(changes)) for changes, _ in UNKNOWN])
def test_an_unknown_name_is_refused_with_the_nearest_known_one(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_settings(raw(**changes))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"store__layerwise_num_shared_buffers": True}, "layerwise_num_shared_buffers is True: an integer of at least 1"),
    ({"store__layerwise_num_shared_buffers": 0}, "layerwise_num_shared_buffers is 0"),
    ({"store__layerwise_num_shared_buffers": "3"}, "layerwise_num_shared_buffers is '3'"),
    ({"store__layerwise_independent_layers": "some"}, "layerwise_independent_layers is 'some': a list of layer numbers"),
    ({"store__layerwise_independent_layers": [True]}, r"layerwise_independent_layers is \[True\]"),
    ({"store__layerwise_independent_layers": 0}, "layerwise_independent_layers is 0"),
    ({"store__layerwise_prefetch_layers": -1}, "layerwise_prefetch_layers is -1: an integer from 0"),
    ({"store__layerwise_max_transfer_blocks": 1}, "layerwise_max_transfer_blocks is 1: must be 0"),
    ({"store__layerwise_max_transfer_bytes": 1}, "layerwise_max_transfer_bytes is 1: must be 0"),
    ({"store__discard_partial_chunks": True}, "discard_partial_chunks is True: must be false"),
    ({"store__h2d_stagger_us": 5}, "h2d_stagger_us is 5: must be 0"),
    ({"store__lookup_rpc_port": 5}, "lookup_rpc_port is 5: must be 0"),
    ({"store__consumer_is_to_load": True}, "consumer_is_to_load is True: must be false"),
    ({"store__consumer_is_to_put": True}, "consumer_is_to_put is True: must be false"),
    ({"store__save_decode_cache": True}, "save_decode_cache is True: must be false"),
    ({"store__load_async": True}, "load_async is True: must be false"),
    ({"store__prefill_pp_size": 2}, r"prefill_pp_size is 2: must be 1: pipeline parallelism \(PP\) is not supported"),
    ({"store__prefill_pp_layer_partition": "4,4"}, "prefill_pp_layer_partition is '4,4': must be left out"),
    ({"target__transfer_backend": "mooncake"}, "transfer_backend is 'mooncake': `shm`"),
    ({"target__use_layerwise": False}, "use_layerwise is False: must be true"),
    ({"target__memfabric_transfer_protocol": "tcp"}, "memfabric_transfer_protocol is 'tcp': one of sdma, device_rdma, device_urma"),
    ({"target__data_read_retries": -1}, "data_read_retries is -1: Decode's: further tries"),
    ({"prefill__wait_limit_seconds": 0}, "wait_limit_seconds is 0"),
    ({"sparse__topk_buffer_size": 0}, "topk_buffer_size is 0"),
    ({"sparse__dram_size_per_dp_GB": 0}, "dram_size_per_dp_GB is 0"),
    ({"sparse__dram_size_per_dp_GB": float("inf")}, "dram_size_per_dp_GB is inf: host memory"),
    ({"decode__deadline_seconds": float("nan")}, "deadline_seconds is nan"),
    ({"sparse__keep_device_kv_cache": True}, "keep_device_kv_cache is True: must be false"),
    ({"sparse__use_fused_overlap": True}, "use_fused_overlap is True: must be false"),
    ({"sparse__host_backend": "mooncake"}, "host_backend is 'mooncake'"),
    ({"d__kv_port": 65536}, "kv_port is 65536: Decode's control port, 1 to 65535"),
    ({"d__kv_role": "kv_reader"}, "kv_role is 'kv_reader'"),
    ({"d__kv_load_failure_policy": "recompute"}, "kv_load_failure_policy is 'recompute': must be `fail`"),
    ({"decode__pipeline_parallel_size": 2}, r"decode.pipeline_parallel_size is 2: must be 1: pipeline parallelism \(PP\) is not supported"),
    ({"prefill__prefill_context_parallel_size": 2}, r"must be 1: context parallelism \(CP\) is not supported"),
    ({"decode__decode_context_parallel_size": 2}, r"must be 1: context parallelism \(CP\) is not supported"),
    ({"decode__model_runner": "v2"}, "model_runner is 'v2': must be `v1`: Sparse Decode Offload needs Model Runner V1"),
    ({"prefill__block_size": 0}, "prefill.block_size is 0"),
    ({"prefill__max_num_batched_tokens": 0}, "max_num_batched_tokens is 0"),
    ({"decode__max_num_seqs": 0}, "max_num_seqs is 0"),
    ({"decode__deadline_seconds": 0}, "deadline_seconds is 0: Decode's: seconds until"),
    ({"prefill__num_gpu_blocks_override": 0}, "num_gpu_blocks_override is 0"),
    ({"prefill__tensor_parallel_size": 0}, "tensor_parallel_size is 0"),
    ({"prefill__data_parallel_size": 0}, "data_parallel_size is 0"),
    ({"prefill__long_prefill_token_threshold": -1}, "long_prefill_token_threshold is -1"),
    ({"decode__preempt_after_tokens": -1}, "preempt_after_tokens is -1: tokens after which"),
    ({"prefill__enforce_eager": "yes"}, "enforce_eager is 'yes'"),
    ({"decode__additional_config": 3}, "decode.additional_config is 3: give an object"),
    ({"mtp__method": "ngram"}, "decode.speculative_config.method is 'ngram': `mtp`: the model's own MTP layer drafts"),
    ({"mtp__num_speculative_tokens": -1}, "num_speculative_tokens is -1: tokens drafted for each request in a forward, at least 0"),
    ({"top__check_mode": "on"}, "check_mode is 'on'"),
    ({"top__prefill": []}, r"prefill is \[\]: give an object"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "why"), WRONG, ids=[f"{next(iter(c))}={next(iter(c.values()))!r}" for c, _ in WRONG])
def test_a_value_that_its_key_does_not_take_is_refused_by_path_and_rule(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        parse_settings(raw(**changes))
    assert "\n" not in str(refused.value)


def test_every_rule_that_is_more_than_a_type_has_a_case_above() -> None:
    """A key whose rule nobody breaks in a test could lose its rule without notice."""
    tried = {name.split("__")[1] for changes, _ in WRONG for name in changes}
    for kind in (Instance, Connector, StoreExtra, RemoteExtra, SparseConfig, SpeculativeConfig):
        strict = {name for name, (_, key) in keys_of(kind).items() if key.good.__qualname__.startswith(("_least", "_only"))}
        assert strict <= tried, strict - tried


def test_connectors_that_contradict_each_other_are_refused() -> None:
    twice = raw()
    connectors = twice["prefill"]["kv_transfer_config"][EXTRA]["connectors"]
    connectors.append(connectors[0])
    with pytest.raises(ConfigError, match=r"connectors\[2\] is a second SfaRemoteD2HConnector"):
        parse_settings(twice)
    nested = raw()
    nested["prefill"]["kv_transfer_config"][EXTRA]["connectors"][0] = {"kv_connector": "MultiConnector"}
    with pytest.raises(ConfigError, match="MultiConnector within another"):
        parse_settings(nested)
    roles = raw()
    roles["prefill"]["kv_transfer_config"][EXTRA]["connectors"][0]["kv_role"] = "kv_consumer"
    with pytest.raises(ConfigError, match=r"kv_role is 'kv_consumer' and prefill.kv_transfer_config.kv_role is 'kv_producer'"):
        parse_settings(roles)
    none = raw()
    none["prefill"]["kv_transfer_config"][EXTRA]["connectors"] = []
    with pytest.raises(ConfigError, match=r"connectors is \[\]"):
        parse_settings(none)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.json: No such file or directory; give a readable file with --config"):
        read_settings(tmp_path / "nowhere.json")
    for text, why in (("{", "is no JSON"), ("[]", "holds no object"), ("\xff", "is no JSON")):
        path = tmp_path / "file.json"
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(ConfigError, match=why):
            read_settings(path)


def test_an_option_wins_over_the_file_and_passes_the_keys_rule() -> None:
    file = raw(prefill__block_size=32, decode__block_size=32, store__layerwise_num_shared_buffers=2)
    s = run_settings(file, {"--block-size": 16, "--hot-buffer": 96, "--independent-layers": "all", "--port": 9, "--chunk": 7})
    assert (s.prefill.block_size, s.decode.block_size, s.sparse.topk_buffer_size) == (16, 16, 96)
    assert (s.store.layerwise_num_shared_buffers, s.store.layerwise_independent_layers) == (2, "all")
    assert (s.target.port, s.prefill.max_num_batched_tokens) == (9, 7)
    assert run_settings(None, {"--host-memory": 1.5}).sparse.dram_size_per_dp_GB == 1.5
    for option, (kind, key, _) in OPTIONS.items():
        with pytest.raises(ConfigError, match=f"^{option} is "):
            run_settings(None, {option: object()})
        assert key in keys_of(kind)


def test_an_error_names_the_options_that_were_typed() -> None:
    def said(why: str, *typed: str) -> str:
        return with_options(why, typed or (*OPTIONS, *KEYLESS)).removesuffix(why)

    assert said("prefill.dtype is 'x'") == "--kv-dtype: "
    assert said("topk_buffer_size is 3: give 64, or another block_size") == "--block-size, --hot-buffer: "
    assert said("topk_buffer_size is 3: give 64, or another block_size", "--hot-buffer") == "--hot-buffer: "
    assert said("proxy port is -1: between") == "--proxy-port: "
    assert said("port and proxy port are both 3") == "--port, --proxy-port: "
    assert said("read lease is -1 s") == "--read-lease: "
    assert said("fewer new tokens (--new-tokens)") == said("the pool needs an Ascend device") == ""


def test_an_option_without_its_connector_is_refused() -> None:
    file = raw()
    del file["prefill"]["kv_transfer_config"][EXTRA]["connectors"][1]
    with pytest.raises(ConfigError, match="--shared-buffers is given and prefill has no AscendStoreConnector"):
        run_settings(file, {"--shared-buffers": 2})


def test_the_workers_are_told_what_the_settings_say() -> None:
    file = raw(
        store__layerwise_prefetch_layers=0,
        prefill__num_gpu_blocks_override=77, sparse__dram_size_per_dp_GB=2, decode__max_num_seqs=1, d__kv_port=4321,
    )  # fmt: skip
    c = run_config(run_settings(file, {"--chunk": 100}), prompts_of(bytes(999), 2, 64), new_tokens=3)
    assert (c.chunk, c.block_size, c.num_blocks, c.prefill_blocks, c.hot_buffer) == (100, 64, 77, 77, 128)
    assert c.prefetch_layers == 0
    assert (c.shared_buffers, c.independent_layers, c.port, c.concurrency, c.host_memory_gib) == (3, (0,), 4321, 1, 2)
    assert len(c.layer_plan().buffers) == 4
    assert (c.drafts, c.model_config().num_nextn_predict_layers) == (0, 0)
    assert run_config(run_settings(None, {}), prompts_of(bytes(999), 2, 64)).concurrency == 2


def test_a_step_of_several_requests_is_larger_than_a_chunk_where_that_is_asked_for() -> None:
    def told(**changes: Any) -> tuple[int, int, int]:
        c = run_config(run_settings(raw(**changes), {}), prompts_of(bytes(999), 2, 64))
        return c.chunk, c.step_tokens, c.prefill_lanes

    assert told() == (512, 512, 1)
    assert told(prefill__long_prefill_token_threshold=100, prefill__max_num_seqs=3, decode__max_num_seqs=4) == (100, 512, 3)


def test_each_side_says_after_how_many_tokens_a_request_gives_way_there() -> None:
    def told(**changes: Any) -> tuple[int, int]:
        c = run_config(run_settings(raw(**changes), {}), prompts_of(bytes(999), 2, 64))
        return c.prefill_preempt_after, c.preempt_after

    assert (told(), told(decode__preempt_after_tokens=8), told(prefill__preempt_after_tokens=9)) == ((0, 0), (0, 8), (9, 0))


def test_requests_side_by_side_several_ranks_and_several_instances_are_traced() -> None:
    def traced(**options: Any) -> RunConfig:
        settings = run_settings(raw(prefill__max_num_seqs=2, prefill__tensor_parallel_size=2), {})
        return run_config(settings, prompts_of(bytes(99), 1, 64), trace="/t", **options)

    assert (traced().prefill_lanes, traced().p_tp) == (2, 2)
    assert traced(prefills=2, decodes=2).trace == "/t"


def test_drafts_need_a_layer_that_makes_them() -> None:
    """The seeded model is given one, in a plan as any other; a model that says itself what it has must have one."""
    settings, requests = run_settings(None, {"--mtp": 3}), prompts_of(bytes(99), 1, 64)
    assert {one.speculative_config.num_speculative_tokens for one in (settings.prefill, settings.decode)} == {3}
    c = run_config(settings, requests, model={"num_hidden_layers": 5})
    assert (c.drafts, c.plan().layers, len(c.layer_plan().buffers)) == (3, 6, 4)
    assert "num_speculative_tokens is 3 and num_nextn_predict_layers 0: this model has no MTP layer" in (why := refused(
        lambda: run_config(settings, requests, model={"num_nextn_predict_layers": 0})))  # fmt: skip
    assert with_options(why, ["--mtp", "--chunk"]).startswith("--mtp: ")
    assert "num_speculative_tokens is -1" in refused(lambda: RunConfig(requests=requests, drafts=-1).checked())


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as error:
        make()
    return str(error.value)


def test_layer_buffers_hold_the_longest_prompts_that_are_here_at_once() -> None:
    def blocks(*lengths: int, **given: Any) -> int:
        requests = tuple(Request(f"{n}", (1,) * length) for n, length in enumerate(lengths))
        return RunConfig(requests=requests, block_size=64, **given).prefill_blocks

    assert blocks(64, 65, 1000, 40, concurrency=2) == 2 + 16
    assert blocks(64, 65, 1000, 40, concurrency=9) == 1 + 2 + 16 + 1
    assert blocks(concurrency=3, max_prompt=65) == 3 * 2  # a server does not know its prompts
    assert blocks(1000, concurrency=3, max_prompt=65) == 16 + 2 + 2
    assert blocks(1000, concurrency=3, num_blocks=5) == 5


def test_the_deadline_is_decodes_or_grows_with_the_prompts() -> None:
    def deadline(options: dict[str, Any], tokens: int, **changes: Any) -> float:
        requests = (Request("a", (1,) * tokens), Request("b", (1,) * tokens))
        return run_config(run_settings(raw(**changes), options), requests).deadline_seconds

    assert deadline({}, 10) == 120
    assert deadline({}, 10_000) == 2000
    assert deadline({"--deadline": 7.5}, 10_000) == 7.5
    assert deadline({}, 10, decode__deadline_seconds=3, prefill__deadline_seconds=4) == 3


def test_the_demos_prompts_are_a_text_a_part_of_a_block_and_a_block() -> None:
    tokens = (ROOT / "examples" / "tide-gates.txt").read_bytes()
    assert 2000 <= len(tokens) <= 2500
    requests = prompts_of(tokens, 5, 64)
    assert [len(r.prompt) for r in requests] == [len(tokens), 40, 64, len(tokens) - 37, len(tokens) - 74]
    assert len({r.prompt for r in requests}) == len({r.id for r in requests}) == 5
    assert all(bytes(r.prompt) in tokens for r in requests)
    assert [len(r.prompt) for r in prompts_of(b"abc", 4, 2)] == [3, 1, 2, 1]
    with pytest.raises(ConfigError, match="--prompts is 0"):
        prompts_of(tokens, 0, 64)
    with pytest.raises(ConfigError, match="prompt file is empty"):
        prompts_of(b"", 1, 64)


def test_parse_takes_objects_only() -> None:
    with pytest.raises(ConfigError, match="here is 3: give an object"):
        parse(SparseConfig, 3, "here")


def test_the_page_of_the_keys_is_what_the_code_enforces() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == page(), "run `tidegate config --write` and commit the result"
    for kind in (Instance, Connector, StoreExtra, RemoteExtra, SparseConfig, SpeculativeConfig):
        for name, _, key in documented(kind):
            assert f"| `{name}` |" in page()
            assert key.rule.replace("|", "\\|") in page()


def test_every_option_of_the_command_is_on_the_page_once() -> None:
    options = {f"--{name.replace('_', '-')}" for name in inspect.signature(command).parameters}
    assert options >= OPTIONS.keys() | KEYLESS.keys()
    for option in options:
        assert page().count(f"| `{option}` | ") == 1, option


def test_the_example_that_the_command_prints_is_the_demo() -> None:
    printed = CliRunner().invoke(app, ["config", "--example"])
    assert json.loads(printed.output) == raw()
    assert CliRunner().invoke(app, ["config", "--check"]).exit_code == 0
    assert "| `topk_buffer_size` | `4096` |" in CliRunner().invoke(app, ["config"]).output
