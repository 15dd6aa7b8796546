"""Before each read Decode compares: a difference fails that layer of that request, says what differs on which side, touches no byte, and
harms nobody else.  Real engine, real socket, real shared memory; each check that is taken out is missed by a test here."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from decode_tools import BLOCK, COUNT, KINDS, PROMPT, SLOT_OF_LAYER, SOURCE_BLOCKS, Prefill, both, layout_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.engine import decode_checks, decode_peer, paged_rows, pull_shm, slot_layout, step_blocks
from tidegate.engine.control import Hello
from tidegate.engine.copying import Work
from tidegate.engine.decode_engine import DecodeEngine, RowKind
from tidegate.engine.decode_memory import DecodeMemory
from tidegate.engine.decode_peer import Peer, peer_name
from tidegate.engine.pull_shm import ShmPull
from tidegate.engine.slots import MemoryServer, SharedMemory, fetch_memory
from tidegate.engine.step_blocks import blocks_of
from tidegate.protocol.messages import VERSION, ReadDone, ReadFailed, Ready, Start, TransferId

MAIN, INDEX, SCALE = (*KINDS, RowKind("scale", "float32", 1))


class Case(NamedTuple):
    """there: what Prefill has in slot 1; here: what Decode has; ready: what READY of layer 2 says otherwise; why: the reason."""

    why: str
    there: tuple[RowKind, ...] = KINDS
    here: tuple[RowKind, ...] = KINDS
    ready: Mapping[str, Any] = MappingProxyType({})


def kind(name: str, dtype: str, width: int) -> RowKind:
    return RowKind(name, dtype, width)


CASES = {
    "main count": Case(r"main KV is 2 tensors on Prefill \(main.k, main.v\) and 1 on Decode \(main\)",
                       (kind("main.k", "float32", 3), kind("main.v", "float32", 1), INDEX)),
    "main missing": Case(r"main KV is 0 tensors on Prefill \(nothing\) and 1 on Decode \(main\)", (INDEX,)),
    "main size": Case(r"a row of main is 5 elements \(20 bytes\) on Prefill and 4 \(16 bytes\) on Decode",
                      (kind("main", "float32", 5), INDEX)),
    "main size below": Case("main is 3 elements .* on Prefill and 4 .* on Decode", (kind("main", "float32", 3), INDEX)),
    "main dtype": Case("main is bfloat16 on Prefill and float32 on Decode", (kind("main", "bfloat16", 4), INDEX)),
    "main dtype, as many bytes": Case("main is bfloat16 on Prefill and float32 on Decode", (kind("main", "bfloat16", 8), INDEX)),
    "indexer missing there": Case("index is missing on Prefill and is there on Decode", (MAIN,)),
    "indexer missing here": Case("index is there on Prefill and is missing on Decode", KINDS, (MAIN,)),
    "indexer of another layer here": Case("index is there on Prefill and is missing on Decode", KINDS,
                                          (MAIN, RowKind("index", "float32", 2, (0, 2)))),
    "indexer size": Case(r"a row of index is 3 elements \(12 bytes\) on Prefill and 2 \(8 bytes\) on Decode",
                         (MAIN, kind("index", "float32", 3))),
    "indexer dtype": Case("index is int8 on Prefill and float32 on Decode", (MAIN, kind("index", "int8", 8))),
    "scale missing there": Case("scale is missing on Prefill and is there on Decode", KINDS, (*KINDS, SCALE)),
    "scale missing here": Case("scale is there on Prefill and is missing on Decode", (*KINDS, SCALE)),
    "scale size": Case(r"a row of scale is 2 elements \(8 bytes\) on Prefill and 1 \(4 bytes\) on Decode",
                       (*KINDS, kind("scale", "float32", 2)), (*KINDS, SCALE)),
    "scale dtype": Case("scale is int8 on Prefill and float32 on Decode", (*KINDS, kind("scale", "int8", 4)), (*KINDS, SCALE)),
    "something else": Case("Prefill has state in slot 1; Decode knows main, index", (*KINDS, kind("state", "float32", 1))),
    "slot": Case("layer 2 is announced in slot 0; in Prefill's layout it is in slot 1", ready={"slot": 0}),
    "incarnation": Case(r"READY is of Prefill [0-9a-f]{12}, the mapped memory of [0-9a-f]{12}", ready={"incarnation": 3}),
    "tokens above the prompt": Case("tokens 0..7 are announced by Prefill; the prompt at Decode has 6", ready={"stop": 7}),
    "tokens below zero": Case("tokens -1..6 are announced", ready={"start": -1, "blocks": (1, 5, 2)}),
    "no tokens": Case("tokens 4..4 are announced", ready={"start": 4, "stop": 4, "blocks": ()}),
    "source block outside": Case(r"block 6 is outside Prefill's blocks 0\.\.5 of 4 tokens", ready={"blocks": (5, 6)}),
    "source block below zero": Case("block -1 is outside Prefill's blocks", ready={"blocks": (-1, 5)}),
    "too few source blocks": Case("tokens 0..6 lie in 2 blocks of 4; 1 block ids were given", ready={"blocks": (5,)}),
    "too many source blocks": Case("2 blocks of 4; 3 block ids", ready={"blocks": (5, 2, 1)}),
    "a source block twice": Case("these name one twice", ready={"blocks": (2, 2)}),
}  # fmt: skip


def starts(engine: DecodeEngine, prefill: Prefill) -> list[Start]:
    for name in ("bad", "good"):
        engine.admit(name, range(PROMPT), new_tokens=2)
    heard = [prefill.hear() for _ in range(2)]
    return [one for one in heard if isinstance(one, Start)]


def bytes_of(engine: DecodeEngine) -> list[np.ndarray]:
    return [pages.memory.clone().view(torch.uint8).numpy() for pages in engine.memory.pages.values()]


def completed(engine: DecodeEngine) -> list[int] | None:
    """The first that completes; in 5 s it has, if it ever will."""
    end = time.monotonic() + 5
    while not (found := engine.completed()) and time.monotonic() < end:
        time.sleep(0.002)
    return found


def complaint(case: Case) -> str:
    """What is wrong with how `case` is taken; "" if it is as it should be."""
    with both(layout_of({0: case.here, 1: case.there}), case.here) as (engine, prefill, crashed):
        bad, good = starts(engine, prefill)
        if not isinstance(prefill.serve(bad, 1), ReadDone):
            return "a good layer failed"
        before = bytes_of(engine)
        prefill.say(ready := prefill.ready(bad, 2, **case.ready))
        heard = prefill.hear() if not crashed.wait(0.02) else None
        if not isinstance(heard, ReadFailed) or crashed.is_set():
            return f"{heard} where READ_FAILED is due"
        if not re.search(case.why, heard.reason):
            return f"the reason is {heard.reason}"
        if (heard.transfer, heard.slot, heard.epoch) != (ready.transfer, ready.slot, ready.epoch):
            return f"{heard} answers another READY"
        if not all((one == two).all() for one, two in zip(before, bytes_of(engine), strict=True)):
            return "destination bytes have changed"
        layers = (1, 2, 3) if case.there == case.here else (1, 3)  # with Prefill as it is, layer 2 can be right for nobody
        if not all(isinstance(prefill.serve(good, layer), ReadDone) for layer in layers):
            return "another request failed"
        if len(layers) == 3 and completed(engine) != [good.attempt]:
            return "another request does not complete"
        [(attempt, reason)] = engine.failed()
        return "" if attempt == bad.attempt and heard.reason in reason else f"{attempt} failed: {reason}"


@pytest.mark.parametrize("name", CASES)
def test_a_difference_fails_one_layer_of_one_request(name: str) -> None:
    assert complaint(CASES[name]) == ""


CAUGHT_BY = {
    "layer_and_slot": "slot", "token_range": "tokens above the prompt", "main_count": "main count",
    "indexer_presence": "indexer missing here", "scale_presence": "scale missing here", "nothing_else": "something else",
    "dtypes": "main dtype, as many bytes", "main_sizes": "main size", "indexer_size": "indexer size", "scale_size": "scale size",
}  # fmt: skip


@pytest.mark.parametrize("check", decode_checks.LAYER_CHECKS + decode_checks.SLOT_CHECKS, ids=lambda check: check.__name__)
def test_planted_a_comparison_that_is_left_out(monkeypatch: pytest.MonkeyPatch, check: Any) -> None:
    for name in ("LAYER_CHECKS", "SLOT_CHECKS"):
        monkeypatch.setattr(decode_checks, name, tuple(one for one in getattr(decode_checks, name) if one is not check))
    assert complaint(CASES[CAUGHT_BY[check.__name__]]) != ""


def unchecked_pieces(layout: Any, blocks: Any, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    return slot_layout.spread(blocks, start, stop, layout.block_size)


@pytest.mark.parametrize("name", ["source block outside", "a source block twice", "too few source blocks"])
def test_planted_source_blocks_that_nobody_checks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(slot_layout.SlotLayout, "token_rows", unchecked_pieces)
    assert complaint(CASES[name]) != ""


def test_planted_a_stale_incarnation_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def believing(self: Peer, ready: Ready, destination: Any, prompt: int) -> Any:
        table, layout = self.tables.of(ready), self.memories[0].layout
        return decode_peer.checked_parts(decode_checks.Announced(ready, table, layout, self._own_memory, destination, prompt, {}))

    monkeypatch.setattr(Peer, "parts", believing)
    assert complaint(CASES["incarnation"]) != ""


# ---- layers that share an indexer


def shared() -> str:
    """What is wrong where layer 3 has main rows alone, and slot 0, which it shares with layer 1, an indexer's too; "" if nothing is."""
    layout = msgspec.structs.replace(layout_of({0: KINDS, 1: KINDS}), kinds_of_layer=(("main", "index"), ("main", "index"), ("main",)))
    layout = msgspec.structs.replace(layout, digest=slot_layout.layout_digest(layout))
    with both(layout, (MAIN, RowKind("index", "float32", 2, (0, 1)))) as (engine, prefill, _):
        one, _ = starts(engine, prefill)
        for layer in (1, 2, 3):
            if not isinstance(heard := prefill.serve(one, layer), ReadDone):
                return f"layer {layer}: {heard}"
        if completed(engine) != [one.attempt]:
            return "it does not complete"
        pulled = engine.owner.ask(lambda: dict(engine.core.pulled))
        if pulled != {"main": 3 * PROMPT * 16, "index": 2 * PROMPT * 8}:
            return f"{pulled} bytes were pulled"
        blocks = engine.memory.owned[one.attempt].blocks
        for layer, slot in enumerate(SLOT_OF_LAYER):
            for name in engine.memory.kinds_of(layer):
                due = torch.cat([prefill.memory.view(slot, name)[block] for block in (5, 2)])[:PROMPT]
                if not torch.equal(engine.memory.pages[name].tokens(layer, blocks, PROMPT), due):
                    return f"layer {layer + 1} has other {name} rows"
        return ""


