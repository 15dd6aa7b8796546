"""What a run says at its end: equal or not, memory against the formula, bytes per path, hits, waits.

Rule: every figure comes from the workers' own counters or from a comparison made here; nothing is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from rich.table import Table
from rich.text import Text

from tidegate.engine.config import RunConfig
from tidegate.engine.model import Tokenizer, reference_generate
from tidegate.engine.pair import PairResult
from tidegate.engine.worker_io import Line

__all__ = ["Comparison", "compare", "tables", "verdict"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One request against the run with everything resident; one that failed has nothing to compare, and a reason."""

    request: str
    prompt_tokens: int
    failed: bool
    tokens: list[int]
    tokens_equal: bool
    logits_equal: bool
    reason: str

    @property
    def equal(self) -> bool:
        return self.tokens_equal and self.logits_equal


def compare(config: RunConfig, result: PairResult) -> list[Comparison]:
    """Run the same model with everything resident in this process, same chunks and dtype, and compare bit by bit."""
    torch.set_num_threads(1)
    model = config.load_model()
    out = []
    for index, request in enumerate(config.requests):
        line = result.results[index]
        if not line.ok:
            out.append(Comparison(request.id, len(request.prompt), True, [], False, False, line.text))
            continue
        tokens, logits = reference_generate(model, request.prompt, config.chunk, config.new_tokens)
        out.append(_against(request.id, len(request.prompt), line, tokens, logits.float().numpy()))
    return out


def _against(name: str, prompt: int, line: Line, tokens: list[int], logits: np.ndarray) -> Comparison:
    got = np.frombuffer(line.logits, np.float32).reshape(logits.shape)
    same = got.tobytes() == np.ascontiguousarray(logits, np.float32).tobytes()
    reason = "" if same else f"largest logit difference {float(np.abs(got - logits).max()):.3g}"
    return Comparison(name, prompt, False, line.tokens, line.tokens == tokens, same, reason)


def text_of(tokens: list[int], checkpoint: str) -> str:
    """Text by the model's tokenizer; without one, bytes, those that are not printable as escapes."""
    tokenizer = Tokenizer(checkpoint)
    return tokenizer.decode(tokens) if tokenizer.reads_text else repr(bytes(t for t in tokens if t < 256))[2:-1]


def hidden_share(blocked: float, moved: float) -> str:
    """1 - blocked / (load + save), in words; below zero where copies had to wait for one another."""
    return f"{1 - blocked / moved:.0%}" if moved else "nothing was moved"


def _words(c: Comparison) -> tuple[str, str]:
    return ("not compared", "not compared") if c.failed else (str(c.tokens_equal), str(c.logits_equal))


def verdict(compared: list[Comparison]) -> str:
    """The last line: a request that failed and one that came out wrong are different news."""
    failed = [c for c in compared if c.failed]
    unequal = [c for c in compared if not c.failed and not c.equal]
    news = [f"{len(failed)} of {len(compared)} requests failed: {'; '.join(dict.fromkeys(c.reason for c in failed))}"] if failed else []
    if unequal:
        news.append(f"NOT EQUAL: {', '.join(c.request for c in unequal)}")
    elif len(failed) < len(compared):
        news.append(f"all tokens and logits {'of the others ' if failed else ''}are bit-equal")
    return "\n".join(news)


def tables(config: RunConfig, result: PairResult, compared: list[Comparison]) -> list[Table]:
    """The report as rich tables."""
    random = "" if config.checkpoint else " (random weights: the text means nothing, its equality does)"
    answers = Table(title=f"Requests{random}")
    for name in ("request", "prompt", "new tokens", "tokens equal", "logits bit-equal", "remark"):
        answers.add_column(name, overflow="fold")
    for c in compared:
        text = Text(text_of(c.tokens, config.checkpoint))  # as it is: what a model says is no markup
        answers.add_row(c.request, str(c.prompt_tokens), text, *_words(c), Text(c.reason))
    figures = Table(title="Figures", show_header=False)
    for name, value in rows(config, result):
        figures.add_row(name, value)
    return [answers, figures]


def rows(config: RunConfig, result: PairResult) -> list[tuple[str, str]]:
    p, d = result.stats["prefill"], result.stats["decode"]
    plan = config.layer_plan()
    layers, shared = len(plan.layers), len(plan.slots.shared)
    buffers = layers - shared + min(config.shared_buffers or 0, shared)
    asked, random = d["hits"] + d["misses"], "" if config.checkpoint else " (of random weights)"
    return [
        ("layer buffers", f"{int(p['slots'] / config.prefills)} for {layers} layers; by the formula I + min(B, R) = {buffers}"),
        ("layer memory", f"{p['slot_bytes'] / 1e6:.2f} MB, {p['slots'] / config.prefills / layers:.0%} of one buffer a layer"),
        ("host pool of Decode", f"{d['host_bytes'] / 1e6:.2f} MB in {int(d['blocks'])} blocks; "
                                f"{d['host_huge'] / 1e6:.2f} MB of it in huge pages, {d['host_pinned'] / 1e6:.2f} MB pinned"),
        ("saved to the pool", f"{p['bytes_saved'] / 1e6:.2f} MB"),
        ("loaded from the pool", f"{p['bytes_loaded'] / 1e6:.2f} MB"),
        ("reused from earlier prompts", f"{p['bytes_reused'] / 1e6:.2f} MB, {int(p['tokens_reused'])} tokens not computed again"),
        ("pulled to Decode, main KV", f"{d['bytes_pulled_main'] / 1e6:.2f} MB"),
        ("pulled to Decode, indexer", f"{d['bytes_pulled_index'] / 1e6:.2f} MB"),
        ("appended by Decode", f"{d['bytes_appended'] / 1e6:.3f} MB"),
        ("top-k rows copied to hot buffers", f"{d['bytes_missed'] / 1e6:.2f} MB"),
        ("hot-buffer hit rate" + random, f"{d['hits'] / asked:.0%} of {int(asked)} rows" if asked else "none"),
        *_speculation(d),
        ("prefill waited for Decode's reads", f"{p['reads_s']:.2f} s of {p['compute_s']:.2f} s, {int(p['gates'])} layer steps"),
        ("loads and saves", f"{p['load_s']:.2f} s and {p['save_s']:.2f} s; waited for {p['blocked_s']:.2f} s"),
        ("of loads and saves, hidden behind compute", hidden_share(p["blocked_s"], p["load_s"] + p["save_s"])),
        ("messages refused", f"{int(p['refused'] + d['refused'])}"),
        ("wall time of all processes", f"{result.seconds:.1f} s"),
    ]  # fmt: skip


def _speculation(d: dict[str, float]) -> list[tuple[str, str]]:
    """What drafts came true, if there were any."""
    if not d["drafted"]:
        return []
    each = (d["forwards"] + d["accepted"]) / d["forwards"]
    return [("drafts that came true", f"{int(d['accepted'])} of {int(d['drafted'])}, so {each:.2f} tokens of a request in a forward")]
