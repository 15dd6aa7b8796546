"""Real processes walk every labelled edge that one Prefill and one Decode rank can reach (`tidegate coverage` says which those are)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
from edge_tools import SHAPES, overlapping

from tidegate.engine.event_trace import FOLDER
from tidegate.engine.pair import run_pair
from tidegate.engine.report import compare
from tidegate.spec.coverage import PROCESSES, believed, unwalked
from tidegate.spec.edges import Edge
from tidegate.spec.walks import Traced, traced

LONG = bool(os.environ.get("TIDEGATE_LONG"))
MOST = 48 if LONG else len(SHAPES)
"""Runs; one of each shape is done always, and in the long form more until all is walked: races decide about some edges."""


def missing(*walked: Traced) -> list[str]:
    """The edges that are still to be walked."""
    known = unwalked()
    left = believed(known, Traced(*(set[Edge]().union(*way) for way in zip(*walked, strict=True)))).missing(PROCESSES)
    return sorted(str(edge) for edge in left if not any(u.of(edge) for u in known if u.where == PROCESSES))


def judged(seed: int) -> None:
    """One run: requests may fail in it, and none is wrong."""
    c = overlapping(seed)
    result = run_pair(c, timeout=300)
    wrong = [one.request for n, one in enumerate(compare(c, result)) if result.results[n].ok and not one.equal]
    assert not wrong, f"run {seed}: wrong answers to {wrong}"
    decode = result.stats["decode"]  # Prefill is stopped at once, and may not have heard of every end: the soak waits for its rest
    assert (decode["places_free"], decode["blocks_free"]) == (decode["places"], decode["blocks"]), f"run {seed}: not all was given back"


@pytest.mark.timeout(1800)  # more runs, where one walks little: on a machine that has other things to do
def test_every_edge_that_a_pair_can_reach_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the runs of the tests before this one, where they were kept, and by those made here, two at a time."""
    kept = os.environ.get(FOLDER)
    before = traced([Path(kept)]) if kept and any(Path(kept).rglob("*.jsonl")) else Traced(set(), set())
    mine = Path(kept or tmp_path) / "edges"
    mine.mkdir()
    monkeypatch.setenv(FOLDER, str(mine))
    seeds, runs = iter(range(MOST)), 0
    with ThreadPoolExecutor(2) as pool:
        while runs < MOST and (runs < len(SHAPES) or missing(before, traced([mine]))):
            for done in [pool.submit(judged, seed) for seed in islice(seeds, 2)]:
                done.result()
                runs += 1
    left = missing(before, traced([mine]))
    assert not left or not LONG, f"not walked in {runs} runs: {'; '.join(left)}"


def test_planted_a_test_that_is_taken_out_is_noticed(tmp_path: Path) -> None:
    """What walked an edge alone: its trace is gone, and the edge is named."""
    everything = believed(unwalked(), Traced(set(), set())).pair
    only = next(edge for edge in sorted(everything) if edge.machine == "Transfer" and edge.event == "Revoke")
    assert missing(Traced(set(everything), set())) == []
    assert missing(Traced(set(everything) - {only}, set())) == [str(only)]
