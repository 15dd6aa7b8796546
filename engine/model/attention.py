"""Sparse attention of one layer: MLA with the key and value projections absorbed, and the lightning indexer that picks its rows.

Rules: a main KV row is the normed latent followed by the rotated key, an indexer row is one key; both are written once, before they
are read; attention reads whole rows, never expanded heads, so a row in a slot, in the host pool or in a hot buffer is the same
bytes; prefill computes in tiles of TILE queries that begin at multiples of TILE, and every shape in a tile is a function of where
the tile begins, so a query's bits do not depend on where its chunk begins or ends (what lies beyond the chunk is masked).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tidegate.engine.model.arithmetic import aligned, linear, rms_norm, top_mask, top_positions, wide
from tidegate.engine.model.config import MODEL_TYPES, ModelConfig
from tidegate.engine.model.rope import rotate_halves, rotate_interleaved
from tidegate.engine.model.shards import Shard, is_cut
from tidegate.engine.model.storage import Rows
from tidegate.kernels import dequantize_rows, quantize_rows

__all__ = ["TILE", "Attention", "Picked", "Projected"]

TILE = 64  # queries; the padding of a short prompt against the speed of a long one
GATHERED = 1 << 22  # elements of main rows that a tile gathers at once: what a level-2 cache holds some of
INNER_EPS = 1e-6  # of the norms inside attention, whatever rms_norm_eps says: as the published model computes


class Projected(NamedTuple):
    """What a layer needs of n tokens: rows to store, and queries over stored rows."""

    queries: tuple[Tensor, ...]  # for each part of this rank [n, heads of the part, main_width], absorbed
    rows: Rows  # to store, [n, width]
    index_query: Tensor  # [index heads, n, index_width], wide; of a layer without an indexer, no heads
    index_weight: Tensor  # [index heads, n], wide, scaled


class Picked(NamedTuple):
    """The rows that each token of a tile attends to, [TILE, k]; `unseen` where a later token fills a place that is left over."""

    rows: Tensor
    unseen: Tensor


class Heads:
    """The heads of one part: of the whole attention all that ranks do not have in common."""

    def __init__(self, config: ModelConfig, q_b: Tensor, kv_b: Tensor, out: Tensor) -> None:
        nope = config.qk_nope_head_dim
        self._q_b, self._out, self._nope = q_b, out, nope
        kv_b = kv_b.view(-1, nope + config.v_head_dim, config.kv_lora_rank)
        self.absorb_key = kv_b[:, :nope].contiguous()  # [heads, nope, latent]
        self.absorb_value = kv_b[:, nope:].transpose(1, 2).contiguous()  # [heads, latent, v]

    def query(self, residual: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[n, heads, main_width] of `residual` [n, q_lora_rank]."""
        query = functional.linear(residual, self._q_b).view(len(residual), len(self.absorb_key), -1)
        plain, rope = query.tensor_split([self._nope], -1)
        absorbed = torch.bmm(plain.transpose(0, 1), self.absorb_key).transpose(0, 1)
        return torch.cat([absorbed, rotate_interleaved(rope, cos, sin)], -1)

    def output(self, latent: Tensor) -> Tensor:
        """What attended latents [n, heads, kv_lora_rank] add to the hidden states: [n, hidden], to be summed over the parts."""
        value = torch.bmm(latent.transpose(0, 1), self.absorb_value).transpose(0, 1)
        return functional.linear(value.reshape(len(value), -1), self._out)


