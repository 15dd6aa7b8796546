"""What one rank tells another arrives as it was said."""

from __future__ import annotations

import numpy as np
import pytest

from tidegate.engine.pull_shm import Part
from tidegate.engine.rank_words import Read, pack, pack_part, unpack_leader, unpack_part
from tidegate.protocol.messages import TransferId

COLUMNS = [4096, 0], [64, 128], [32, 32]


@pytest.mark.parametrize("total", [0, 64])
def test_the_columns_of_a_read_arrive_whatever_else_a_part_knows(total: int) -> None:
    part = Part("main-5", *(np.array(column, np.int64) for column in COLUMNS), total)
    word = unpack_leader(pack(Read(TransferId(7, 1, 2, 0), 0, 3, (pack_part(part),), 11)))
    assert isinstance(word, Read)
    region, *columns = unpack_part(word.parts[0])[:4]
    assert (region, [list(column) for column in columns]) == ("main-5", [list(column) for column in COLUMNS])
