"""Prompts that begin alike: what one left in the host pool is copied for the next, not computed, and changes no token."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from gate_tools import failing, small
from pair_tools import TEXT, run

from tidegate.engine.config import Request, RunConfig
from tidegate.engine.recorder import read_lines
from tidegate.spec.trace import check

FIRST, SHARED = 150, 100
OTHER = b"0123456789" * 5
"""Blocks of 16 tokens: 6 whole ones are shared."""


def prompts(*more: bytes, **changes: Any) -> RunConfig:
    """One request after the other."""
    requests = [Request("first", tuple(TEXT[:FIRST])), *(Request(f"r{n}", tuple(prompt)) for n, prompt in enumerate(more))]
    return small(**({"requests": tuple(requests), "concurrency": 1, "deadline_seconds": 60.0} | changes))


def row_bytes(c: RunConfig) -> int:
    model = c.model_config()
    return (model.main_width + model.index_width) * model.torch_dtype.itemsize * model.num_hidden_layers


@pytest.mark.parametrize("chunk", [48, 128])
def test_a_shared_prefix_is_copied_and_every_token_is_the_same(tmp_path: Path, chunk: int) -> None:
    """Chunks end where blocks do: 6 blocks are reused, whatever part of a chunk that is; what is computed is saved, no more."""
    c = prompts(TEXT[:SHARED] + OTHER, chunk=chunk, trace=str(tmp_path))
    result, compared = run(c)
    stats = result.stats["prefill"]
    assert all(one.equal for one in compared), compared
    assert stats["tokens_reused"] == 96
    assert stats["bytes_reused"] == 96 * row_bytes(c)
    assert stats["bytes_saved"] == (2 * FIRST - 96) * row_bytes(c)
    accepted = check(tmp_path)
    assert accepted.attempts == 2
    steps = [x for x in read_lines(tmp_path / "prefill-0.jsonl") if x["kind"] == "write_end"]
    assert len(steps) == 2 * -(-FIRST // chunk) * c.model_config().num_hidden_layers  # the same events as ever


def test_the_last_token_is_computed_whatever_the_pool_has() -> None:
    again = {144: TEXT[:FIRST], 128: TEXT[:144], 16: TEXT[:17], 0: TEXT[:16]}
    c = prompts(*again.values(), TEXT[:5], chunk=48, pool_blocks=40)
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    assert result.stats["prefill"]["tokens_reused"] == sum(again)


def test_chunks_that_end_within_blocks_share_their_parts(tmp_path: Path) -> None:
    """Objects end before tokens 16, 32, 40, 48, 64, 80, 96, ...: what is shared ends at 96."""
    c = prompts(TEXT[:SHARED] + OTHER, chunk=40, trace=str(tmp_path))
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    assert result.stats["prefill"]["tokens_reused"] == 96
    assert check(tmp_path).attempts == 2


def test_a_prefix_that_was_evicted_in_between_is_computed_again(tmp_path: Path) -> None:
    """The pool holds 10 blocks, which is all that one of these prompts needs."""
    c = prompts(bytes(reversed(TEXT[:FIRST])), TEXT[:SHARED] + OTHER, pool_blocks=10, chunk=48, trace=str(tmp_path))
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    stats = result.stats["prefill"]
    assert (stats["tokens_reused"], stats["bytes_reused"]) == (0, 0)
    assert stats["bytes_saved"] == 3 * FIRST * row_bytes(c)
    assert check(tmp_path).attempts == 3


def test_a_part_of_a_prefix_is_better_than_none() -> None:
    """The pool holds 14 blocks: the second prompt takes 6 of the first one's from its end."""
    c = prompts(bytes(reversed(TEXT[:FIRST])), TEXT[:FIRST], pool_blocks=14, chunk=48)
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    assert result.stats["prefill"]["tokens_reused"] == 64


def test_the_same_prompt_at_the_same_time(tmp_path: Path) -> None:
    c = prompts(TEXT[:FIRST], TEXT[:FIRST], chunk=48, concurrency=3, trace=str(tmp_path))
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    assert result.stats["prefill"]["tokens_reused"] > 0
    assert check(tmp_path).attempts == 3


def test_a_copy_that_fails_is_made_again() -> None:
    faults = (failing("fill", "quiet", chunk=2, nth=1), failing("fill", "unknown", chunk=3, nth=1))
    c = prompts(TEXT[:SHARED] + OTHER, chunk=32, prefill_faults=faults)
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    assert result.stats["prefill"]["injected"] == 2
    assert result.stats["prefill"]["bytes_reused"] == 96 * row_bytes(c)


def test_a_copy_that_cannot_be_made_fails_its_request_alone(tmp_path: Path) -> None:
    fault = failing("fill", "quiet", chunk=2, layer=2)
    c = prompts(TEXT[:SHARED] + OTHER, TEXT[:FIRST][::-1], chunk=32, prefill_faults=(fault,), deadline_seconds=3.0,
                trace=str(tmp_path))  # fmt: skip
    result, compared = run(c)
    assert [result.results[n].ok for n in range(3)] == [True, False, True]
    assert compared[0].equal
    assert compared[2].equal
    assert check(tmp_path).attempts == 3


WRONG = """
from tidegate.engine import pool_keys, prefill_copies, prefill_worker
{planted}
prefill_worker.main()
"""
PLANTED = {
    "keys that forget the tokens before them": "pool_keys.block_key = (lambda real: lambda parent, *tokens: real(bytes(32), *tokens))"
                                               "(pool_keys.block_key)",
    "rows of the layer below": """
load = prefill_copies.LocalPool.load
def wrong(self, keys, layer, *arguments, part_of_write=False):
    return load(self, keys, max(layer - 1, 0) if part_of_write else layer, *arguments, part_of_write=part_of_write)
prefill_copies.LocalPool.load = wrong""",
    "rows that never come": """
fill = prefill_copies.PoolCopies.fill
def wrong(self, step, work, first, end, on_end):
    self._post(lambda: on_end(step, prefill_copies.Outcome(True, True)))
prefill_copies.PoolCopies.fill = wrong""",
}  # fmt: skip


@pytest.mark.parametrize("mistake", PLANTED)
def test_wrong_rows_would_be_seen(mistake: str) -> None:
    """The second prompt has a block of the first one elsewhere, and its beginning besides."""
    c = prompts(TEXT[:SHARED] + OTHER, OTHER[:16] + TEXT[16:SHARED], chunk=32)
    result, compared = run(c, prefill_argv=[sys.executable, "-c", WRONG.format(planted=PLANTED[mistake])])
    assert compared[0].equal
    assert not all(one.equal for one in compared)
    assert result.stats["prefill"]["tokens_reused"] > 0
