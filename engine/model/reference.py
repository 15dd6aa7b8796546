"""The plain run: every row of every layer resident, one request, one thread of control.

Rules: this is the oracle, so it shares with the engine nothing but the model's arithmetic; a prompt is prefilled to
its last token, then decode runs that last token again (rewriting its row) as serving stacks do, and its logits give
the first new one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tidegate.engine.model.config import ROW_DTYPES, ModelConfig
from tidegate.engine.model.network import Model, greedy
from tidegate.engine.model.storage import Rows

__all__ = ["ResidentKV", "reference_generate", "reference_prefill"]


class ResidentKV:
    """Prefill and decode storage of one request: full tensors per layer, for at most `capacity` tokens."""

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        self.config = config

        def rows(name: str) -> Tensor:
            dtype, width = config.row_kinds(0).get(name, ("int8", 0))
            return torch.zeros(config.cache_layers, capacity, width, dtype=ROW_DTYPES[dtype])

        self.main, self.index, self.scale = rows("main"), rows("index"), rows("scale")
        self.length = [0] * config.cache_layers

    def wait_for_layer(self, layer: int) -> Rows:
        return {name: getattr(self, name)[layer] for name in self.config.row_kinds(layer)}

    def kv_written(self, layer: int) -> None:
        pass

    def layer_done(self, layer: int) -> None:
        pass

    def append(self, layer: int, position: int, rows: Rows) -> None:
        for name, row in rows.items():
            getattr(self, name)[layer, position] = row
        self.length[layer] = position + 1

    def index_rows(self, layer: int) -> Rows:
        kinds = [name for name in self.config.row_kinds(layer) if name != "main"]
        return {name: getattr(self, name)[layer, : self.length[layer]] for name in kinds}

    def rollback(self, length: int) -> None:
        """As `RollbackKV`: what lies beyond is NaN from now on, so that whoever reads it shows."""
        self.length = [min(length, before) for before in self.length]
        for rows in (self.main, self.index, self.scale):
            rows[:, length:].view(torch.uint8).fill_(0xFF)

    def fetch(self, layer: int, positions: Tensor) -> Tensor:
        return self.main[layer].index_select(0, positions)


def reference_prefill(model: Model, prompt: Sequence[int], chunk: int, kv: ResidentKV) -> None:
    """Prefill `prompt` in chunks of `chunk` tokens."""
    if chunk < 1 or not prompt:
        raise ValueError(f"chunk is {chunk} and the prompt has {len(prompt)} tokens: both must be at least 1")
    for start in range(0, len(prompt), chunk):
        after = prompt[start + chunk] if start + chunk < len(prompt) else 0
        model.prefill_chunk(prompt[start : start + chunk], start, kv, next_token=after)


def reference_generate(model: Model, prompt_tokens: Sequence[int], chunk: int, new_tokens: int) -> tuple[list[int], Tensor]:
    """(tokens, logits [new_tokens, vocab]) of a greedy run; the prompt is prefilled in chunks of `chunk` tokens."""
    prompt = list(prompt_tokens)
    kv = ResidentKV(model.config, len(prompt) + new_tokens)
    reference_prefill(model, prompt, chunk, kv)
    token, tokens, logits = prompt[-1], [], []
    for position in range(len(prompt) - 1, len(prompt) - 1 + new_tokens):
        logits.append(model.decode_step([(token, position, kv)])[0])
        token = greedy(logits[-1][None])[0]
        tokens.append(token)
    return tokens, torch.stack(logits) if logits else torch.zeros(0, model.config.vocab_size)
