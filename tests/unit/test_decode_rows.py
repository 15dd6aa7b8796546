"""A decode step at one of several ranks: what it made itself it takes from itself, and all compare what they chose."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tidegate.engine.decode_memory import DecodeMemory
from tidegate.engine.decode_rows import DecodeRows
from tidegate.engine.host_memory import HostMemory, shared_file
from tidegate.engine.hot_buffer import Reader
from tidegate.engine.paged_rows import RowKind

KINDS = [RowKind("main", "float32", 4), RowKind("index", "float32", 2)]
SIZES: dict[str, Any] = {"layers": 2, "blocks": 6, "block_size": 4, "rows": 2, "hot": 4, "poison": True}
PROMPT = 7


class Rank(DecodeRows):
    """Attempt 5 with a prompt of 7 tokens, in blocks 3 and 1; main KV is that of all ranks."""

    def __init__(self, rank: int, file: int) -> None:
        super().__init__(DecodeMemory(KINDS, **SIZES, files={"main": file}), {}, rank=rank, ranks=2)
        self._readers[5] = Reader(5, 0, (3, 1), PROMPT, layers=2, block_size=4)

    def made(self, position: int, value: float, layer: int = 0) -> None:
        self.append(layer, [(5, position)], {"main": torch.full((1, 4), value), "index": torch.full((1, 2), value)})

    def found(self, *positions: int, layer: int = 0) -> list[float]:
        (hot,), rows, slots = self.select(layer, [5], torch.tensor([positions]))
        return [float(hot[rows[0], slot].unique().item()) for slot in slots[0]]


@pytest.fixture
def ranks() -> list[Rank]:
    file = shared_file(2 * 6 * 4 * 16)
    ranks = [Rank(rank, file) for rank in range(2)]
    for position in range(PROMPT):
        ranks[0].memory.pages["main"].memory[:, (3, 1)[position // 4], position % 4] = 100.0 + position
    return ranks


def test_what_was_pulled_is_there_for_every_rank(ranks: list[Rank]) -> None:
    for rank in ranks:
        assert rank.found(0, 5, 3) == [100, 105, 103]


def test_a_row_is_its_own_until_the_ranks_have_met_and_the_pools_from_then_on(ranks: list[Rank]) -> None:
    leader, hand = ranks
    hand.made(PROMPT, 1.0)  # before the leader has made it: in the pool there is nothing yet
    assert hand.memory.pages["main"].memory[0, 1, 3].isnan().all()
    assert hand.found(2, PROMPT) == [102, 1]
    leader.made(PROMPT, 1.0)
    assert leader.found(2, PROMPT) == [102, 1]
    assert leader.forward_digest() == hand.forward_digest()
    leader.memory.pages["main"].memory[0, 1, 3] = 2.0  # to tell apart where it comes from
    assert hand.found(0, 1, 3, 4) == [100, 101, 103, 104], "all slots are others' now"
    assert hand.found(PROMPT) == [2]


def test_planted_a_rank_that_does_not_wait_for_the_meeting_reads_a_row_that_is_not_there(ranks: list[Rank]) -> None:
    _, hand = ranks
    hand.made(PROMPT, 1.0)
    hand.forward_digest()  # as if it had met the leader, which has not made the row yet
    (hot,), rows, slots = hand.select(0, [5], torch.tensor([[PROMPT]]))
    assert hot[rows[0], slots[0]].isnan().all()


def test_each_attempt_gets_its_own_new_rows_of_every_part() -> None:
    kinds = [RowKind("main.k", "float32", 4), RowKind("main.v", "float32", 2), KINDS[1]]
    hand = DecodeRows(DecodeMemory(kinds, **SIZES), {}, rank=1, ranks=2)
    for attempt, blocks in ((5, (3, 1)), (6, (0, 2))):
        hand._readers[attempt] = Reader(attempt, attempt - 5, blocks, PROMPT, layers=2, block_size=4)
    new = {kind.name: torch.tensor([[5.0 + n], [6.0 + n]]).expand(2, kind.width) for n, kind in enumerate(kinds)}
    hand.append(1, [(5, PROMPT), (6, PROMPT)], {name: rows.contiguous() for name, rows in new.items()})
    hot, rows, slots = hand.select(1, [6, 5], torch.full((2, 1), PROMPT))
    assert [[part[rows[i], slots[i, 0]].unique().tolist() for part in hot] for i in range(2)] == [[[6], [7]], [[5], [6]]]


def test_the_last_token_of_the_prompt_is_made_again_and_its_own(ranks: list[Rank]) -> None:
    _, hand = ranks
    assert hand.found(PROMPT - 1) == [106]
    hand.forward_digest()
    hand.made(PROMPT - 1, 9.0)
    assert hand.found(PROMPT - 1, 0) == [9, 100]


def test_another_choice_or_another_place_is_another_digest(ranks: list[Rank]) -> None:
    leader, hand = ranks
    leader.found(0, 1)
    hand.found(0, 2)
    assert leader.forward_digest() != hand.forward_digest(), "another position"
    leader.found(3)
    hand.found(3)
    assert leader.forward_digest() == hand.forward_digest()
    leader.found(0, layer=1)
    hand.found(1, layer=1)
    assert leader.forward_digest() != hand.forward_digest(), "another position in the last layer"
    for rank, order in ((leader, (4, 5)), (hand, (5, 4))):
        rank.found(*order)
        rank.forward_digest()
        rank.found(4, 5)
    assert leader.forward_digest() != hand.forward_digest(), "the same positions in other slots"


def test_a_layer_without_an_indexer_has_main_rows_alone() -> None:
    rows = DecodeRows(DecodeMemory([KINDS[0], RowKind("index", "float32", 2, (1,))], **SIZES), {})
    rows._readers[5] = Reader(5, 0, (3, 1), PROMPT, layers=2, block_size=4)
    main, index = torch.ones(1, 4), torch.full((1, 2), 7.0)
    for layer, wrong, right in ((0, {"main": main, "index": index}, {"main": main}), (1, {"main": main}, {"main": main, "index": index})):
        with pytest.raises(ValueError, match="a token has"):
            rows.append(layer, [(5, PROMPT)], wrong)
        rows.append(layer, [(5, PROMPT)], right)
    assert rows.index_rows(1, 5)[PROMPT].tolist() == [7, 7]
    pages, table = rows.index_pages(1, 5)
    assert pages[table[1], 3].tolist() == [7, 7]
    assert rows.memory.pages["index"].memory.shape[0] == 1
    for look in (rows.index_rows, rows.index_pages):
        with pytest.raises(ValueError, match="index: layer 1 of a Decode of 1 layers that have such rows"):
            look(0, 5)


WRONG_KINDS = {
    "main KV is of all layers": [RowKind("main", "float32", 4, (0,)), KINDS[1]],
    "a scale is where its indexer row is": [*KINDS, RowKind("scale", "float16", 1, (0,))],
    r"indexer rows of layers \[2\]: there are layers 0..1": [KINDS[0], RowKind("index", "float32", 2, (0, 2))],
    "one for each, in ascending order": [KINDS[0], RowKind("index", "float32", 2, (1, 0))],
}


@pytest.mark.parametrize("why", WRONG_KINDS)
def test_layers_that_contradict_each_other_are_refused(why: str) -> None:
    with pytest.raises(ValueError, match=why):
        DecodeMemory(WRONG_KINDS[why], **SIZES)


def test_only_the_first_rank_writes_the_shared_pool(ranks: list[Rank]) -> None:
    leader, hand = ranks
    hand.made(PROMPT, 1.0)
    assert leader.memory.pages["main"].memory[0, 1, 3].isnan().all()
    assert (hand.memory.pages["index"].memory[0, 1, 3] == 1).all()
    leader.made(PROMPT, 3.0)
    assert (hand.memory.pages["main"].memory[0, 1, 3] == 3).all()


def test_shared_memory_is_one_and_says_what_it_got() -> None:
    file = shared_file(1 << 20)
    one, two = HostMemory(1 << 20, file=file), HostMemory(1 << 20, file=file)
    one.bytes[17] = 5
    assert two.bytes[17] == 5
    assert one.got.resident == 1 << 20
    assert one.got.refusal or one.got.pinned == 1 << 20
