"""The same operations in torch, for any device: the reference for the native kernels, and what runs without them.

Rules: results equal the native ones slot by slot, also where several answers would do (a device's sort must be stable, and an
index written twice is thinned out first); every value is checked before anything is written; no loop over rows or tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tidegate.kernels import abi

if TYPE_CHECKING:
    from tidegate.kernels.residency import Residency, Step

__all__ = ["checked_rows", "copy_rows", "dequantize", "miss_rows", "quantize", "step", "truncate"]

PADDING = 2**31  # above every position


class _Asked(NamedTuple):
    """What is asked of each row, and the same sorted, so that the order can be searched for it."""

    wanted: Tensor  # [n, k], PADDING where there is none
    value: Tensor  # wanted, sorted
    origin: Tensor  # where value comes from
    first: Tensor  # where each position is asked first
    lead: Tensor  # whether that is here


def step(table: Residency, asked: Tensor, rows: Tensor, lengths: Tensor, nonces: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
    """`Residency.step`: the fields of a `Step`."""
    _refuse((lengths < 0) | (lengths > 2**31 - 1), abi.LENGTH_OUTSIDE, lengths)
    _check_rows(table, rows, nonces, keep)
    device, hot = table.positions.device, table.positions.shape[1]
    place, length, nonce = rows.to(device), lengths.to(device)[:, None], nonces.to(device)
    a = _asked(asked, length)
    _refuse(a.lead.sum(1) > hot, abi.TOO_MANY, a.lead.sum(1), hot=hot)
    mine = (table.attempts[place] == nonce)[:, None]
    slots = torch.where(mine, table.slots[place], torch.arange(hot, dtype=torch.int32, device=device))
    kept = mine & (table.positions[place] < torch.minimum(keep.to(device)[:, None], length))
    positions = torch.where(kept, table.positions[place], -1)

    hit, found = _found(a, positions)
    order = torch.argsort((positions >= 0).int() + hit, dim=1, stable=True)  # empty, untouched, hit
    positions, slots, hit, found = (x.gather(1, order) for x in (positions, slots, hit, found))
    k = asked.shape[1]
    answer = torch.full((len(asked), k + 1), -1, dtype=torch.int32, device=device).scatter_(1, found, slots)[:, :k]

    miss = a.lead & (answer < 0)
    misses, rank = miss.sum(1, keepdim=True), miss.cumsum(1) - 1
    missed = torch.full((len(asked), k + 1), -1, dtype=torch.int32, device=device)
    missed = missed.scatter_(1, torch.where(miss, rank, k), asked.int())[:, :k]
    ordinal = torch.arange(k, device=device).expand_as(asked)
    given = torch.where(ordinal < misses, slots.gather(1, ordinal.clamp_max(hot - 1)), -1)  # the first in order are victims
    answer = torch.where(miss, given.gather(1, rank.clamp_min(0)), answer)
    answer = torch.where(a.wanted < PADDING, answer.gather(1, a.first), -1)

    evictions = _reorder(table, place, positions, slots, hit, misses, missed)
    table.attempts[place] = nonce
    return rows, answer, missed, given, torch.stack([hit.sum(1), misses[:, 0], evictions]).int()


def _asked(asked: Tensor, length: Tensor) -> _Asked:
    wanted = torch.where((asked >= 0) & (asked < length), asked.long(), PADDING)  # padding sorts last
    value, index = torch.sort(wanted, dim=1, stable=True)
    k = asked.shape[1]
    first = index.gather(1, torch.searchsorted(value, wanted)) if k else index
    lead = (first == torch.arange(k, device=asked.device)) & (wanted < PADDING)
    return _Asked(wanted, value, index, first, lead)


def _found(a: _Asked, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Which entries of the order are asked for, and where first (k for the others)."""
    k = a.wanted.shape[1]
    if not k:
        return torch.zeros_like(positions, dtype=torch.bool), torch.zeros_like(positions, dtype=torch.int64)
    at = torch.searchsorted(a.value, positions.long()).clamp_max(k - 1)
    hit = (a.value.gather(1, at) == positions) & (positions >= 0)
    return hit, torch.where(hit, a.origin.gather(1, at), k)


def _reorder(
    table: Residency, place: Tensor, positions: Tensor, slots: Tensor, hit: Tensor, misses: Tensor, missed: Tensor
) -> Tensor:
    """Store the new order: untouched entries, misses, hits; the number of valid entries that were evicted, [n]."""
    here = torch.arange(positions.shape[1], device=positions.device).expand_as(positions)
    victim = here < misses
    evictions = (victim & (positions >= 0)).sum(1)
    if missed.shape[1]:
        positions = torch.where(victim, missed.gather(1, here.clamp_max(missed.shape[1] - 1)), positions)
    rest = (~hit).sum(1, keepdim=True)
    target = torch.where(victim, here + rest - misses, torch.where(hit, here, here - misses))
    table.positions[place] = torch.empty_like(positions).scatter_(1, target, positions)
    table.slots[place] = torch.empty_like(slots).scatter_(1, target, slots)
    return evictions