class Attention:
    """One layer's attention, as far as one rank computes it; stateless but for its weights."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], prefix: str, shard: Shard) -> None:
        self.config = config
        cut = [shard.pieces(name, weights[name]) for name in (f"{prefix}{part}_proj.weight" for part in ("q_b", "kv_b", "o"))]
        self.heads = [Heads(config, *pieces) for pieces in zip(*cut, strict=True)]
        kept = {name: t for name, t in weights.items() if name.startswith(prefix) and not is_cut(name)}
        self.w = {name.removeprefix(prefix).removesuffix(".weight"): t for name, t in kept.items()}
        self.scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5 * config.rope.score_factor
        self.has_indexer, self._wide = "indexer.wk" in self.w, wide(torch.empty(0, dtype=config.torch_dtype)).dtype
        self._rotate_index = rotate_interleaved if MODEL_TYPES[config.model_type] else rotate_halves
        self.index_scale = (config.index_head_dim * config.index_n_heads) ** -0.5

    def rows(self, x: Tensor, cos: Tensor, sin: Tensor) -> Rows:
        """What is to be stored of the normed hidden states `x` [n, hidden] at the angles `cos`, `sin` [n, rope / 2]."""
        c, w = self.config, self.w
        latent, key = functional.linear(x, w["kv_a_proj_with_mqa"]).tensor_split([c.kv_lora_rank], -1)
        main = [rms_norm(latent, w["kv_a_layernorm"], INNER_EPS), rotate_interleaved(key, cos, sin)]
        return {"main": torch.cat(main, -1), **(self._index_rows(x, cos, sin) if self.has_indexer else {})}

    def _index_rows(self, x: Tensor, cos: Tensor, sin: Tensor) -> Rows:
        index_key = functional.linear(x, self.w["indexer.wk"])
        norm, bias = (self.w[f"indexer.{name}"].to(x.dtype) for name in ("k_norm", "k_norm.bias"))
        index_key = functional.layer_norm(index_key, (self.config.index_head_dim,), norm, bias, 1e-6)
        rows = self._rotate_head(index_key, cos, sin)
        return dict(zip(("index", "scale"), quantize_rows(rows), strict=True)) if self.config.lic8 else {"index": rows}

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> Projected:
        """Queries and rows; arguments as `rows`."""
        w = self.w
        residual = rms_norm(functional.linear(x, w["q_a_proj"]), w["q_a_layernorm"], INNER_EPS)
        queries = tuple(heads.query(residual, cos, sin) for heads in self.heads)
        return Projected(queries, self.rows(x, cos, sin), *self._index_queries(x, residual, cos, sin))

    def _index_queries(self, x: Tensor, residual: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        c, w, n = self.config, self.w, len(x)
        if not self.has_indexer:
            return wide(x).new_empty(0, n, c.index_head_dim), wide(x).new_empty(0, n)
        query = functional.linear(residual, w["indexer.wq_b"]).view(n, c.index_n_heads, -1)
        weight = linear(x.to(w["indexer.weights_proj"].dtype), w["indexer.weights_proj"])
        return (
            wide(self._rotate_head(query, cos, sin)).transpose(0, 1).contiguous(),
            (wide(weight).to(wide(x).dtype) * self.index_scale).t().contiguous(),
        )

    def _rotate_head(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rope = self.config.qk_rope_head_dim
        return torch.cat([self._rotate_index(x[..., :rope], cos, sin), x[..., rope:]], -1)

    def outputs(self, latents: Sequence[Tensor]) -> list[Tensor]:
        """What each part adds to the hidden states, [n, hidden], of its latents [n, heads of the part, kv_lora_rank]."""
        return [heads.output(latent) for heads, latent in zip(self.heads, latents, strict=True)]

    def keys(self, rows: Rows, room: int = 0) -> Tensor:
        """Stored indexer keys, wide [n, index_width]; zeros up to `room` rows where that is more."""
        keys = dequantize_rows(rows["index"], rows["scale"]).to(self._wide) if self.config.lic8 else wide(aligned(rows["index"]))
        return keys if len(keys) >= room else functional.pad(keys, (0, 0, 0, room - len(keys)))

    # ---- decode: one token at a time

    def choose(self, p: Projected, row: int, rows: Rows) -> Tensor:
        """Positions (int64, best first) that token `row` of `p` attends to among those of the indexer's `rows` [n, width]."""
        scores = torch.relu(aligned(p.index_query[:, row]) @ self.keys(rows).t())
        return top_positions((aligned(p.index_weight[:, row])[None] @ scores)[0], self.config.index_topk)

    def attend(self, p: Projected, row: int, rows: Tensor) -> list[Tensor]:
        """Latents [heads of the part, kv_lora_rank] of token `row` of `p` over the chosen `rows` [k, main_width]."""
        rows, latents = aligned(rows), []
        for query in p.queries:
            weight = wide(aligned(query[row]) @ rows.t()).mul(self.scale).softmax(-1)
            latents.append(weight.to(rows.dtype) @ rows[:, : self.config.kv_lora_rank])
        return latents

    # ---- prefill: a tile at a time

    def choose_tile(self, p: Projected, begin: int, keys: Tensor, end: int) -> Picked | None:
        """Which rows tokens begin.. attend to, each the top-k of those up to itself; None where no token has more than it may choose.

        keys: wide [begin + TILE, index_width] at least, zero from row `end` on, where nothing is stored.
        """
        if begin + TILE <= self.config.index_topk:
            return None
        mask = top_mask(self.scores(p, begin, keys[: begin + TILE]), self.config.index_topk)
        chosen = mask.nonzero()[:, 1].view(TILE, -1)
        unseen = chosen > torch.arange(begin, begin + TILE)[:, None]
        # Row 0 is stored for certain: unseen rows weigh 0, but 0 times rubbish might be NaN; and no query that counts sees the end.
        return Picked(chosen.masked_fill_(unseen | (chosen >= end), 0), unseen)

    def attend_tile(self, p: Projected, begin: int, main: Tensor, picked: Picked | None) -> list[Tensor]:
        """Latents [TILE, heads of the part, kv_lora_rank] of tokens begin.. over what `choose_tile` gave.

        main: stored rows [n, main_width], at least up to the last query that counts.
        """
        if picked is None:
            return self._attend_all(p.queries, begin, main)
        step = max(1, GATHERED // (picked.rows.shape[1] * main.shape[1]))
        steps = [slice(i, i + step) for i in range(0, TILE, step)]
        found = [self._attend_chosen([query[some] for query in p.queries], main, *(part[some] for part in picked)) for some in steps]
        return [torch.cat(latents) for latents in zip(*found, strict=True)]

    def scores(self, p: Projected, begin: int, keys: Tensor) -> Tensor:
        """Indexer scores [TILE, begin + TILE], -inf for keys of later tokens; one head at a time bounds the memory."""
        score = torch.zeros(TILE, keys.shape[0], dtype=keys.dtype)
        for query, weight in zip(p.index_query, p.index_weight, strict=True):
            score.addcmul_((query @ keys.t()).relu_(), weight[:, None])
        return score.masked_fill_(_future(begin), -torch.inf)

    def _attend_chosen(self, queries: Sequence[Tensor], main: Tensor, chosen: Tensor, unseen: Tensor) -> list[Tensor]:
        rows, latents = main.index_select(0, chosen.flatten()).view(*chosen.shape, -1), []
        for query in queries:
            score = wide(torch.bmm(query, rows.transpose(1, 2))).mul_(self.scale)
            weight = score.masked_fill_(unseen[:, None], -torch.inf).softmax(-1)
            latents.append(torch.bmm(weight.to(rows.dtype), rows[..., : self.config.kv_lora_rank]))
        return latents

    def _attend_all(self, queries: Sequence[Tensor], begin: int, main: Tensor) -> list[Tensor]:
        """No query has more rows before it than it may choose: one dense product for each part, causal."""
        rows, latents = main.new_zeros(begin + TILE, main.shape[1]), []
        rows[: main.shape[0]] = main[: begin + TILE]
        for query in queries:
            score = wide((query.flatten(0, 1) @ rows.t()).view(TILE, -1, begin + TILE)).mul_(self.scale)
            weight = score.masked_fill_(_future(begin)[:, None], -torch.inf).softmax(-1).to(rows.dtype)
            latents.append((weight.flatten(0, 1) @ rows[:, : self.config.kv_lora_rank]).view(TILE, -1, self.config.kv_lora_rank))
        return latents


def _future(begin: int) -> Tensor:
    """True where a key is of a later token than the query: [TILE, begin + TILE]."""
    return torch.arange(begin + TILE)[None] > torch.arange(begin, begin + TILE)[:, None]
