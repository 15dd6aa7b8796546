"""The network, and what it asks of storage.

Rules: arithmetic never allocates, finds or keeps KV: it asks a provider, layer by layer, and forgets what it was given when that
layer is done; a decode step computes in blocks of exactly eight rows (short ones padded), attention request by request, so a
request's tokens are bit-equal alone, in any batch and over any storage; prefill computes in whole tiles (`attention`), so its rows
are bit-equal however the prompt is cut into chunks and wherever the first of them begins; and what several ranks compute together is
bit-equal to what one computes alone (`shards`).  All for one number of torch threads; with several models on a machine, one is by far
the fastest.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tidegate.engine.model.arithmetic import rms_norm, wide
from tidegate.engine.model.attention import TILE, Attention, Projected
from tidegate.engine.model.config import ModelConfig
from tidegate.engine.model.feed_forward import feed_forward
from tidegate.engine.model.shards import Shard, is_cut
from tidegate.engine.model.tensor_parallel import ALONE, TensorParallel, summed
from tidegate.engine.model.weights import MTP_MAY, random_weights

__all__ = ["ROW_BLOCK", "DecodeKV", "Model", "PrefillKV", "greedy"]

ROW_BLOCK = 8
Angles = tuple[Tensor, Tensor]


class PrefillKV(Protocol):
    """Storage of one prefill chunk; called from the computing thread, once per layer, layers in order (the MTP layer last)."""

    def wait_for_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Block until the layer's buffer may be written and holds rows 0..start; its views (main [T, main_width],
        indexer [T, index_width]), T at least start + n."""

    def kv_written(self, layer: int) -> None:
        """Rows start..start+n of both views are written and change no more."""

    def layer_done(self, layer: int) -> None:
        """Attention of this layer reads the views no more."""


class DecodeKV(Protocol):
    """Storage of one decoding request; called from the computing thread, per layer in this order."""

    def append(self, layer: int, position: int, main_row: Tensor, index_row: Tensor) -> None:
        """Keep the rows of the token at `position`: before anyone reads them, and by copy."""

    def index_keys(self, layer: int) -> Tensor:
        """Indexer rows 0..position, [position + 1, index_width]."""

    def fetch(self, layer: int, positions: Tensor) -> Tensor:
        """Main rows of `positions` (int64 [k], best first, distinct), [k, main_width] in that order; valid until the next call."""


