"""The flags of `tidegate run` together: of any two of them every two values meet in some run, and each run is bit-equal and accepted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from pair_tools import MODEL, TEXT, config

from tidegate.engine.config import Request
from tidegate.engine.pair import run_pair
from tidegate.engine.report import compare
from tidegate.spec.trace import check

LONG = bool(os.environ.get("TIDEGATE_LONG"))
VALUES: dict[str, tuple[Any, ...]] = {
    "p_tp": (1, 2, 4), "d_tp": (1, 2, 4), "d_dp": (1, 2), "drafts": (0, 2), "lic8": (False, True), "concurrency": (1, 3),
}  # fmt: skip
Flags = dict[str, Any]
ALLOWED = [flags for values in product(*VALUES.values()) if (flags := dict(zip(VALUES, values, strict=True)))["p_tp"] % flags["d_tp"] == 0]


def pairs(flags: Flags) -> set[tuple[tuple[str, Any], ...]]:
    """Every two flags with their values."""
    return set(combinations(flags.items(), 2))


def missing(chosen: Iterable[Flags]) -> set[tuple[tuple[str, Any], ...]]:
    """The pairs that some allowed combination has, and none of the chosen."""
    return set().union(*map(pairs, ALLOWED)).difference(*map(pairs, chosen))


def covering() -> list[Flags]:
    """A few of ALLOWED that have every pair: each is the one that brings the most new ones, and of these the one with fewest processes."""
    chosen: list[Flags] = []
    while left := missing(chosen):
        chosen.append(max(ALLOWED, key=lambda flags: (len(pairs(flags) & left), -flags["p_tp"] - flags["d_tp"] * flags["d_dp"])))
    return chosen


COVERING = covering()


def test_every_two_values_meet_in_some_run() -> None:
    assert missing(COVERING) == set()
    assert len(COVERING) < len(ALLOWED) / 8
    assert missing(COVERING[:-1]) != set(), "planted: one is left out"


@pytest.mark.parametrize("flags", COVERING if LONG else COVERING[:1], ids=lambda flags: "-".join(map(str, flags.values())))
def test_flags_together_change_no_bit(flags: Flags, tmp_path: Path) -> None:
    requests = tuple(Request(f"r{n}", tuple(TEXT[n : n + length])) for n, length in enumerate((90, 150, 5)))
    model = MODEL | {"num_hidden_layers": 4, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "dtype": "bfloat16"}
    c = config(requests=requests, model=model, trace=str(tmp_path), **flags)
    result = run_pair(c, timeout=60)
    compared = compare(c, result)
    assert [one.equal for one in compared] == [True] * 3, compared
    assert result.stats["decode"]["blocks_free"] == c.d_dp * c.decode_blocks
    assert result.stats["prefill"]["slots_free"] == result.stats["prefill"]["slots"]
    assert check(tmp_path).attempts == 3
