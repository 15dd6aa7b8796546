"""`tidegate run --mtp`: drafts come true now and then, and every token, logit and row is that of the plain run without speculation."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from pair_tools import MODEL, TEXT, config, run
from typer.testing import CliRunner

from tidegate.engine.cli import app
from tidegate.engine.config import GIB, Request, RunConfig
from tidegate.engine.model import Model, ModelConfig, ResidentKV, reference_prefill, save_checkpoint
from tidegate.engine.pair import PairError, PairResult
from tidegate.engine.recorder import content_tag

LONG = bool(os.environ.get("TIDEGATE_LONG"))
OTHER = b"0123456789" * 5
LISTENING = 0.04  # how much of what attention and MLP say is heard: with 0 every draft comes true, with 1 hardly one


def guessing(**changes: Any) -> Model:
    """A model in which what follows a token is mostly that token's doing, in the network and in the MTP layer alike."""
    config = ModelConfig(**(MODEL | {"num_hidden_layers": 4, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1} | changes))
    model = Model.random(config, 5)
    weights = {name: t * (LISTENING if "o_proj" in name or "down_proj" in name else 1) for name, t in model.weights.items()}
    last, size = f"model.layers.{config.num_hidden_layers}.", config.hidden_size
    weights[last + "eh_proj.weight"] = torch.cat([torch.eye(size), torch.zeros(size, size)], 1).to(config.torch_dtype)
    for name in (last + "enorm.weight", last + "shared_head.norm.weight", "model.norm.weight"):
        weights[name] = torch.ones_like(weights[name])
    return Model(config, weights)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("guessing") / "model"
    save_checkpoint(guessing(), made)
    return made


def drafting(folder: Path, **changes: Any) -> RunConfig:
    prompts = (TEXT[:150], TEXT[:96] + OTHER, TEXT[7:10])
    requests = tuple(Request(f"r{n}", tuple(prompt)) for n, prompt in enumerate(prompts))
    settings = {"requests": requests, "model": {"dtype": "bfloat16"}, "checkpoint": str(folder), "drafts": 2, "new_tokens": 14,
                "concurrency": 3, "chunk": 48}  # fmt: skip
    return config(**(settings | changes))


PAIRS = [(1, 1, False, 2), (2, 2, True, 2)]
MORE = [(1, 1, False, 1), (1, 1, True, 3), (2, 1, False, 5), (4, 2, False, 3), (4, 4, True, 1)]


@pytest.mark.parametrize(("p_tp", "d_tp", "lic8", "drafts"), PAIRS + (MORE if LONG else []))
def test_drafts_save_forwards_and_change_nothing(folder: Path, p_tp: int, d_tp: int, lic8: bool, drafts: int) -> None:
    """Three requests at once, compared with the plain run without speculation."""
    c = drafting(folder, p_tp=p_tp, d_tp=d_tp, lic8=lic8, drafts=drafts)
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    stats = result.stats["decode"]
    assert 0 < stats["accepted"] < stats["drafted"], "some drafts come true, and some are refused"
    assert stats["forwards"] + stats["accepted"] == len(c.requests) * c.new_tokens


def crowd(folder: Path, preempt_after: int, d_tp: int = 1) -> RunConfig:
    """Six requests that draft, places for two, and blocks for the longest and little else."""
    prompts = (TEXT[:150], TEXT[7:10], TEXT[:96] + OTHER, TEXT[3:20], TEXT[50:190], TEXT[20:29])
    c = drafting(folder, requests=tuple(Request(f"r{n}", tuple(prompt)) for n, prompt in enumerate(prompts)), concurrency=2,
                 preempt_after=preempt_after, d_tp=d_tp, p_tp=d_tp)  # fmt: skip
    return msgspec.structs.replace(c, host_memory_gib=(c.request_blocks + 3) * c.block_bytes / GIB).checked()


@pytest.mark.parametrize(("d_tp", "preempt_after"), [(1, 3), *([(1, 1), (2, 2)] if LONG else [])])
def test_requests_that_draft_take_turns(folder: Path, d_tp: int, preempt_after: int) -> None:
    """Who gives way in the midst of drafts goes on with the bits that it gets alone."""
    c = crowd(folder, preempt_after, d_tp)
    result, compared = run(c)
    assert len(compared) == len(c.requests)
    assert all(one.equal for one in compared), compared
    stats = result.stats["decode"]
    assert stats["preempted"] > 0
    assert stats["dropped"] > 0
    assert 0 < stats["accepted"] < stats["drafted"]
    assert stats["places_free"] == stats["places"] == c.concurrency


