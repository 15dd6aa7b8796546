"""Greedy decoding that drafts tokens with the MTP layer and verifies several in one forward.

Rules: tokens and logits are those of plain greedy decoding, to the bit, whatever was drafted: a draft decides how many tokens a
forward yields, never which; every row of a step is appended before it is known whether it stays, and when the step is over exactly the
tokens that are known have rows, in every layer: what a rejected draft wrote is rolled back.  Under tensor parallelism all ranks take
the same steps, because they see the same logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from tidegate.engine.model.network import Model, Steps, greedy
from tidegate.engine.model.storage import DecodeKV

__all__ = ["RollbackKV", "SeparateStore", "Speculating", "SpeculativeStore", "speculate"]

K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)


class RollbackKV(DecodeKV, Protocol):
    """Storage of one request that speculates."""

    def rollback(self, length: int) -> None:
        """Only the first `length` tokens have rows now, in every layer that has more; nothing of the others is ever read again."""


class SpeculativeStore(Protocol[K_contra]):
    """Storage of all requests that speculate together, which knows each by a key (its storage, or an attempt's nonce)."""

    def batch(self, steps: Sequence[tuple[int, int, K_contra]]) -> Steps:
        """A decode step of (token, position, request) each; several of one request are in the order of their positions."""

    def rollback(self, request: K_contra, length: int) -> None:
        """As `RollbackKV.rollback`, for the residency of the request's rows too."""


class SeparateStore:
    """Of requests whose storage knows nothing of each other."""

    def batch(self, steps: Sequence[tuple[int, int, RollbackKV]]) -> Steps:
        return steps

    def rollback(self, request: RollbackKV, length: int) -> None:
        request.rollback(length)


@dataclass(slots=True)
class Speculating(Generic[K]):
    """One request that decodes.

    token, position: the last token known, which has no rows yet (at first the prompt's last, whose rows are written again); end: the
    position that gets no rows any more, so that end - position tokens are due at most; drafts: what is guessed to follow, by
    `speculate` or by anybody else, fewer than end - position.
    """

    key: K
    token: int
    position: int
    end: int
    drafts: list[int] = field(default_factory=list)


def speculate(
    model: Model, requests: Sequence[Speculating[K]], store: SpeculativeStore[K], *, drafts: int
) -> list[tuple[list[int], Tensor]]:
    """One forward for all `requests`: of each the tokens that are known now, at least one, and their logits [tokens, vocab].

    Verifies the drafts of each, and then makes up to `drafts` new ones, of which the first costs one pass of the MTP layer over the
    tokens that were accepted, every further one a pass over one token.  ValueError for a model without an MTP layer, unless drafts is 0.
    """
    steps = [(token, one.position + i, one.key) for one in requests for i, token in enumerate([one.token, *one.drafts])]
    hidden = model.decode_hidden(store.batch(steps))
    logits = model.logits(hidden)
    best, found, accepted, first = greedy(logits), [], [], 0
    for one in requests:
        mine = best[first : first + 1 + len(one.drafts)]
        right = next((i for i, draft in enumerate(one.drafts) if draft != mine[i]), len(one.drafts))
        found.append((mine[: right + 1], logits[first : first + right + 1]))
        accepted.append(hidden[first : first + right + 1])
        first += 1 + len(one.drafts)
    for one, (tokens, _) in zip(requests, found, strict=True):
        one.token, one.position = tokens[-1], one.position + len(tokens)
    guessed = _draft(model, requests, [tokens for tokens, _ in found], accepted, store, drafts) if drafts else [[] for _ in requests]
    for one, guesses in zip(requests, guessed, strict=True):
        one.drafts = guesses
        store.rollback(one.key, one.position)
    return found


def _draft(
    model: Model, requests: Sequence[Speculating[K]], known: Sequence[list[int]], hidden: Sequence[Tensor],
    store: SpeculativeStore[K], drafts: int,
) -> list[list[int]]:  # fmt: skip
    """Up to `drafts` guesses for each request, of which `known` tokens have come in, with the `hidden` states before them."""
    pairs = zip(requests, known, strict=True)
    steps = [(token, one.position - len(tokens) + i, one.key) for one, tokens in pairs for i, token in enumerate(tokens)]
    out = model.draft_hidden(store.batch(steps), torch.cat([*hidden]))
    ends = torch.tensor([len(tokens) for tokens in known]).cumsum(0) - 1
    guessed: list[list[int]] = [[] for _ in requests]
    going, out = list(range(len(requests))), out[ends]
    for ahead in range(drafts):
        kept = [n for n, i in enumerate(going) if ahead + 1 < requests[i].end - requests[i].position]
        going, out = [going[n] for n in kept], out[kept]
        if not going:
            break
        for i, token in zip(going, greedy(model.draft_logits(out)), strict=True):
            guessed[i].append(token)
        if ahead + 1 < drafts:  # the MTP layer goes on from its own output: a guess about a guess
            again = [(guessed[i][-1], requests[i].position + ahead, requests[i].key) for i in going]
            out = model.draft_hidden(store.batch(again), out)
    return guessed
