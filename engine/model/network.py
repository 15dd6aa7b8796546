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
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from tidegate.engine.model.arithmetic import rms_norm, wide
from tidegate.engine.model.attention import Attention, Picked, Projected
from tidegate.engine.model.config import ROW_DTYPES, ModelConfig
from tidegate.engine.model.feed_forward import feed_forward
from tidegate.engine.model.shards import Shard, is_cut
from tidegate.engine.model.storage import Chunk, DecodeBatch, DecodeKV, PrefillKV, Rows, Separately
from tidegate.engine.model.tensor_parallel import ALONE, TensorParallel, summed
from tidegate.engine.model.tiles import Angles, Span, by_span, each_tile
from tidegate.engine.model.weights import MTP_MAY, random_weights

__all__ = ["ROW_BLOCK", "Model", "greedy"]

ROW_BLOCK = 8
Steps: TypeAlias = DecodeBatch | Sequence[tuple[int, int, DecodeKV]]


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

    def rows(self, x: Tensor, angles: Angles) -> Rows:
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
        """`prefill_step` of one chunk."""
        return self.prefill_step([Chunk(tokens, start, kv, next_token)])[0]

    def prefill_step(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """Write the KV of all chunks, each of another request, through every layer; of each the final hidden states [n, hidden].

        Every chunk gives the bits that it gives alone.  Raises ValueError for tokens outside the vocabulary, and for a layer view that
        cannot hold start + n rows.
        """
        if not chunks:
            return []
        spans = [self._span(chunk) for chunk in chunks]
        embedding, angles = self.weights["model.embed_tokens.weight"], [angle for span in spans for angle in span.angles]
        x = [embedding[ids] for span in spans for ids in span.tiles(0)]
        picked: list[Picked | None] = []
        for layer in self.layers:
            p = [layer.project(tile, angle) for tile, angle in zip(x, angles, strict=True)]
            views = self._write(layer, spans, [q.rows for q in p])
            if layer.attention.has_indexer:  # or else what the last layer that has one chose
                picked = self._pick(layer, p, spans, views)
            latents = [
                layer.attention.attend_tile(q, begin, view["main"], some)
                for q, (begin, _, view), some in zip(p, each_tile(spans, views), picked, strict=True)
            ]
            for span in spans:
                span.chunk.kv.layer_done(layer.number)
            x = layer.finish(x, latents)
        x = [self._final_norm(tile) for tile in x]
        following = [ids for span in spans for ids in span.tiles(1)]
        for layer in self.extra:
            joined = [self._following(ids, tile) for ids, tile in zip(following, x, strict=True)]
            self._write(layer, spans, [layer.rows(tile, angle) for tile, angle in zip(joined, angles, strict=True)])
            for span in spans:
                span.chunk.kv.layer_done(layer.number)  # its output would be a draft of tokens that are known
        return [torch.cat([*some])[span.inside] for span, some in zip(spans, by_span(spans, x), strict=True)]

    def _pick(self, layer: Layer, p: Sequence[Projected], spans: Sequence[Span], views: Sequence[Rows]) -> list[Picked | None]:
        keys = [layer.attention.keys(view, span.room) for span, view in zip(spans, views, strict=True)]
        return [
            layer.attention.choose_tile(q, begin, key, span.end) for q, (begin, span, key) in zip(p, each_tile(spans, keys), strict=True)
        ]

    def _span(self, chunk: Chunk) -> Span:
        given = torch.as_tensor(chunk.tokens)
        if given.dim() != 1 or given.numel() == 0:
            raise ValueError(f"tokens of shape {tuple(given.shape)}: give one flat, non-empty sequence")
        ids = self._ids([*given.tolist(), chunk.next_token])
        end = chunk.start + len(ids) - 1
        return Span.of(chunk, ids, lambda positions: self._angles(positions, end))

    def _write(self, layer: Layer, spans: Sequence[Span], tiles: Sequence[Rows]) -> list[Rows]:
        """Put the rows of every chunk into the layer's views; of each chunk the rows 0..end."""
        views = [span.chunk.kv.wait_for_layer(layer.number) for span in spans]
        for span, view, some in zip(spans, views, by_span(spans, tiles), strict=True):
            self._check_views(layer.number, span.end, view)
            for name, rows in view.items():
                rows[span.chunk.start : span.end] = torch.cat([tile[name] for tile in some])[span.inside]
        for span in spans:
            span.chunk.kv.kv_written(layer.number)
        return [{name: rows[: span.end] for name, rows in view.items()} for span, view in zip(spans, views, strict=True)]

    # ---- decode

    def decode_step(self, batch: Steps) -> Tensor:
        """Logits [tokens, vocab] after each token of `batch`, or of a list of (token, position, kv)."""
        return self.logits(self.decode_hidden(batch))

    def decode_hidden(self, batch: Steps) -> Tensor:
        """As `decode_step`, but the final hidden states [tokens, hidden]: `logits` and `draft_step` go on from there."""
        batch = _batch(batch)
        embedding = self.weights["model.embed_tokens.weight"]
        x = [embedding[ids] for ids in _eights(self._ids(batch.tokens))]
        return self._joined([self._final_norm(block) for block in self._through(self.layers, x, batch)], len(batch.tokens))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits, wide [n, vocab], of final hidden states [n, hidden]."""
        return self._head(hidden, self.weights["lm_head.weight"])

    def draft_step(self, batch: Steps, hidden: Tensor) -> Tensor:
        """MTP logits [tokens, vocab] of the token after next, for each (next token, position, kv); the rest as `draft_hidden`."""
        return self.draft_logits(self.draft_hidden(batch, hidden))

    def draft_hidden(self, batch: Steps, hidden: Tensor) -> Tensor:
        """What the MTP layer makes [tokens, hidden] of each (next token, position, kv): for `draft_logits`, and for itself one position on.

        hidden: what `decode_hidden` gave at `position` [tokens, hidden].  Writes the MTP layer's row at `position`, and reads that
        layer alone; rows before it must be those of the same tokens.  ValueError for a model without an MTP layer.
        """
        if not self.extra:
            raise ValueError("num_nextn_predict_layers is 0: this model has no layer that drafts")
        batch = _batch(batch)
        x = [self._following(ids, before) for ids, before in zip(_eights(self._ids(batch.tokens)), _eights(hidden), strict=True)]
        return self._joined(self._through(self.extra, x, batch), len(batch.tokens))

    def draft_logits(self, hidden: Tensor) -> Tensor:
        """Logits, wide [n, vocab], of what `draft_hidden` gave [n, hidden]."""
        out = rms_norm(hidden, self._mtp("shared_head.norm.weight"), self.config.rms_norm_eps)
        return self._head(out, self._mtp("shared_head.head.weight"))

    def _through(self, layers: Sequence[Layer], x: Sequence[Tensor], batch: DecodeBatch) -> Sequence[Tensor]:
        """Blocks of eight rows through `layers`, all blocks of a layer before the next layer."""
        if not x:
            return x
        positions = torch.tensor([*batch.positions])
        angles = [self._angles(block, int(positions.max()) + 1) for block in _eights(positions)]
        chosen: list[Tensor] = []
        for layer in layers:
            p = [layer.project(block, angle) for block, angle in zip(x, angles, strict=True)]
            batch.append(layer.number, {name: torch.cat([q.rows[name] for q in p])[: len(positions)] for name in p[0].rows})
            if layer.attention.has_indexer:  # or else what the last layer that has one chose
                chosen = [self._choose(layer, p[i // ROW_BLOCK], i, batch) for i in range(len(positions))]
            latents = [[q.new_zeros(*q.shape[:2], self.config.kv_lora_rank) for q in block.queries] for block in p]
            for i, rows in enumerate(batch.fetch(layer.number, chosen)):
                block, row = divmod(i, ROW_BLOCK)
                for latent, found in zip(latents[block], layer.attention.attend(p[block], row, rows), strict=True):
                    latent[row] = found
            x = layer.finish(x, latents)
        return x

    def _choose(self, layer: Layer, p: Projected, token: int, batch: DecodeBatch) -> Tensor:
        rows, end = batch.index_rows(layer.number, token), batch.positions[token] + 1
        self._check_rows(layer.number, rows, "main", lambda count: count == end, f"{end}")
        return layer.attention.choose(p, token % ROW_BLOCK, rows)

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

    def _joined(self, blocks: Sequence[Tensor], n: int) -> Tensor:
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

    def _check_views(self, layer: int, end: int, views: Rows) -> None:
        self._check_rows(layer, views, "", lambda count: count >= end, f"at least {end}")

    def _check_rows(self, layer: int, rows: Rows, without: str, fits: Callable[[int], bool], due: str) -> None:
        kinds = {name: kind for name, kind in self.config.row_kinds(layer).items() if name != without}
        if rows.keys() != kinds.keys():
            raise ValueError(f"layer {layer}: rows of {sorted(rows)} are given where {sorted(kinds)} are due")
        for name, (dtype, width) in kinds.items():
            part = rows[name]
            if part.dim() != 2 or part.shape[1] != width or not fits(part.shape[0]) or part.dtype != ROW_DTYPES[dtype]:
                raise ValueError(f"layer {layer}: {name} rows are {tuple(part.shape)} {part.dtype}: {due} rows of {width} {dtype} are due")


def _batch(steps: Steps) -> DecodeBatch:
    return Separately(steps) if isinstance(steps, Sequence) else steps


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