GOES_ON = """
from tidegate.engine import decode_turns, decode_worker
real = decode_turns.Turns._preempt
def preempt(self, may):
    one = real(self, may)
    {wrong}
    return one
decode_turns.Turns._preempt = preempt
decode_worker.main()
"""
WRONGLY = {
    "a token too early": "at = one.decoding; at.token, at.position = one.tokens[-2], at.position - 1",
    "believing its drafts": "at = one.decoding; one.tokens += at.drafts; at.position += len(at.drafts); "
                            "at.token, at.drafts = [at.token, *at.drafts][-1], []",
}  # fmt: skip
"""Whoever gave way, with `new_tokens` still to be made in all."""


@pytest.mark.skipif(not LONG, reason="the short run shows that it goes on rightly")
@pytest.mark.parametrize("wrong", WRONGLY)
def test_planted_who_gave_way_in_the_midst_of_drafts_goes_on_wrongly(folder: Path, wrong: str) -> None:
    def judged() -> None:
        _, compared = run(crowd(folder, 3), decode_argv=[sys.executable, "-c", GOES_ON.format(wrong=WRONGLY[wrong])])
        assert all(one.equal for one in compared), "other bits"

    with pytest.raises((PairError, AssertionError), match=r"other bits|are there, and its blocks hold"):
        judged()


def test_a_row_that_looks_ahead_is_reused_only_where_the_next_token_is_the_same(folder: Path) -> None:
    """Two prompts have 6 whole blocks alike, and go on differently: in the MTP layer the last row of the sixth differs."""
    c = drafting(folder, concurrency=1, requests=drafting(folder).requests[:2], new_tokens=2)
    result, compared = run(c)
    assert all(one.equal for one in compared), compared
    assert result.stats["prefill"]["tokens_reused"] == 80, "five blocks"
    same_rows(c, result)


def same_rows(c: RunConfig, result: PairResult) -> None:
    """Decode got, in every layer, what a prefill of each prompt alone writes."""
    model = c.load_model()
    for n, request in enumerate(c.requests):
        resident, end = ResidentKV(model.config, len(request.prompt)), len(request.prompt)
        reference_prefill(model, request.prompt, c.chunk, resident)
        kinds = (resident.main, resident.index)
        for chunk, first in enumerate(range(0, end, c.chunk), 1):
            for layer in range(model.config.cache_layers):
                due = content_tag(*(rows[layer, first : min(first + c.chunk, end)] for rows in kinds))
                assert result.results[n].tags[f"{chunk}/{layer + 1}"] == due, f"rows of {request.id} chunk {chunk} layer {layer + 1} differ"


FORGETTING = """
from tidegate.engine import prefill_copies, prefill_worker
real = prefill_copies.chain_keys
prefill_copies.chain_keys = lambda root, tokens, stops, *, lookahead: real(root, tokens, stops)
prefill_worker.main()
"""


@pytest.mark.skipif(not LONG, reason="which blocks a prompt shares is a unit test too")
def test_planted_keys_that_forget_the_next_token_would_be_seen(folder: Path) -> None:
    c = drafting(folder, concurrency=1, requests=drafting(folder).requests[:2], new_tokens=2)
    result, compared = run(c, prefill_argv=[sys.executable, "-c", FORGETTING])
    assert all(one.equal for one in compared), "drafts may be worse, and no token is wrong"
    with pytest.raises(AssertionError, match="rows of r1 chunk 2 layer 5 differ"):
        same_rows(c, result)


KEPT = """
from tidegate.engine import decode_worker, hot_buffer
def rollback(self, length):
    self.lengths = [min(before, length) for before in self.lengths]
def wrote(self, layer, position):
    self.lengths[layer] = position + 1
hot_buffer.Reader.rollback, hot_buffer.Reader.wrote = rollback, wrote
decode_worker.main()
"""


@pytest.mark.skipif(not LONG, reason="test_hot_buffer.py has it without processes")
def test_planted_hot_copies_of_refused_drafts_that_stay_would_be_seen(folder: Path) -> None:
    _, compared = run(drafting(folder), decode_argv=[sys.executable, "-c", KEPT])
    assert not all(one.logits_equal for one in compared)


def test_the_command_drafts_with_the_seeded_model_too(tmp_path: Path) -> None:
    (tmp_path / "prompt").write_bytes(TEXT[:70])
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        app, ["run", "--prompt-file", str(tmp_path / "prompt"), "--prompts", "1", "--new-tokens", "4", "--layers", "4", "--mtp", "2"]
    )
    assert result.exit_code == 0, result.output
    assert "5 layers over 4 buffers" in result.output
    assert "drafts that came true" in result.output
    assert "all tokens and logits are bit-equal" in result.output