def test_a_layer_without_an_indexer_brings_main_rows_alone() -> None:
    assert shared() == ""


def test_planted_the_indexer_rows_of_the_layer_before_in_the_slot_are_taken_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    areas_of = slot_layout.SlotLayout.areas_of
    monkeypatch.setattr(slot_layout.SlotLayout, "areas_of", lambda self, slot, layer=None: areas_of(self, slot))
    assert "layer 3: ReadFailed" in shared()
    assert "index is there on Prefill and is missing on Decode" in shared()


def test_planted_indexer_rows_are_looked_for_in_the_layers_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_rows.PagedRows, "at", lambda self, layer: max(layer - 1, 0))
    assert "rows" in shared()


# ---- the list of blocks that a READY names


def chunks_told(engine: DecodeEngine, prefill: Prefill) -> tuple[Ready, Ready]:
    """READY of both chunks of an attempt's layer 1; the first has been read."""
    bad, _ = starts(engine, prefill)
    one = prefill.ready(bad, 1, stop=BLOCK, blocks=(5,), final=False)
    two = msgspec.structs.replace(prefill.ready(bad, 1, start=BLOCK, blocks=(2,)), transfer=TransferId(one.transfer.run, 2, 1))
    prefill.say(one)
    assert isinstance(prefill.hear(), ReadDone)
    return one, two


