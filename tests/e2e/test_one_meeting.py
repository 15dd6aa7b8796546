"""The ranks of a Decode meet once a forward, however many layers it has: counted in the processes themselves.

Each process writes down, forward by forward, how often it was in a meeting; what several ranks add up in the model is not counted, that is
the computation itself.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pair_tools import MODEL, config, run

LONG = bool(os.environ.get("TIDEGATE_LONG"))
COUNTING = """
import json, os, sys
if any("tidegate.engine.decode_" in word for word in sys.orig_argv):
    from tidegate.engine import decode_rows, decode_steps
    from tidegate.engine.model import GlooRanks
    met, speculate, agree, exchange = [], decode_steps.speculate, GlooRanks.agree, GlooRanks.exchange
    def counted(self, data):
        met.append(data)
        return exchange(self, data)
    def forward(model, *rest, **options):
        groups.append(model.group)
        met.clear()
        return speculate(model, *rest, **options)
    def meet(self, what, data):
        agree(self, what, data)
        with open(os.path.join({folder!r}, str(os.getpid())), "a") as file:
            file.write(json.dumps(len(met)) + chr(10))
    groups = []
    GlooRanks.exchange, GlooRanks.agree, decode_steps.speculate = counted, meet, forward
"""
PER_LAYER = """
    select = decode_rows.DecodeRows.select
    def selected(self, *rest):
        agree(groups[-1], "a layer", b"")
        return select(self, *rest)
    decode_rows.DecodeRows.select = selected
"""


def meetings(folder: Path, monkeypatch: pytest.MonkeyPatch, layers: int, planted: str = "") -> list[list[int]]:
    """Of each rank, for each forward."""
    counts = folder / "counts"
    counts.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(COUNTING.replace("{folder!r}", repr(str(counts))) + planted)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    _, compared = run(config(p_tp=2, d_tp=2, model=MODEL | {"num_hidden_layers": layers, "first_k_dense_replace": layers - 1,
                                                            "dtype": "bfloat16"}))  # fmt: skip
    assert all(one.equal for one in compared), compared
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in counts.iterdir()]


@pytest.mark.parametrize("layers", [7, *([3] if LONG else [])])
def test_the_ranks_meet_once_a_forward_whatever_the_number_of_layers(layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = meetings(tmp_path, monkeypatch, layers)
    assert len(found) == 2
    assert len(found[0]) == len(found[1]) >= 6, "tokens of each request"
    assert {count for rank in found for count in rank} == {1}


@pytest.mark.skipif(not LONG, reason="make test-long")
def test_planted_a_meeting_for_each_layer_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {count for rank in meetings(tmp_path, monkeypatch, 7, PER_LAYER) for count in rank} == {7 + 1}
