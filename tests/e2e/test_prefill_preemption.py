"""More prompts than Prefill has blocks for, in real processes: they give way to each other between their chunks, each gets the bits that
it gets alone, the trace is accepted, and all memory comes back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pair_tools import TEXT, config, run
from tampering import retold

from tidegate.engine.config import Request, RunConfig
from tidegate.engine.pool_keys import pool_objects
from tidegate.spec.trace import check
from tidegate.spec.trace_lines import TraceRefused

LONG = bool(os.environ.get("TIDEGATE_LONG"))
SHARED = {"independent_layers": (), "shared_buffers": 3}


def crowded(**changes: Any) -> RunConfig:
    """Six prompts of up to 7 chunks, blocks for the longest alone, and a host pool for two and a half of them."""
    lengths = (300, 290, 150, 20, 260, 7)
    requests = tuple(Request(f"r{i}", tuple(TEXT[7 * i : 7 * i + length])) for i, length in enumerate(lengths))
    return config(**({
        "requests": requests, "chunk": 48, "num_blocks": 19, "pool_blocks": 5 * pool_objects(300, 16, 48) // 2, "concurrency": 6,
        "prefill_preempt_after": 48, "prefill_lanes": 2, "step_tokens": 96, "new_tokens": 3,
    } | changes))  # fmt: skip


@pytest.fixture(
    scope="module", params=[{"p_tp": 2}, *([{}, SHARED, SHARED | {"p_tp": 2}, {"prefill_lanes": 1}, {"lic8": True}] if LONG else [])],
    ids=str,
)  # fmt: skip
def taking_turns(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(result, compared, folder of the trace)."""
    folder = tmp_path_factory.mktemp("turns") / "run"
    folder.mkdir()
    return *run(crowded(**request.param, trace=str(folder))), folder


def test_prompts_that_give_way_get_the_bits_that_they_get_alone(taking_turns: Any) -> None:
    result, compared, _ = taking_turns
    assert len(compared) == 6
    assert all(one.equal for one in compared), compared
    prefill = result.stats["prefill"]
    assert prefill["preempted"] == prefill["gave_way"] == prefill["resumed"] > 3
    assert prefill["chunks"] == 7 + 7 + 4 + 1 + 6 + 1, "no chunk is computed twice"
    assert (prefill["blocks_free"], prefill["slots_free"]) == (prefill["blocks"], prefill["slots"])


def test_the_trace_of_prompts_that_give_way_is_accepted(taking_turns: Any) -> None:
    accepted = check(taking_turns[2])
    assert (accepted.runs, accepted.physical["write_end"]) == (6, accepted.steps)


def test_a_prompt_that_is_elsewhere_and_gave_no_way_is_refused(taking_turns: Any, tmp_path: Path) -> None:
    def still(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [line for line in lines if line.get("op") != "GiveWay"]

    with pytest.raises(TraceRefused, match=r"CanClaim|CanExtend|its Claim came before|load writes the bytes"):
        check(retold(taking_turns[2], tmp_path / "tampered", "prefill", still))