def stale() -> str:
    """As `complaint`, for a READY of chunk 2 that names the blocks of chunk 1."""
    with both(layout_of({0: KINDS, 1: KINDS})) as (engine, prefill, crashed):
        one, two = chunks_told(engine, prefill)
        before = bytes_of(engine)
        prefill.say(msgspec.structs.replace(two, table=one.table))
        heard = prefill.hear() if not crashed.wait(0.02) else None
        if not isinstance(heard, ReadFailed) or "names the blocks of run" not in heard.reason or "chunk 1 member 0" not in heard.reason:
            return f"{heard} where READ_FAILED is due"
        return "" if all((a == b).all() for a, b in zip(before, bytes_of(engine), strict=True)) else "bytes have changed"


def test_the_blocks_of_an_earlier_step_are_refused() -> None:
    assert stale() == ""


def test_planted_the_blocks_of_an_earlier_step_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_blocks.StepTable, "check", lambda self, ready: None)
    assert "READ_FAILED is due" in stale()


def missed(engine: DecodeEngine, prefill: Prefill) -> int:
    return engine.core.peers.lives[prefill.incarnation].tables.missed


def test_a_ready_without_its_list_waits_for_the_next_one() -> None:
    with both(layout_of({0: KINDS, 1: KINDS})) as (engine, prefill, _):
        bad, good = starts(engine, prefill)
        prefill.say(ready := prefill.ready(bad, 1), told=False)
        assert isinstance(prefill.serve(good, 1), ReadDone), "the others go on"
        prefill.say(ready)
        heard = prefill.hear()
        assert isinstance(heard, ReadDone)
        assert heard.transfer == ready.transfer
        assert missed(engine, prefill) == 1
        assert engine.owner.refused == 0


