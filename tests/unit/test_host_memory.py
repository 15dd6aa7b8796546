"""Host memory says what it really got, whatever the system allows."""

from __future__ import annotations

import mmap
import resource

import numpy as np
import pytest
import torch

from tidegate.engine import host_memory
from tidegate.engine.decode_memory import DecodeMemory
from tidegate.engine.host_memory import HUGE, Got, HostMemory, smaps
from tidegate.engine.paged_rows import PagedRows, RowKind

MIB = 1 << 20


def test_all_of_it_is_there_before_the_first_request() -> None:
    memory = HostMemory(5 * MIB + 3)
    got = memory.got
    assert memory.bytes.shape == (5 * MIB + 3,)
    assert not memory.bytes.any()
    assert memory.bytes.data_ptr() % HUGE == 0
    assert (got.size, got.resident) == (5 * MIB + 3, 5 * MIB + 3)
    assert (got.pinned == got.size) is (got.refusal == "")
    del memory.bytes, memory


def test_two_pools_are_not_taken_for_one() -> None:
    """Neighbours of one kind would be one mapping, and counted twice, or not at all."""
    pools = [HostMemory(3 * MIB) for _ in range(3)]
    assert [pool.got.resident for pool in pools] == [3 * MIB] * 3


def test_what_is_not_touched_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are the kernel's: memory that nobody touched, and nobody advised, has neither."""
    area = mmap.mmap(-1, 8 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    at = np.frombuffer(area, np.uint8).ctypes.data
    assert smaps(at, 8 * HUGE)["Rss"] == smaps(at, 8 * HUGE)["Locked"] == 0
    monkeypatch.setattr(HostMemory, "_advise", lambda *arguments: None)
    assert HostMemory(2 * HUGE).got.huge == 0


def test_pinning_that_is_refused_is_told_with_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMemory, "_pin", lambda self: "mlock: Operation not permitted, RLIMIT_MEMLOCK of 8.0 MiB")
    got = HostMemory(MIB).got
    assert (got.resident, got.pinned) == (MIB, 0)
    assert str(got).endswith("0.0 MiB of it pinned (mlock: Operation not permitted, RLIMIT_MEMLOCK of 8.0 MiB)")


def test_the_refusal_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        def mlock(self, *arguments: object) -> int:
            host_memory.ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(host_memory.ctypes, "CDLL", lambda *arguments, **options: Libc())
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65536, 65536))
    assert HostMemory(MIB).got.refusal == "mlock: Operation not permitted, RLIMIT_MEMLOCK of 0.1 MiB"


@pytest.mark.parametrize(("got", "said"), [
    (Got(4 * MIB, 4 * MIB, 2 * MIB, 4 * MIB), "4.0 MiB, 2.0 MiB of it in huge pages, pinned"),
    (Got(4 * MIB, 4 * MIB, 0, MIB), "4.0 MiB, 0.0 MiB of it in huge pages, 1.0 MiB of it pinned (the rest was let go)"),
])  # fmt: skip
def test_the_report_in_words(got: Got, said: str) -> None:
    assert str(got) == said


def test_a_pool_that_cannot_be_had_is_one_clear_error() -> None:
    with pytest.raises(OSError, match=r"a host pool of \d+\.0 MiB cannot be had: .*; give Decode fewer or shorter requests at once"):
        HostMemory(1 << 60)


# ---- the rows in it


def test_addresses_beyond_32_bits() -> None:
    """61 layers of 1024 blocks of 128 tokens, 1152 bytes each: every (layer, block) has its own bytes."""
    pages = PagedRows(RowKind("main", "bfloat16", 576), torch.empty(61, 1024, 128, 576, dtype=torch.bfloat16, device="meta"))
    block = 128 * 1152
    assert pages.ranges(60, (7, 1023), 100, 130) == [((60 * 1024 + 7) * block + 100 * 1152, 28 * 1152), ((60 * 1024 + 1023) * block, 2304)]
    assert (60 * 1024 + 1023) * block > 2**32
    assert pages.spans((5, 3, 4))[-1].tolist() == [(60 * 1024 + 3) * block, (60 * 1024 + 6) * block]