class Layer:
    """Norms, attention and feed-forward of one layer, the parts of `shard`."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], number: int, group: TensorParallel, shard: Shard) -> None:
        prefix = f"model.layers.{number}."
        self.number, self.eps, self._group = number, config.rms_norm_eps, group
        self.attention = Attention(config, weights, prefix + "self_attn.", shard)
        self.feed_forward = feed_forward(config, weights, number, shard)
        self.input_norm, self.post_norm = (weights[f"{prefix}{name}_layernorm.weight"] for name in ("input", "post_attention"))

    def project(self, x: Tensor, angles: Angles) -> Projected:
        return self.attention.project(rms_norm(x, self.input_norm, self.eps), *angles)

    def rows(self, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        return self.attention.rows(rms_norm(x, self.input_norm, self.eps), *angles)

    def finish(self, blocks: Sequence[Tensor], latents: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """The hidden states after this layer of several blocks of rows [n, hidden], of which attention gave `latents`."""
        attended = self._sum([self.attention.outputs(latent) for latent in latents])
        blocks = [x + more for x, more in zip(blocks, attended, strict=True)]
        fed = self._sum([self.feed_forward.outputs(rms_norm(x, self.post_norm, self.eps)) for x in blocks])
        return [x + more for x, more in zip(blocks, fed, strict=True)]

    def _sum(self, outputs: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
        """For each block the sum over its parts, all blocks in one collective."""
        total = summed(self._group, [torch.cat(part) for part in zip(*outputs, strict=True)])
        ends = itertools.accumulate(len(parts[0]) for parts in outputs)
        return [total[end - len(parts[0]) : end] for end, parts in zip(ends, outputs, strict=True)]


class Model:
    """The network over given weights; as one rank of `group` the parts of it that this rank has, and then every forward is a step
    that all ranks make alike, each with storage of its own; all get the same results.

    weights: as `Shard.take` cuts them for this rank.  ValueError where the group's size does not divide `ModelConfig.parts`.  `RankLost`
    ends a forward in which another rank is lost.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], group: TensorParallel = ALONE) -> None:
        self.config, self.weights, self.group, self.shard = config, dict(weights), group, Shard(config, group)
        layers = [Layer(config, self.weights, number, group, self.shard) for number in range(config.cache_layers)]
        self.layers, self.extra = layers[: config.num_hidden_layers], layers[config.num_hidden_layers :]

    @classmethod
    def random(cls, config: ModelConfig, seed: int, group: TensorParallel = ALONE) -> Model:
        """The model that (config, seed) names; equal in every process."""
        shard = Shard(config, group)
        return cls(config, {name: shard.take(name, weight) for name, weight in random_weights(config, seed).items()}, group)

    def identity(self) -> str:
        """Digest of the configuration and of every weight: two models with one identity compute the same KV, to the bit, on however
        many ranks.

        For the key under which a pool keeps rows; reads all weights, about a second for each gigabyte.  All ranks call it together.
        """
        cut = sorted(name for name in self.weights if is_cut(name))
        common = _digest(repr(self.config), {name: weight for name, weight in self.weights.items() if not is_cut(name)})
        pieces = {name: self.shard.pieces(name, self.weights[name]) for name in cut}
        parts = [_digest("", {name: pieces[name][part] for name in cut}) for part in range(self.shard.end - self.shard.begin)]
        return hashlib.blake2b(common + b"".join(self.group.exchange(b"".join(parts))), digest_size=16).hexdigest()

    # ---- prefill

    def prefill_chunk(self, tokens: Sequence[int] | Tensor, start: int, kv: PrefillKV, *, next_token: int = 0) -> Tensor:
        """Write the KV of `tokens` at positions start.. through every layer; the final hidden states [n, hidden].

        next_token: the token after the last of `tokens`; only the MTP layer looks at it, whose row of a token depends on the next
        one too.  At a prompt's end nobody knows it yet: `draft_step` writes that row again.  Raises ValueError for tokens outside
        the vocabulary, and for a layer view that cannot hold start + n rows.
        """
        given = torch.as_tensor(tokens)
        if given.dim() != 1 or given.numel() == 0:
            raise ValueError(f"tokens of shape {tuple(given.shape)}: give one flat, non-empty sequence")
        ids = self._ids([*given.tolist(), next_token])
        end = start + len(ids) - 1
        begins = range(start // TILE * TILE, end, TILE)
        padded = functional.pad(ids, (start - begins[0], begins[-1] + TILE - end))
        angles = [self._angles(torch.arange(begin, begin + TILE), end) for begin in begins]
        embedding = self.weights["model.embed_tokens.weight"]
        x = [embedding[padded[begin - begins[0] :][:TILE]] for begin in begins]
        for layer in self.layers:
            p = [layer.project(tile, angle) for tile, angle in zip(x, angles, strict=True)]
            main, keys = self._write(layer, kv, start, end, [(q.main_rows, q.index_rows) for q in p])
            scored = keys.new_zeros(begins[-1] + TILE, keys.shape[1], dtype=p[0].index_query.dtype)
            scored[:end] = keys
            latent = [layer.attention.attend_tile(q, begin, main, scored) for q, begin in zip(p, begins, strict=True)]
            kv.layer_done(layer.number)
            x = layer.finish(x, latent)
        x = [self._final_norm(tile) for tile in x]
        for layer in self.extra:
            following = [self._following(padded[begin - begins[0] + 1 :][:TILE], tile) for begin, tile in zip(begins, x, strict=True)]
            self._write(layer, kv, start, end, [layer.rows(f, angle) for f, angle in zip(following, angles, strict=True)])
            kv.layer_done(layer.number)  # its output would be a draft of tokens that are known
        return torch.cat(x)[start - begins[0] : end - begins[0]]

    def _write(
        self, layer: Layer, kv: PrefillKV, start: int, end: int, tiles: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Put the rows of start..end into the layer's views; rows 0..end of both."""
        views = kv.wait_for_layer(layer.number)
        self._check_views(layer.number, end, *views)
        for view, rows in zip(views, zip(*tiles, strict=True), strict=True):
            view[start:end] = torch.cat(rows)[start % TILE :][: end - start]
        kv.kv_written(layer.number)
        return views[0][:end], views[1][:end]

    # ---- decode

    def decode_step(self, requests: Sequence[tuple[int, int, DecodeKV]]) -> Tensor:
        """Logits [requests, vocab] after one token of each (token, position, kv).

        Tokens of one request may be in one step if they are in the order of their positions: each attends to those before it, and
        to the bit as if it had a step of its own.
        """
        return self.logits(self.decode_hidden(requests))

    def decode_hidden(self, requests: Sequence[tuple[int, int, DecodeKV]]) -> Tensor:
        """As `decode_step`, but the final hidden states [requests, hidden]: `logits` and `draft_step` go on from there."""
        embedding = self.weights["model.embed_tokens.weight"]
        x = [embedding[ids] for ids in _eights(self._ids([token for token, _, _ in requests]))]
        return self._joined_rows([self._final_norm(block) for block in self._through(self.layers, x, requests)], len(requests))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits, wide [n, vocab], of final hidden states [n, hidden]."""
        return self._head(hidden, self.weights["lm_head.weight"])

    def draft_step(self, requests: Sequence[tuple[int, int, DecodeKV]], hidden: Tensor) -> Tensor:
        """MTP logits [requests, vocab] of the token after next, for each (next token, position, kv).

        hidden: what `decode_hidden` gave at `position` [requests, hidden].  Writes the MTP layer's row at `position`, and reads that
        layer alone; rows before it must be those of the same tokens.  ValueError for a model without an MTP layer.
        """
        if not self.extra:
            raise ValueError("num_nextn_predict_layers is 0: this model has no layer that drafts")
        ids = _eights(self._ids([token for token, _, _ in requests]))
        x = [self._following(tokens, before) for tokens, before in zip(ids, _eights(hidden), strict=True)]
        out = self._joined_rows(self._through(self.extra, x, requests), len(requests))
        out = rms_norm(out, self._mtp("shared_head.norm.weight"), self.config.rms_norm_eps)
        return self._head(out, self._mtp("shared_head.head.weight"))

    def _through(
        self, layers: Sequence[Layer], x: Sequence[Tensor], requests: Sequence[tuple[int, int, DecodeKV]]
    ) -> Sequence[Tensor]:
        """Blocks of eight rows through `layers`, all blocks of a layer before the next layer."""
        if not requests:
            return x
        positions = torch.tensor([position for _, position, _ in requests])
        angles = [self._angles(block, int(positions.max()) + 1) for block in _eights(positions)]
        for layer in layers:
            p = [layer.project(block, angle) for block, angle in zip(x, angles, strict=True)]
            latents = [[q.new_zeros(*q.shape[:2], self.config.kv_lora_rank) for q in block.queries] for block in p]
            for i, (_, position, kv) in enumerate(requests):
                block, row = divmod(i, ROW_BLOCK)
                for latent, found in zip(latents[block], self._attend_stored(layer, p[block], row, position, kv), strict=True):
                    latent[row] = found
            x = layer.finish(x, latents)
        return x

    def _attend_stored(self, layer: Layer, p: Projected, row: int, position: int, kv: DecodeKV) -> list[Tensor]:
        kv.append(layer.number, position, p.main_rows[row], p.index_rows[row])
        keys = kv.index_keys(layer.number)
        if keys.shape != (due := (position + 1, self.config.index_width)):
            raise ValueError(f"layer {layer.number}: indexer keys are {tuple(keys.shape)} where {due} are due")
        chosen = layer.attention.choose(p, row, keys)
        return layer.attention.attend(p, row, kv.fetch(layer.number, chosen))

    # ---- both

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        ids = torch.tensor(tokens, dtype=torch.int64)
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= self.config.vocab_size):
            raise ValueError(f"tokens reach from {int(ids.min())} to {int(ids.max())}: the vocabulary has {self.config.vocab_size}")
        return ids

    def _angles(self, positions: Tensor, end: int) -> Angles:
        if end > self.config.max_position_embeddings or int(positions.min()) < 0:
            raise ValueError(f"position {end - 1}: this model ends at {self.config.max_position_embeddings} tokens")
        return self.config.rope.angles(positions, self.config.qk_rope_head_dim)

    def _joined_rows(self, blocks: Sequence[Tensor], n: int) -> Tensor:
        """The first n rows of all blocks, [n, hidden]."""
        return torch.cat([*blocks, self.weights["model.norm.weight"].new_zeros(0, self.config.hidden_size)])[:n]

    def _final_norm(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weights["model.norm.weight"], self.config.rms_norm_eps)

    def _head(self, hidden: Tensor, weight: Tensor) -> Tensor:
        found = [wide(functional.linear(block, weight)) for block in _eights(hidden)]
        return torch.cat([*found, wide(hidden).new_zeros(0, len(weight))])[: len(hidden)]

    def _mtp(self, name: str) -> Tensor:
        own = f"model.layers.{self.config.num_hidden_layers}.{name}"
        return self.weights[own] if own in self.weights else self.weights[MTP_MAY[name]]

    def _following(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """What the MTP layer takes in: next tokens [n] beside the final hidden states [n, hidden] before them."""
        eps = self.config.rms_norm_eps
        token = rms_norm(self._mtp("embed_tokens.weight")[tokens], self._mtp("enorm.weight"), eps)
        return functional.linear(torch.cat([token, rms_norm(hidden, self._mtp("hnorm.weight"), eps)], -1), self._mtp("eh_proj.weight"))

    def _check_views(self, layer: int, end: int, main: Tensor, keys: Tensor) -> None:
        for name, view, width in (("main", main, self.config.main_width), ("indexer", keys, self.config.index_width)):
            if view.dim() != 2 or view.shape[1] != width or view.shape[0] < end or view.dtype != self.config.torch_dtype:
                raise ValueError(
                    f"layer {layer}: the {name} view is {tuple(view.shape)} {view.dtype}: "
                    f"at least {end} rows of {width} {self.config.torch_dtype} are due"
                )


def _digest(head: str, tensors: Mapping[str, Tensor]) -> bytes:
    digest = hashlib.blake2b(head.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.digest()


def _eights(rows: Tensor) -> list[Tensor]:
    """`rows` [n, ...] in blocks of eight, zeros up to a whole one."""
    out = rows.new_zeros(-(-len(rows) // ROW_BLOCK) * ROW_BLOCK, *rows.shape[1:])
    out[: len(rows)] = rows
    return [out[i : i + ROW_BLOCK] for i in range(0, len(out), ROW_BLOCK)]


def greedy(logits: Tensor) -> list[int]:
    """The best token of each row, the lowest of equals."""
    return [int(row.argmax()) for row in logits.numpy()]
