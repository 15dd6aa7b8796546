"""Paged layer buffers between two processes: scattered blocks, too few of them, and ids that are none of Prefill's."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from gate_tools import small
from pair_tools import TEXT, run

from tidegate.engine.config import Request
from tidegate.engine.recorder import read_lines
from tidegate.spec.trace import check

LENGTHS = (70, 150, 16, 5, 140)
"""In blocks of 16 tokens: 5, 10, exactly 1, less than 1, 9."""


def test_runs_wait_for_blocks_and_get_scattered_ones(tmp_path: Path) -> None:
    said: list[str] = []
    requests = tuple(Request(f"r{n}", tuple(TEXT[n : n + length])) for n, length in enumerate(LENGTHS))
    c = small(requests=requests, concurrency=5, num_blocks=14, trace=str(tmp_path), deadline_seconds=60.0)
    result, compared = run(c, on_line=lambda role, line: said.append(line.text))
    assert all(one.equal for one in compared), compared
    assert any("waits for blocks: it needs 10, 9 of 14 are free" in text for text in said), said
    assert result.stats["prefill"]["blocks_free"] == result.stats["prefill"]["blocks"] == 14
    reads = [x for x in read_lines(tmp_path / "decode-0.jsonl") if x["kind"] == "read_begin"]
    offsets = [[of for of, _, _ in x["ranges"][: len(x["ranges"]) // 2]] for x in reads]
    assert any(two < one for ranges in offsets for one, two in itertools.pairwise(ranges)), "no run has scattered blocks"
    assert check(tmp_path).attempts == len(LENGTHS)


def test_requests_wait_for_blocks_on_decode_and_get_scattered_ones(tmp_path: Path) -> None:
    """14 blocks for requests of 5, 10, 2, 1 and 9; what nobody wrote, and what was given back, is NaN."""
    said: list[str] = []
    requests = tuple(Request(f"r{n}", tuple(TEXT[n : n + length])) for n, length in enumerate(LENGTHS))
    room = 14.5 * small(requests=requests).block_bytes / 2**30
    c = small(requests=requests, concurrency=5, host_memory_gib=room, trace=str(tmp_path), deadline_seconds=60.0)
    assert c.decode_blocks == 14
    _, compared = run(c, on_line=lambda role, line: said.append(line.text))
    assert all(one.equal for one in compared), compared
    assert any("decode: host pool of 14 blocks of 16 tokens, 7 layers: main: " in text for text in said), said
    assert any("waits for blocks: it needs 10, 9 of 14 are free" in text for text in said), said
    reads = [x for x in read_lines(tmp_path / "decode-0.jsonl") if x["kind"] == "read_begin"]
    offsets = [[to for _, to, _ in x["ranges"][: len(x["ranges"]) // 2]] for x in reads]
    assert any(two < one for ranges in offsets for one, two in itertools.pairwise(ranges)), "no request has scattered blocks"
    assert check(tmp_path).attempts == len(LENGTHS)


FOREIGN = """
from tidegate.engine import prefill_worker
from tidegate.engine.prefill_core import PrefillCore
blocks_of, runs = PrefillCore.blocks_of, []
def wrong(self, ready):
    blocks = blocks_of(self, ready)
    runs.append(ready.transfer.run)
    return (*blocks[:-1], 77) if ready.transfer.run == runs[0] and ready.transfer.chunk == 2 else blocks
PrefillCore.blocks_of = wrong
prefill_worker.main()
"""


def test_a_foreign_block_fails_its_request_alone_and_both_sides_are_named() -> None:
    """Prefill announces block 77 for chunk 2 of its first run."""
    c = small()
    result, compared = run(c, prefill_argv=[sys.executable, "-c", FOREIGN])
    assert not result.results[0].ok
    assert "block 77 is outside Prefill's blocks 0..18 of 16 tokens" in result.results[0].text
    assert compared[1].equal
    assert result.stats["decode"]["places_free"] == c.concurrency
    assert result.stats["prefill"]["blocks_free"] == result.stats["prefill"]["blocks"]
