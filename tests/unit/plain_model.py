"""The network once more, from the published formulas: float64, one token after another, heads expanded, nothing stored.

It shares no line with the product: rotations are complex numbers, keys and values are never absorbed, top-k is a Python sort, an
expert runs for one token.  Weights are taken by their names in a checkpoint.
"""

import functools
import math

import torch
from torch.nn.functional import silu


def norm(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


@functools.cache
def turns(c):
    """Radians per position of each pair, and what yarn multiplies (rotations, scores) by."""
    r, width = c.rope, c.qk_rope_head_dim
    plain = [r.rope_theta ** (-2 * i / width) for i in range(width // 2)]
    if r.rope_type == "default":
        return torch.tensor(plain, dtype=torch.float64), 1.0, 1.0
    low, high = (
        width * math.log(r.original_max_position_embeddings / (beta * 2 * math.pi)) / 2 / math.log(r.rope_theta)
        for beta in (r.beta_fast, r.beta_slow)
    )
    low, high = max(0, math.floor(low)), min(width - 1, math.ceil(high))
    mixed = []
    for i, f in enumerate(plain):
        slow = min(1.0, max(0.0, (i - low) / max(high - low, 0.001)))
        mixed.append(f * (1 - slow) + f / r.factor * slow)
    gain = 1 + 0.1 * r.mscale_all_dim * math.log(r.factor)
    return torch.tensor(mixed, dtype=torch.float64), (1 + 0.1 * r.mscale * math.log(r.factor)) / gain, gain**2


def turned(first, second, c):
    """Pairs as complex numbers [tokens, ..., pairs], rotated by the position of the token."""
    frequency, amplitude, _ = turns(c)
    angle = torch.arange(len(first), dtype=torch.float64)[:, None] * frequency
    while angle.dim() < first.dim():
        angle = angle[:, None]
    return torch.complex(first, second) * torch.polar(torch.full_like(angle, amplitude), angle)


def dot(a, b):
    return (a * b.conj()).real.sum(-1)


class Plain:
    """Of a `Model`: its configuration and, in float64, its weights."""

    def __init__(self, model):
        self.c, self.w = model.config, {name: t.double() for name, t in model.weights.items()}

    def get(self, layer, name):
        return self.w[f"model.layers.{layer}.{name}"]

    def chosen(self, layer, x, residual):
        """For each token, the positions that the layer's indexer gives it, or gave it in the last layer that has one."""
        if layer < len(self.c.indexer_types) and self.c.indexer_types[layer] == "shared":
            return self.last
        c, g = self.c, lambda name: self.get(layer, "self_attn.indexer." + name)
        half = c.qk_rope_head_dim // 2
        query = (residual @ g("wq_b.weight").t()).view(len(x), c.index_n_heads, c.index_head_dim)
        key = x @ g("wk.weight").t()
        key = (key - key.mean(-1, keepdim=True)) / (key.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        key = key * g("k_norm.weight") + g("k_norm.bias")
        importance = x @ g("weights_proj.weight").t() / math.sqrt(c.index_n_heads * c.index_head_dim)
        pairs = (slice(half), slice(half, 2 * half)) if c.model_type == "deepseek_v32" else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        q, k = (turned(*(t[..., pair] for pair in pairs), c) for t in (query, key))
        out = []
        for t in range(len(x)):
            product = dot(q[t, :, None], k[None, : t + 1]) + query[t, :, 2 * half :] @ key[: t + 1, 2 * half :].t()
            score = (importance[t, :, None] * product.clamp_min(0)).sum(0).tolist()
            out.append(sorted(range(t + 1), key=lambda j: (-score[j], j))[: c.index_topk])
        self.last = out
        return out

    def attention(self, layer, x):
        c, g = self.c, lambda name: self.get(layer, f"self_attn.{name}.weight")
        tokens, heads, nope, latent = len(x), c.num_attention_heads, c.qk_nope_head_dim, c.kv_lora_rank
        residual = norm(x @ g("q_a_proj").t(), g("q_a_layernorm"), 1e-6)
        query = (residual @ g("q_b_proj").t()).view(tokens, heads, -1)
        stored = x @ g("kv_a_proj_with_mqa").t()
        both = norm(stored[:, :latent], g("kv_a_layernorm"), 1e-6) @ g("kv_b_proj").t()
        key, value = both.view(tokens, heads, -1).split([nope, c.v_head_dim], -1)
        q = turned(query[..., nope::2], query[..., nope + 1 :: 2], c)
        k = turned(stored[:, latent::2], stored[:, latent + 1 :: 2], c)
        out = []
        for t, rows in enumerate(self.chosen(layer, x, residual)):
            score = torch.einsum("hd,khd->hk", query[t, :, :nope], key[rows]) + dot(q[t, :, None], k[None, rows])
            weight = (score * turns(c)[2] / math.sqrt(nope + c.qk_rope_head_dim)).softmax(-1)
            out.append(torch.einsum("hk,khv->hv", weight, value[rows]).flatten())
        return torch.stack(out) @ g("o_proj").t()

    def mlp(self, x, prefix):
        gate, up, down = (self.w[f"{prefix}{part}_proj.weight"] for part in ("gate", "up", "down"))
        return (silu(x @ gate.t()) * (x @ up.t())) @ down.t()

    def experts(self, layer, x):
        c, prefix = self.c, f"model.layers.{layer}.mlp."
        score = torch.sigmoid(self.w[prefix + "gate.weight"] @ x).tolist()
        rank = [s + b for s, b in zip(score, self.w[prefix + "gate.e_score_correction_bias"].tolist(), strict=True)]
        size = c.n_routed_experts // c.n_group
        groups = [range(g * size, g * size + size) for g in range(c.n_group)]
        best = sorted(groups, key=lambda group: (-sum(sorted((rank[e] for e in group), reverse=True)[:2]), group[0]))[: c.topk_group]
        mine = sorted((e for group in best for e in group), key=lambda e: (-rank[e], e))[: c.num_experts_per_tok]
        total = sum(score[e] for e in mine) if c.norm_topk_prob else 1.0
        out = self.mlp(x, prefix + "shared_experts.")
        for e in mine:
            gate, up = self.w[prefix + "experts.gate_up_proj"][e].chunk(2)
            out = out + score[e] / total * c.routed_scaling_factor * (self.w[prefix + "experts.down_proj"][e] @ (silu(gate @ x) * (up @ x)))
        return out

    def layer(self, layer, x):
        c = self.c
        x = x + self.attention(layer, norm(x, self.get(layer, "input_layernorm.weight"), c.rms_norm_eps))
        h = norm(x, self.get(layer, "post_attention_layernorm.weight"), c.rms_norm_eps)
        if layer < c.first_k_dense_replace:
            return x + self.mlp(h, f"model.layers.{layer}.mlp.")
        return x + torch.stack([self.experts(layer, row) for row in h])

    def hidden(self, tokens):
        """Final hidden states [tokens, hidden]."""
        x = self.w["model.embed_tokens.weight"][torch.tensor(tokens)]
        for layer in range(self.c.num_hidden_layers):
            x = self.layer(layer, x)
        return norm(x, self.w["model.norm.weight"], self.c.rms_norm_eps)

    def logits_and_drafts(self, tokens):
        """Logits of what comes after each token; by the MTP layer, of what comes after the next one, if that is known."""
        c, n, hidden = self.c, self.c.num_hidden_layers, self.hidden(tokens)
        before = norm(hidden[:-1], self.get(n, "hnorm.weight"), c.rms_norm_eps)
        token = self.w["model.embed_tokens.weight"][torch.tensor(tokens[1:])]
        joined = torch.cat([norm(token, self.get(n, "enorm.weight"), c.rms_norm_eps), before], -1)
        x = self.layer(n, joined @ self.get(n, "eh_proj.weight").t())
        head = self.w["lm_head.weight"].t()
        return hidden @ head, norm(x, self.get(n, "shared_head.norm.weight"), c.rms_norm_eps) @ head
