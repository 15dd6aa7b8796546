"""Layers that share an indexer's top-k, in real processes: main rows alone are kept and moved for them, and every token is the same."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pair_tools import MODEL, TEXT, config, run
from typer.testing import CliRunner

from tidegate.engine.cli import app
from tidegate.engine.config import Request, RunConfig
from tidegate.engine.pair import PairError
from tidegate.spec.trace import check

LONG = bool(os.environ.get("TIDEGATE_LONG"))
TYPES = ("full", "full", "shared", "shared", "full", "shared", "full")


def sharing(types: tuple[str, ...] = TYPES, **changes: Any) -> RunConfig:
    """Both shared slots have layers with an indexer and layers without one."""
    model = MODEL | {"num_hidden_layers": len(types), "model_type": "glm_moe_dsa", "indexer_types": types, "dtype": "bfloat16"}
    return config(**({"model": model} | changes))


def row_bytes(c: RunConfig, *names: str) -> int:
    """Of one token, in all layers that have such rows."""
    return sum(kind.row_bytes * (c.model_config().cache_layers if kind.layers is None else len(kind.layers))
               for kind in c.row_kinds() if kind.name in names)  # fmt: skip


PAIRS = [(1, 1, False, 0), (2, 2, True, 1)]
MORE = [(1, 1, True, 0), (2, 1, False, 2), (4, 2, False, 0), (4, 4, True, 2)]


@pytest.mark.parametrize(("p_tp", "d_tp", "lic8", "drafts"), PAIRS + (MORE if LONG else []))
def test_what_a_layer_has_not_is_neither_saved_nor_pulled(tmp_path: Path, p_tp: int, d_tp: int, lic8: bool, drafts: int) -> None:
    model = sharing().model | {"num_nextn_predict_layers": int(drafts > 0)}
    c = sharing(p_tp=p_tp, d_tp=d_tp, lic8=lic8, drafts=drafts, model=model, trace=str(tmp_path))
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    tokens = sum(len(request.prompt) for request in c.requests)
    prefill, decode = result.stats["prefill"], result.stats["decode"]
    assert prefill["bytes_saved"] == tokens * row_bytes(c, "main", "index", "scale")
    assert decode["bytes_pulled_main"] == tokens * row_bytes(c, "main")
    assert decode["bytes_pulled_index"] == d_tp * tokens * row_bytes(c, "index", "scale")
    assert row_bytes(c, "index") < row_bytes(sharing(("full",) * len(TYPES), model=model | {"indexer_types": ()}, lic8=lic8), "index")
    assert check(tmp_path).attempts == 2


def test_a_prefix_of_shared_layers_is_reused(tmp_path: Path) -> None:
    requests = tuple(Request(f"r{n}", tuple(prompt)) for n, prompt in enumerate((TEXT[:150], TEXT[:100] + b"0123456789" * 5)))
    c = sharing(requests=requests, chunk=48, concurrency=1, trace=str(tmp_path))
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    assert result.stats["prefill"]["tokens_reused"] == 96
    assert result.stats["prefill"]["bytes_reused"] == 96 * row_bytes(c, "main", "index")
    assert check(tmp_path).attempts == 2


CHOOSING = """
from tidegate.engine import decode_worker
from tidegate.engine.decode_kv import AttemptBatch
fetch = AttemptBatch.fetch
def wrong(self, layer, positions):
    if "index" not in self._engine.memory.kinds_of(layer):
        positions = [p.roll(1) if len(p) < 12 else p - (p > 0).long() for p in positions]
    return fetch(self, layer, [p.unique() for p in positions])
AttemptBatch.fetch = wrong
decode_worker.main()
"""
EVERYWHERE = """
from tidegate.engine import prefill_worker, slot_layout
areas_of = slot_layout.SlotLayout.areas_of
slot_layout.SlotLayout.areas_of = lambda self, slot, layer=None: areas_of(self, slot)
prefill_worker.main()
"""


@pytest.mark.skipif(not LONG, reason="the parts of it are unit tests")
def test_planted_a_shared_layer_that_chooses_other_rows_would_be_seen() -> None:
    _, compared = run(sharing(), decode_argv=[sys.executable, "-c", CHOOSING])
    assert not any(one.logits_equal for one in compared)


@pytest.mark.skipif(not LONG, reason="the parts of it are unit tests")
def test_planted_a_prefill_that_gives_each_layer_all_of_its_slot_ends() -> None:
    with pytest.raises(PairError, match=r"layer 2: rows of \['index', 'main'\] are given where \['main'\] are due"):
        run(sharing(), prefill_argv=[sys.executable, "-c", EVERYWHERE])


@pytest.mark.skipif(not LONG, reason="79 layers take a minute")
def test_78_layers_with_21_indexers_and_an_mtp_layer(tmp_path: Path) -> None:
    """The published pattern, whole."""
    types = ("full", *(("full",) + ("shared",) * 3) * 19, "full")
    assert len(types) == 78
    assert types.count("full") == 21
    c = sharing(types, drafts=1, trace=str(tmp_path), model=sharing(types).model | {"num_nextn_predict_layers": 1})
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    tokens = sum(len(request.prompt) for request in c.requests)
    assert result.stats["decode"]["bytes_pulled_index"] == 22 * tokens * c.model_config().index_width * 2
    assert check(tmp_path).attempts == 2


def test_the_command_shares_in_the_seeded_model(tmp_path: Path) -> None:
    (tmp_path / "prompt").write_bytes(TEXT[:70])
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [
        "run", "--prompt-file", str(tmp_path / "prompt"), "--prompts", "1", "--new-tokens", "3", "--layers", "6", "--index-topk-freq", "4",
    ])  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "6 layers over 4 buffers" in result.output
    assert "pulled to Decode, indexer │ 0.05 MB" in " ".join(result.output.split()), "three layers of six"
    assert "all tokens and logits are bit-equal" in result.output