def test_rows_of_a_token_are_where_its_block_is() -> None:
    pages = PagedRows(RowKind("main", "int8", 2), torch.zeros(2, 6, 3, 2, dtype=torch.int8))
    blocks = (4, 1, 2)
    for token in range(8):
        pages.write(1, torch.tensor([blocks[token // 3] * 3 + token % 3]), torch.full((1, 2), token + 1, dtype=torch.int8))
    assert pages.tokens(1, blocks, 8)[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert pages.tokens(1, (1, 2), 5).data_ptr() == pages.memory[1, 1].data_ptr()  # one after the other: a view
    assert pages.tokens(0, blocks, 0).shape == (0, 2)
    assert not pages.memory[0].any()
    flat = pages.memory.reshape(-1).view(torch.uint8)
    [(at, size), _, _] = pages.ranges(1, blocks, 1, 8)
    assert flat[at : at + size].tolist() == [2, 2, 3, 3]
    pages.poison((1,))
    assert (pages.memory == -1).nonzero()[:, 1].unique().tolist() == [1]


@pytest.mark.parametrize(("arguments", "why"), [
    ((2, (0,), 0, 1), "layer 3 of a Decode of 2 layers"), ((-1, (0,), 0, 1), "layer 0 of"),
    ((0, (0,), 2, 2), r"tokens 2\.\.2 for a destination of 1 blocks of 3"), ((0, (0,), 0, 4), "tokens"), ((0, (0,), -1, 1), "tokens"),
    ((0, (0, 6), 0, 6), r"block 6 is outside Decode's blocks 0\.\.5"),
])  # fmt: skip
def test_an_address_that_is_none_is_refused(arguments: tuple[int, tuple[int, ...], int, int], why: str) -> None:
    pages = PagedRows(RowKind("main", "int8", 2), torch.zeros(2, 6, 3, 2, dtype=torch.int8))
    with pytest.raises(ValueError, match=why):
        pages.ranges(*arguments)


# ---- who has which


KINDS = (RowKind("main", "float32", 4), RowKind("index", "float32", 2))


def memory_of(**changes: int) -> DecodeMemory:
    return DecodeMemory(KINDS, **({"layers": 2, "blocks": 5, "block_size": 4, "rows": 2, "hot": 3} | changes), poison=True)


def test_an_attempt_gets_a_row_and_all_its_blocks_or_waits_with_a_reason() -> None:
    memory = memory_of()
    for attempt, tokens in ((1, 9), (2, 12), (3, 4)):
        memory.ask(attempt, tokens)
    [one] = memory.admitted()
    assert (one.row, one.blocks, one.tokens) == (0, (0, 1, 2), 9)
    assert memory.why(2) == "attempt 2 waits for blocks: it needs 3, 2 of 5 are free (attempt 1: 3)"
    assert "attempt 2, which is before it, needs 3" in memory.why(3)
    memory.give_back(1)
    two, three = memory.admitted()
    assert (two.blocks, three.blocks) == ((3, 4, 0), (1,))
    memory.ask(4, 1)
    assert memory.admitted() == []
    assert memory.why(4) == "attempt 4 waits for a row of the hot buffers: all 2 are taken"
    memory.give_back(3)
    memory.give_back(3)
    assert [one.row for one in memory.admitted()] == [three.row]
    with pytest.raises(ValueError, match="attempt 5 has 21 tokens, all 5 blocks of 4 hold 20: give Decode more blocks, or shorter prompts"):
        memory.ask(5, 21)


def test_what_nobody_owns_is_nan() -> None:
    memory = memory_of()
    everything = [*(pages.memory for pages in memory.pages.values()), *memory.hot.memory]
    assert all(part.isnan().all() for part in everything)
    memory.ask(1, 9)
    memory.ask(2, 4)
    one, two = memory.admitted()
    for part in everything:
        part.zero_()
    memory.give_back(1)
    for pages in memory.pages.values():
        assert pages.memory.isnan()[:, list(one.blocks)].all()
        assert not pages.memory[:, list(two.blocks)].isnan().any()
    assert memory.hot.memory[0][:, one.row].isnan().all()
    assert not memory.hot.memory[0][:, two.row].isnan().any()


@pytest.mark.parametrize(("kinds", "why"), [
    ((KINDS[1],), "main KV, and each once"), ((KINDS[0], KINDS[0]), "each once"),
    ((*KINDS, RowKind("state", "int8", 1)), "kind of rows 'state'"),
])  # fmt: skip
def test_kinds_of_rows_that_there_are_not(kinds: tuple[RowKind, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        DecodeMemory(kinds, layers=1, blocks=1, block_size=1, rows=1, hot=1)


def test_the_start_log_says_what_there_is() -> None:
    memory = memory_of()
    assert memory.backing().keys() == {"host_bytes", "host_huge", "host_pinned"}
    assert memory.backing()["host_bytes"] == 2 * 5 * 4 * KINDS[0].row_bytes  # the indexer cache is on the device
    said = memory.report()
    assert said.startswith("host pool of 5 blocks of 4 tokens, 2 layers: main: 0.0 MiB, ")
    assert "indexer cache 0.0 MiB; hot buffers 0.0 MiB for 2 requests at once" in said
