"""Several requests in one Prefill step, in real processes: each gets the bits that it gets alone, what fails is one request's, and the
trace is accepted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pair_tools import MODEL, TEXT, config, run
from tampering import retold

from tidegate.engine.config import FaultSpec, Request, RunConfig
from tidegate.engine.pair import run_pair
from tidegate.engine.report import compare
from tidegate.spec.trace import check
from tidegate.spec.trace_lines import TraceRefused

LONG = bool(os.environ.get("TIDEGATE_LONG"))


def batched(**changes: Any) -> RunConfig:
    """Four prompts of 1 to 4 chunks, whose Prefill computes up to three side by side, at most two full chunks in a step."""
    prompts = {"long": TEXT[:300], "middle": TEXT[11:171], "short": TEXT[5:12], "last": TEXT[50:290]}
    requests = tuple(Request(name, tuple(prompt)) for name, prompt in prompts.items())
    return config(**({"requests": requests, "concurrency": 4, "prefill_lanes": 3, "step_tokens": 160} | changes))


@pytest.fixture(scope="module", params=[2, *([1] if LONG else [])], ids="p_tp={}".format)
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(result, compared, folder of the trace)."""
    folder = tmp_path_factory.mktemp("together") / "run"
    folder.mkdir()
    return *run(batched(p_tp=request.param, trace=str(folder))), folder


def test_requests_of_one_step_get_the_bits_that_they_get_alone(together: Any) -> None:
    result, compared, _ = together
    assert all(one.equal for one in compared), compared
    prefill = result.stats["prefill"]
    assert prefill["chunks"] == 4 + 2 + 1 + 3
    assert prefill["steps"] < prefill["chunks"], "no step had several requests"
    assert prefill["blocks_free"] == prefill["blocks"]


def test_the_trace_of_requests_side_by_side_is_accepted(together: Any) -> None:
    accepted = check(together[2])
    assert (accepted.runs, accepted.physical["write_end"]) == (4, accepted.steps)


def test_requests_side_by_side_that_are_told_as_of_one_lane_are_refused(together: Any, tmp_path: Path) -> None:
    """The lane stands in the START's line, and gates are judged lane by lane."""

    def one_lane(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [line | ({"lane": 1} if "lane" in line else {}) for line in lines]

    with pytest.raises(TraceRefused, match=r"CanClaim: the gate of the slot is open"):
        check(retold(together[2], tmp_path / "tampered", "prefill", one_lane))


@pytest.mark.parametrize("p_tp", [1, *([2] if LONG else [])])
def test_a_request_that_fails_leaves_the_step_to_the_others(p_tp: int, tmp_path: Path) -> None:
    c = batched(p_tp=p_tp, decode_faults=(FaultSpec(where="read", mode="quiet", layer=2, chunk=4),), trace=str(tmp_path))
    result, compared = run(c)
    assert not result.results[0].ok
    assert "layer 2" in result.results[0].text
    assert all(one.equal for one in compared[1:]), compared
    assert result.stats["prefill"]["slots_free"] == result.stats["prefill"]["slots"]
    assert result.stats["prefill"]["blocks_free"] == result.stats["prefill"]["blocks"]
    assert check(tmp_path).attempts == 4


def test_drafts_and_shared_indexers_over_several_decodes(tmp_path: Path) -> None:
    """In the steps of several requests some layers have no indexer rows, and the last one looks a token ahead."""
    types = ("full", "full", "shared", "shared", "full", "shared", "full")
    model = MODEL | {"num_hidden_layers": len(types), "model_type": "glm_moe_dsa", "indexer_types": types, "num_nextn_predict_layers": 1}
    c = batched(model=model | {"dtype": "bfloat16"}, drafts=2, d_dp=2, trace=str(tmp_path))
    result = run_pair(c, timeout=60)
    assert check(tmp_path).lives == ("decode", "decode.1", "prefill")
    compared = compare(c, result)
    assert all(one.equal for one in compared), compared
    assert result.stats["prefill"]["steps"] < result.stats["prefill"]["chunks"], "no step had several requests"
    assert result.stats["decode"]["drafted"] > 0
    assert all(stats["drafted"] > 0 for name, stats in result.each.items() if name.startswith("decode"))