def test_planted_a_ready_is_taken_before_its_list_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_blocks.StepTables, "knows", lambda self, ready: True)
    with both(layout_of({0: KINDS, 1: KINDS})) as (engine, prefill, crashed):
        bad, _ = starts(engine, prefill)
        prefill.say(prefill.ready(bad, 1), told=False)
        heard = prefill.hear() if not crashed.wait(0.02) else None
        assert isinstance(heard, ReadFailed)
        assert "names blocks that nobody has told" in heard.reason


@pytest.mark.parametrize("ids", [b"\x05\0\0\0\x03\0\0\0", b"\x05\0\0\0\x02\0\0", b""])
def test_a_list_that_was_damaged_is_dropped_and_the_rest_of_its_batch_is_not(ids: bytes) -> None:
    with both(layout_of({0: KINDS, 1: KINDS})) as (engine, prefill, _):
        bad, good = starts(engine, prefill)
        ready = prefill.ready(bad, 1)
        right = prefill.told[ready.table]
        prefill.told[ready.table] = msgspec.structs.replace(right, ids=ids)
        prefill.say(ready)
        assert isinstance(prefill.serve(good, 1), ReadDone)
        assert (engine.owner.refused, missed(engine, prefill)) == (1, 1)
        prefill.told[ready.table] = right
        prefill.say(ready)
        assert isinstance(prefill.hear(), ReadDone)


# ---- the destination: whatever says so, nothing lands outside an attempt's own blocks


DESTINATIONS = {
    "of another attempt": (lambda own, other: (own[0], other[1]), r"range 1 .* leaves the \d+ bytes that are registered"),
    "of nobody": (lambda own, other: (own[0], 8), r"range 1 .* leaves the \d+ bytes that are registered"),
    "outside the pool": (lambda own, other: (own[0], 9), r"main: block 9 is outside Decode's blocks 0\.\.8"),
    "below zero": (lambda own, other: (-1, own[0]), "main: block -1 is outside Decode's blocks"),
    "too few": (lambda own, other: own[:1], r"main: tokens 0\.\.6 for a destination of 1 blocks of 4 tokens"),
}


def misled(name: str) -> str:
    """As `complaint`, for a READY that is right and an attempt whose blocks are not."""
    wrong, why = DESTINATIONS[name]
    with both(layout_of({0: KINDS, 1: KINDS})) as (engine, prefill, crashed):
        bad, good = starts(engine, prefill)
        owned = engine.memory.owned
        own, other = owned[bad.attempt].blocks, owned[good.attempt].blocks
        owned[bad.attempt] = msgspec.structs.replace(owned[bad.attempt], blocks=wrong(own, other))
        before = bytes_of(engine)
        heard = (prefill.say(prefill.ready(bad, 1)), prefill.hear() if not crashed.wait(0.02) else None)[1]
        if not isinstance(heard, ReadFailed) or not re.search(why, heard.reason):
            return f"{heard} where READ_FAILED is due"
        if not all((one == two).all() for one, two in zip(before, bytes_of(engine), strict=True)):
            return "bytes have changed"
        return "" if isinstance(prefill.serve(good, 1), ReadDone) else "another request failed"


@pytest.mark.parametrize("name", DESTINATIONS)
def test_nothing_lands_outside_an_attempts_own_blocks(name: str) -> None:
    assert misled(name) == ""


