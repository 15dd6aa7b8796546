"""What several unit tests need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from rendezvous_tools import Bench


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch adds up in one order only while it computes in one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    from rendezvous_tools import Bench  # which loads what only those tests need

    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        made.append(Bench(**settings))
        return made[-1]

    before = threading.active_count()
    yield make
    for one in made:
        one.close()
    assert threading.active_count() == before, "a server's thread is left"