def truncate(table: Residency, rows: Tensor, nonces: Tensor, keep: Tensor) -> None:
    """`Residency.truncate`."""
    _check_rows(table, rows, nonces, keep)
    place = rows.to(table.positions.device)
    mine = (table.attempts[place] == nonces.to(place.device))[:, None]
    kept = (table.positions[place] < keep.to(place.device)[:, None]) | ~mine
    positions = torch.where(kept, table.positions[place], -1)
    order = torch.argsort((positions >= 0).int(), dim=1, stable=True)
    table.positions[place] = positions.gather(1, order)
    table.slots[place] = table.slots[place].gather(1, order)


def checked_rows(targets: Tensor, sources: Tensor | None, skip: bool, known: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Row pairs inside both sides, without padding; ValueError names the first that is not."""
    sources = torch.arange(len(targets), device=targets.device) if sources is None else sources.to(targets.device)
    padding = (targets == -1) if skip else torch.zeros_like(targets, dtype=torch.bool)
    bad_target = ~padding & ((targets < 0) | (targets >= known["targets"]))
    bad_source = ~padding & ((sources < 0) | (sources >= known["sources"]))
    if bool((bad := bad_target | bad_source).any()):
        i = int(bad.nonzero()[0])
        code, value = (abi.TARGET_OUTSIDE, targets[i]) if bad_target[i] else (abi.SOURCE_OUTSIDE, sources[i])
        abi.complain(code, (i, int(value)), **known)
    return targets[~padding], sources[~padding]


def copy_rows(to: Sequence[Tensor], of: Sequence[Tensor], targets: Tensor, sources: Tensor) -> None:
    """Copy rows pair by pair, part by part; of several writes to one row the last stays, which index_copy_ does not promise."""
    value, order = torch.sort(targets, stable=True)
    last = torch.ones_like(value, dtype=torch.bool)
    last[:-1] = value[1:] != value[:-1]
    targets, sources = value[last], sources[order[last]]
    for target, source in zip(to, of, strict=True):
        flat, wanted = source.view(-1, source.shape[-1]), sources.to(source.device)
        rows = flat.index_select(0, wanted).to(target.device)
        target.view(-1, target.shape[-1]).index_copy_(0, targets.to(target.device), rows)


def miss_rows(step: Step, table: Tensor, known: dict[str, int]) -> tuple[Tensor, Tensor]:
    """(rows of the hot buffers, rows of the pool) of the misses of a `Step`, in order; ValueError for what is outside."""
    device, k, hot, block = table.device, step.slots.shape[1], known["hot"], known["block"]
    rows, misses = step.rows.to(device), step.misses.to(device)
    _refuse((rows < 0) | (rows >= known["rows"]), abi.ROW_OUTSIDE, rows, rows=known["rows"])
    _refuse((misses < 0) | (misses > k), abi.MISS_OUTSIDE, misses, misses * 0 - 1, hot=hot)
    entry, i = (torch.arange(k, device=device) < misses[:, None]).nonzero(as_tuple=True)
    position, slot = (x.to(device)[entry, i].long() for x in (step.miss_positions, step.miss_slots))
    _refuse((position < 0) | (slot < 0) | (slot >= hot), abi.MISS_OUTSIDE, position, slot, entry, hot=hot)
    _refuse(position >= known["width"] * block, abi.TABLE_SHORT, position, slot, entry, **known)
    number = table[entry, position // block].long()
    _refuse((number < 0) | (number >= known["blocks"]), abi.BLOCK_OUTSIDE, position, number, entry, **known)
    return rows[entry] * hot + slot, number * block + position % block


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize_rows`."""
    x = rows.float()
    most = x.abs().amax(1, keepdim=True)
    scale = (most / torch.full_like(most, 127)).half()  # by a tensor: by a number, some devices multiply with its inverse
    scale = torch.where(scale.isfinite(), scale, torch.nan)
    wide = scale.float()
    q = torch.where(wide > 0, x / wide, 0.0).round()
    return q.clamp(-127, 127).to(torch.int8), scale


def dequantize(rows: Tensor, scales: Tensor) -> Tensor:
    """`dequantize_rows`."""
    return rows.float() * scales.float()


def _check_rows(table: Residency, rows: Tensor, nonces: Tensor, keep: Tensor) -> None:
    n, count = len(rows), table.positions.shape[0]
    first = torch.full((count,), n).scatter_reduce(0, rows.clamp(0, count - 1), torch.arange(n), "amin")
    problems = (
        ((rows < 0) | (rows >= count), abi.ROW_OUTSIDE, rows),
        (first[rows.clamp(0, count - 1)] < torch.arange(n), abi.ROW_TWICE, rows),
        (keep < 0, abi.KEEP_NEGATIVE, keep),
        (nonces < 1, abi.NO_ATTEMPT, nonces),
    )
    found = [(int(bad.nonzero()[0]), i) for i, (bad, _, _) in enumerate(problems) if bool(bad.any())]
    if found:
        i, which = min(found)
        _, code, values = problems[which]
        abi.complain(code, (i, int(values[i])), rows=count)


def _refuse(
    bad: Tensor, code: int, value: Tensor, other: Tensor | None = None, entry: Tensor | None = None, **known: int
) -> None:
    """Complain about the first bad value, naming its entry (its place, if not given) and what else belongs to it."""
    if bool(bad.any()):
        i = int(bad.nonzero()[0])
        said = (i if entry is None else int(entry[i]), int(value[i]), 0 if other is None else int(other[i]))
        abi.complain(code, said, **known)