def test_planted_a_region_that_is_the_whole_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_shm.Region, "check", lambda *arguments: None)
    assert misled("of another attempt") != ""
    assert misled("of nobody") != ""


def unchecked_rows(self: Any, blocks: Any, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    return slot_layout.spread(np.array(blocks), start, stop, self.block_size)


@pytest.mark.parametrize("name", ["outside the pool", "below zero", "too few"])
def test_planted_destination_blocks_that_nobody_checks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(paged_rows.PagedRows, "rows", unchecked_rows)
    assert misled(name) != ""


# ---- any READY: exactly its rows, or nothing


CAPACITY = 12
READIES = st.tuples(st.builds(
    Ready, st.just("r"), st.just(5), st.builds(TransferId, st.just(1), st.just(1), st.integers(1, 4)), st.integers(0, 2), st.integers(1, 3),
    st.sampled_from([11, 11, 11, 12]), st.integers(-1, CAPACITY), st.integers(-1, CAPACITY + 2), st.booleans(),
), st.lists(st.integers(-1, SOURCE_BLOCKS), max_size=4).map(tuple))  # fmt: skip
FITTING = st.tuples(st.integers(1, 3), st.integers(0, CAPACITY - 1), st.integers(1, CAPACITY), st.permutations(range(SOURCE_BLOCKS)))


Said = tuple[Ready, tuple[int, ...]]


def fitting(layer: int, start: int, count: int, blocks: list[int]) -> Said:
    stop = min(start + count, CAPACITY)
    span = -(-stop // BLOCK) - start // BLOCK
    return Ready("r", 5, TransferId(1, 1, layer), SLOT_OF_LAYER[layer - 1], 1, 11, start, stop, False), tuple(blocks[:span])


def fits(ready: Ready, blocks: tuple[int, ...]) -> bool:
    layer = ready.transfer.layer
    return (
        1 <= layer <= 3 and ready.slot == SLOT_OF_LAYER[layer - 1] and ready.incarnation == 11 and 0 <= ready.start < ready.stop <= CAPACITY
        and len(blocks) == len(set(blocks)) == -(-ready.stop // BLOCK) - ready.start // BLOCK
        and all(0 <= block < SOURCE_BLOCKS for block in blocks)
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(READIES | FITTING.map(lambda fields: fitting(*fields)))
def test_any_ready_brings_exactly_its_rows_or_nothing(said: Said) -> None:
    ready, blocks = said
    memory, source = DecodeMemory(KINDS, layers=3, blocks=7, block_size=BLOCK, rows=2, hot=4, poison=True), layout_of({0: KINDS, 1: KINDS})
    mapped, backend = SharedMemory.allocate(source), ShmPull()
    mapped.bytes[:] = np.random.default_rng(2).integers(0, 100, mapped.bytes.size)
    server = MemoryServer(mapped, f"tidegate-test-{os.getpid()}-{next(COUNT)}")
    peer = Peer(backend, memory, Hello(VERSION, 11, source.digest, server.address), b"address", [fetch_memory(server.address)])
    memory.ask(4, BLOCK)  # so that the blocks of attempt 5 do not begin at 0
    memory.ask(5, CAPACITY)
    memory.admitted()
    destination = memory.owned[5]
    want = {name: pages.memory.clone() for name, pages in memory.pages.items()}
    told = blocks_of(ready.transfer, 11, blocks)
    ready = msgspec.structs.replace(ready, table=told.table)
    peer.tables.hear(told)
    if fits(ready, blocks):
        layer, first = ready.transfer.layer - 1, ready.start // BLOCK
        for name in want:
            rows = mapped.view(ready.slot, name)
            for token in range(ready.start, ready.stop):
                block, row = divmod(token, BLOCK)
                want[name][layer, destination.blocks[block], row] = rows[blocks[block - first], row]
    for name, pages in memory.pages.items():
        backend.register(decode_checks.region_of(name, 5), pages.memory, pages.spans(destination.blocks), name)
    try:
        outcome = backend.pull(peer_name(11, 0), peer.parts(ready, destination, CAPACITY), Work(ready.slot, ready.epoch))
        assert outcome.ok, outcome.reason
        assert fits(ready, blocks)
    except ValueError:
        assert not fits(ready, blocks)
    for name, pages in memory.pages.items():
        assert torch.equal(pages.memory.view(torch.int32), want[name].view(torch.int32))
    backend.close()
    peer.close()
    server.close()
    mapped.close()
