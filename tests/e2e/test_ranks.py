"""Several ranks a side, a process each: the same tokens, logits and bytes as one process, nothing moved twice, and one end for all."""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

import pytest
from pair_tools import config, mutated, run, slow

from tidegate.engine.config import FaultSpec, RunConfig
from tidegate.engine.pair import PairError, run_pair
from tidegate.spec import gen
from tidegate.spec.paths import root
from tidegate.spec.trace import check

LONG = bool(os.environ.get("TIDEGATE_LONG"))
SHORT_PAIRS = [(2, 1), (2, 2)]
LONG_PAIRS = [(4, 1), (4, 2), (4, 4)]


def row_bytes(c: RunConfig, kind: str) -> int:
    """Of one token, all layers."""
    model = c.model_config()
    width = model.main_width if kind == "main" else model.index_width
    return model.cache_layers * width * model.torch_dtype.itemsize


def hands_of(leader: int) -> list[int]:
    """The processes that a leader has started."""
    return [int(pid) for pid in Path(f"/proc/{leader}/task/{leader}/children").read_text().split()]


@pytest.mark.parametrize(("p_tp", "d_tp"), SHORT_PAIRS + (LONG_PAIRS if LONG else []))
def test_every_pair_of_sizes_gives_the_bits_of_one_process(p_tp: int, d_tp: int, tmp_path: Path) -> None:
    c = config(p_tp=p_tp, d_tp=d_tp, trace=str(tmp_path))
    result, compared = run(c)
    assert check(tmp_path).steps == p_tp * 7 * (4 + 3)
    assert all(one.equal for one in compared), compared
    tokens = sum(len(request.prompt) for request in c.requests)
    prefill, decode = result.stats["prefill"], result.stats["decode"]
    assert prefill["bytes_saved"] == tokens * (row_bytes(c, "main") + row_bytes(c, "index")), "each rank saves its share"
    assert decode["bytes_pulled_main"] == tokens * row_bytes(c, "main"), "main KV is pulled once"
    assert decode["bytes_pulled_index"] == d_tp * tokens * row_bytes(c, "index"), "each Decode rank has the whole indexer cache"
    assert prefill["slots_free"] == prefill["slots"]
    assert prefill["blocks_free"] == prefill["blocks"]


@pytest.mark.parametrize("role", ["prefill", *(["decode"] if LONG else [])])
def test_a_rank_that_dies_ends_its_whole_group(role: str) -> None:
    hands: list[int] = []

    def kill(pids: dict[str, int]) -> None:
        hands.extend(hands_of(pids[role]))
        os.kill(hands[0], signal.SIGKILL)

    with pytest.raises(PairError, match=f"{role}: rank 1 of 2 ended by signal 9, so all ranks of this instance end"):
        run_pair(config(p_tp=2, d_tp=1 + (role == "decode")), on_started=kill, timeout=60)
    assert len(hands) == 1


def test_a_rank_whose_leader_dies_ends_too() -> None:
    hands: list[int] = []

    def kill(pids: dict[str, int]) -> None:
        hands.extend(os.pidfd_open(pid) for pid in hands_of(pids["prefill"]))
        os.kill(pids["prefill"], signal.SIGKILL)

    with pytest.raises(PairError, match="the prefill worker was killed by SIGKILL"):
        run_pair(config(p_tp=2), on_started=kill, timeout=60)
    assert len(hands) == 1
    for hand in hands:
        assert select.select([hand], [], [], 30)[0], "the hand lives on without its leader"
        os.close(hand)


DIVERGING = """
import tidegate.engine.decode_rows as rows
select = rows.DecodeRows.select
def diverging(self, layer, attempts, topk):
    if layer == 3 and max(self._readers[a].lengths[layer] for a in attempts) > 302:
        topk = topk.clone()
        topk[:, -1] = topk[:, 0]
    return select(self, layer, attempts, topk)
rows.DecodeRows.select = diverging
import tidegate.engine.decode_rank as rank
rank.main()
"""


def test_ranks_that_choose_differently_all_end_and_say_so() -> None:
    """One position of one layer, from the third token on, at one rank: nothing else would ever show it."""
    leader = [
        sys.executable, "-c",
        "import sys\n"
        "import tidegate.engine.hands as hands\n"
        f"hands.rank_argv = lambda module: [sys.executable, '-c', {DIVERGING!r}]\n"
        "import tidegate.engine.decode_worker as worker\n"
        "worker.main()\n",
    ]  # fmt: skip
    with pytest.raises(PairError, match=r"top-k and residency of a forward: ranks \[1\] of 2 have another than rank 0"):
        run_pair(config(p_tp=2, d_tp=2), decode_argv=leader, timeout=60)


FAULTS = {
    "read at a hand": ({"decode_faults": (FaultSpec(where="read", mode="quiet", layer=2, chunk=4),)}, "layer 2"),
    "save at every rank": ({"prefill_faults": (FaultSpec(where="save", mode="quiet", layer=1, chunk=1, nth=1),)}, "not in the pool"),
}


@pytest.mark.skipif(not LONG, reason="what the sessions do about it the short run shows at one rank")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_some_rank_fails_its_request_alone(name: str) -> None:
    faults, why = FAULTS[name]
    c = config(p_tp=2, d_tp=2, **faults)
    result, compared = run(c)
    assert not result.results[0].ok
    assert why in result.results[0].text
    assert compared[1].equal
    assert result.stats["prefill"]["slots_free"] == result.stats["prefill"]["slots"]


def test_planted_without_the_agreement_a_step_is_entered_that_a_rank_may_not_write() -> None:
    """A slow save keeps a gate shut; a leader that does not ask for the ranks' agreement goes on, and the gate's own machine refuses it."""
    source = (root() / "tla/machines/StepAgreement.tla").read_text()
    asked = "CanEnter(s) == s.entered # {} \\/ s.ready = s.members"
    assert asked in source
    unasked = gen.compile_text("StepAgreement", source.replace(asked, "CanEnter(s) == TRUE"))
    c = config(p_tp=2, prefill_faults=(slow("save", 0.5, layer=1, chunk=1),))
    assert all(one.equal for one in run(c)[1])
    with pytest.raises(PairError, match=r"Write by .* is refused: slot \d+ is not this run's to write"):
        run_pair(c, prefill_argv=mutated("prefill", "step_agreement", unasked), timeout=60)
