"""Bodies: what is taken, what is refused and how; ids; the digest; where retries go."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engine.config import RunConfig
from tidegate.engine.http.asking import Retries, Servers
from tidegate.engine.http.bodies import (
    Completion,
    CompletionRequest,
    DecodeParams,
    DecodeRequest,
    Delivered,
    PrefillParams,
    PrefillRequest,
    checked_url,
    parse,
    prompt_digest,
    prompts_of,
)
from tidegate.engine.http.errors import ErrorBody, Refusal, error_of
from tidegate.engine.http.spreading import shares

PARAMS = {
    "request_id": "cmpl-a-0", "do_remote_prefill": False, "do_remote_decode": True, "remote_engine_id": "decode-1f",
    "remote_host": "127.0.0.1", "remote_port": 20050, "remote_tp_size": 1, "remote_cached_tokens": 0, "attempt": 7,
    "incarnation": 9, "prompt_digest": "0123456789abcdef",
}  # fmt: skip


def body(**fields: Any) -> bytes:
    return msgspec.json.encode(fields)


@pytest.mark.parametrize(("prompt", "found"), [
    ("text", ["text"]), ([1, 2], [[1, 2]]), (["a", "b"], ["a", "b"]), ([[1], [2, 3]], [[1], [2, 3]]), (["a", [1]], ["a", [1]]),
])  # fmt: skip
def test_a_prompt_is_text_or_ids_or_a_list_of_either(prompt: Any, found: list[Any]) -> None:
    assert prompts_of(parse(body(prompt=prompt), CompletionRequest)) == found


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40), st.integers(0, 6))
def test_shares_hold_every_prompt_once_and_are_alike(lengths: list[int], count: int) -> None:
    found = shares([[0] * length for length in lengths], count)
    assert sorted(index for share in found for index in share) == list(range(len(lengths)))
    assert all(share == sorted(share) for share in found)
    assert len(found) == max(1, min(count, len(lengths)))
    sizes, sums = [len(share) for share in found], [sum(lengths[index] for index in share) for share in found]
    assert max(sizes) - min(sizes) <= 1
    assert max(sums) - min(sums) <= max(lengths)


@pytest.mark.parametrize("given", [[0], [0, 0], [1, 0], [0, 1, 2]])
def test_indices_are_one_for_each_prompt_and_ascending(given: list[int]) -> None:
    params = DecodeParams(False, True, "http://127.0.0.1:1/v1/metaserver")
    assert params.indices(2) == [0, 1]
    assert msgspec.structs.replace(params, prompt_indices=[3, 7]).indices(2) == [3, 7]
    with pytest.raises(Refusal, match="one for each of the 2 prompts, ascending"):
        msgspec.structs.replace(params, prompt_indices=given).indices(2)


REFUSED = [
    ({}, "missing required field `prompt`"), ({"prompt": ""}, "length >= 1"), ({"prompt": []}, "length >= 1"),
    ({"prompt": [[]]}, "prompt 0 is empty"), ({"prompt": ["a", ""]}, "prompt 1 is empty"), ({"prompt": [1, "a"]}, "mixes"),
    ({"prompt": [1.0]}, "got `float`"), ({"prompt": [True]}, "got `bool`"), ({"prompt": None}, "got `null`"),
    ({"prompt": [-1]}, "negative"), ({"prompt": [1 << 40]}, r"2\*\*31"), ({"prompt": [[[1]]]}, "got `array`"),
    ({"prompt": "a", "max_tokens": 0}, ">= 1"), ({"prompt": "a", "max_tokens": "5"}, "got `str`"),
    ({"prompt": "a", "max_tokens": 1.5}, "got `float`"), ({"prompt": "a", "stream": True}, "stream is true"),
    ({"prompt": "a", "stream": 1}, "got `int`"), ({"prompt": "a", "temperature": 0.7}, "temperature is 0.7"),
    ({"prompt": "a", "n": 2}, "unknown field `n`"), ({"prompt": "a", "best_of": 1}, "unknown field `best_of`"),
    ({"prompt": ["a"] * 1025}, "at most 1024"), ({"prompt": {"text": "a"}}, "got `object`"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "why"), REFUSED)
def test_what_is_wrong_with_a_request_is_said(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(Refusal, match=why) as refused:
        prompts_of(parse(body(**fields), CompletionRequest))
    assert refused.value.status == 400


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"a"', b'{"prompt":"a"}}', b'{"prompt":"\xff"}', b"\xef\xbb\xbf{}",
                                  b"[" * 100_000, b'{"prompt":' * 50_000, b'{"prompt":' + b"[" * 100_000, b"{'prompt':'a'}"])  # fmt: skip
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(Refusal, match="this is no CompletionRequest"):
        parse(data, CompletionRequest)


CHANGES = [
    ({"attempt": 0}, ">= 1"), ({"attempt": 1 << 63}, "int64|<="), ({"attempt": "7"}, "got `str`"), ({"remote_port": 0}, ">= 1"),
    ({"remote_port": 65536}, "<= 65535"), ({"remote_tp_size": 0}, ">= 1"), ({"remote_pcp_size": 2}, "remote_pcp_size is 2"),
    ({"remote_dcp_size": 0}, "remote_dcp_size is 0"), ({"remote_cached_tokens": 128}, "remote_cached_tokens is 128"),
    ({"remote_host": "10.0.0.1"}, "loopback"), ({"remote_host": "localhost"}, "loopback"), ({"remote_host": "127.0.0.1:1;x"}, "loopback"),
    ({"do_remote_decode": False}, "do_remote_decode"), ({"do_remote_prefill": 0}, "do_remote_prefill"),
    ({"prompt_digest": "xyz"}, "prompt_digest"), ({"request_id": "a b"}, "request_id"), ({"request_id": ""}, "request_id"),
    ({"remote_block_ids": [1]}, "unknown field `remote_block_ids`"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "why"), CHANGES)
def test_an_announcement_is_exactly_what_it_must_be(change: dict[str, Any], why: str) -> None:
    assert parse(body(**PARAMS), PrefillParams).checked().attempt == 7
    with pytest.raises(Refusal, match=why):
        parse(body(**(PARAMS | change)), PrefillParams).checked()


@pytest.mark.parametrize("missing", PARAMS)
def test_every_field_of_an_announcement_is_needed(missing: str) -> None:
    with pytest.raises(Refusal, match=f"missing required field `{missing}`"):
        parse(body(**{name: value for name, value in PARAMS.items() if name != missing}), PrefillParams)


def test_the_servers_bodies_need_their_transfer_parameters() -> None:
    for kind in (DecodeRequest, PrefillRequest):
        with pytest.raises(Refusal, match="kv_transfer_params"):
            parse(body(prompt="a"), kind)
    with pytest.raises(Refusal, match="min_tokens"):
        parse(body(prompt="a", kv_transfer_params=PARAMS, min_tokens=2), PrefillRequest)


@pytest.mark.parametrize("url", ["https://127.0.0.1:1/", "http://10.1.1.1:80/v1", "http://localhost:8000/v1", "ftp://127.0.0.1:1", "", "x",
                                 "http://127.0.0.1/v1", "http://u:p@127.0.0.1:5/", "http://[::1", "http://127.0.0.1:99999/"])  # fmt: skip
def test_servers_are_asked_on_this_host_only(url: str) -> None:
    with pytest.raises(Refusal, match="on this host only"):
        checked_url(url)
    assert checked_url("http://127.0.0.1:81/v1/metaserver")
    assert checked_url("http://[::1]:81/v1/metaserver")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda one: st.lists(one)
                    | st.dictionaries(st.sampled_from(["prompt", "max_tokens", "stream", "kv_transfer_params", "x"]), one)))  # fmt: skip
def test_any_json_is_a_request_or_refused(value: Any) -> None:
    for kind in (CompletionRequest, DecodeRequest, PrefillRequest):
        prompts: list[Any] = []
        with contextlib.suppress(Refusal):
            prompts = prompts_of(parse(msgspec.json.encode(value), kind))
            assert prompts
        assert all(prompts)


@given(st.lists(st.integers(0, (1 << 31) - 1)), st.lists(st.integers(0, (1 << 31) - 1)))
def test_a_digest_names_one_prompt(one: list[int], other: list[int]) -> None:
    assert re.fullmatch("[0-9a-f]{16}", prompt_digest(one))
    assert (prompt_digest(one) == prompt_digest(other)) == (one == other)


LIMITS = RunConfig(requests=(), max_prompt=4).limits(8)


@given(st.text())
def test_text_is_its_bytes_and_back(text: str) -> None:
    assert LIMITS.text.decode(LIMITS.text.encode(text)) == text


def test_limits_are_named() -> None:
    limits = dataclasses.replace(LIMITS, vocab_size=256)
    assert limits.tokens_of("ab") == (97, 98)
    assert (limits.asked(None), limits.asked(3)) == (8, 3)
    for refused, why in ((lambda: limits.tokens_of("abcde"), "5 tokens: memory is set aside for 1 to 4"),
                         (lambda: limits.tokens_of([256]), "token 256 is outside the vocabulary of 256"),
                         (lambda: limits.asked(9), "max_tokens is 9")):  # fmt: skip
        with pytest.raises(Refusal, match=why):
            refused()


def test_an_error_of_a_server_is_read_whatever_it_is() -> None:
    refusal = Refusal(504, "too late", "cmpl-a-0")
    again = error_of(504, msgspec.json.encode(refusal.body()))
    assert (again.status, again.message, again.request_id) == (504, "too late", "cmpl-a-0")
    for data in (b"", b"<html>", b"{}", b"[" * 100_000, b'{"error": "x"}', b"\xff"):
        assert error_of(500, data).status == 500
    assert error_of(200, b"{}").status == 502, "what is no success is told as none"


PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"


def fields_of(section: str) -> set[str]:
    """Names in the first column of the table of a section of the page."""
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_page_names_every_field_and_every_number() -> None:
    sections = re.split(r"\n###? ", PAGE.read_text())
    by_title = {section.partition("\n")[0]: section for section in sections}
    assert fields_of(by_title["Client to proxy: `POST /v1/completions`"]) == set(CompletionRequest.__struct_fields__)
    assert fields_of(by_title["Decode to proxy: `POST /v1/metaserver`"]) == set(PrefillParams.__struct_fields__)
    retries = " ".join(by_title["Retries and leaving"].split())
    defaults = {field.name: field.default for field in msgspec.structs.fields(RunConfig)}
    assert f"`max_retries` times ({defaults['max_retries']}), after `retry_delay` seconds ({defaults['retry_delay']})" in retries
    assert f"`max_waiting` ({defaults['max_waiting']})" in retries


def test_the_examples_of_the_page_are_bodies() -> None:
    asked, answer, to_decode, delivered, failed = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(prompts_of(parse(asked.encode(), CompletionRequest))) == len(parse(answer.encode(), Completion).choices)
    decode_body = asked.rstrip().removesuffix("}") + "," + to_decode + "}"
    assert parse(decode_body.encode(), DecodeRequest).kv_transfer_params.metaserver.endswith("/v1/metaserver")
    for text, kind in ((answer, Completion), (delivered, Delivered), (failed, ErrorBody)):
        assert msgspec.json.decode(msgspec.json.encode(parse(text.encode(), kind))) == json.loads(text)


def test_the_next_server_is_another_and_an_idle_one() -> None:
    servers = Servers("Prefill", ["a", "b", "c"])
    assert [servers.pick() for _ in range(4)] == ["a", "b", "c", "a"]
    servers.busy["b"] = 1
    assert [servers.pick() for _ in range(3)] == ["c", "a", "c"]
    assert servers.pick(["a", "c"]) == "b"
    assert Servers("Prefill", ["a"]).pick(["a"]) == "a"
    assert [Retries(5, 0.5).pause(number) for number in range(6)] == [0, 0.5, 1, 2, 4, 5]
