"""LRU residency: which token positions lie in which slots of a hot buffer, for many rows, in one call per step.

Rules: after a step the order of eviction is untouched entries, then misses as they were asked, then hits in their old order,
and empty entries come before all; a position asked for twice takes one slot; positions below 0, or at and above the row's
length, are padding; a row belongs to an attempt, and under another nonce begins empty; an entry at or above `keep` is gone
before the step looks at it, so a row that was rewritten, or rolled back, is never taken for resident; on an error nothing has
changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tidegate.kernels import reference
from tidegate.kernels.abi import StepArguments, TruncateArguments, complain
from tidegate.kernels.dispatch import native_for

__all__ = ["Residency", "Step"]

Integers = Sequence[int] | Tensor
LARGEST = 2**31 - 1


class Step(NamedTuple):
    """What one step found: of n rows, k positions asked of each; tensors of the table's device but for `rows`.

    rows: int64 [n], the rows of the table.
    slots: int32 [n, k], the slot of each position asked, -1 for padding.
    miss_positions, miss_slots: int32 [n, k]; of entry i the first `misses[i]` are what must be fetched, and to which slots,
        in the order asked, each position once; -1 beyond.
    counts: int32 [3, n]; distinct positions that were resident, that were not, and valid entries that they replaced.
    """

    rows: Tensor
    slots: Tensor
    miss_positions: Tensor
    miss_slots: Tensor
    counts: Tensor

    @property
    def hits(self) -> Tensor:
        return self.counts[0]

    @property
    def misses(self) -> Tensor:
        return self.counts[1]

    @property
    def evictions(self) -> Tensor:
        return self.counts[2]


class Residency:
    """The table of one layer: for each of `rows` rows the `hot` entries of a hot buffer, in their order of eviction.

    positions, slots: int32 [rows, hot], next victim first; position -1 is an empty entry; slots are a permutation of
        0..hot of every row.
    attempts: int64 [rows], the nonce of the attempt that a row belongs to, 0 for none yet.

    One thread at a time may use a table; different tables are independent.  8 bytes a slot, wherever `device` is.
    """

    def __init__(self, rows: int, hot: int, *, device: torch.device | str = "cpu") -> None:
        """ValueError where a number is below 1 or does not fit 31 bits."""
        if rows < 1 or not 1 <= hot <= LARGEST:
            raise ValueError(f"a table of {rows} rows of {hot} entries: at least one each, and entries are counted in 31 bits")
        self.positions = torch.full((rows, hot), -1, dtype=torch.int32, device=device)
        self.slots = torch.arange(hot, dtype=torch.int32, device=device).repeat(rows, 1)
        self.attempts = torch.zeros(rows, dtype=torch.int64, device=device)

    def step(
        self,
        asked: Tensor,
        lengths: Integers,
        attempts: Integers,
        *,
        keep: Integers | None = None,
        rows: Integers | None = None,
        threads: int = 1,
    ) -> Step:
        """Make `asked` resident; the caller then fetches the misses before anyone reads the slots.

        asked: int32 or int64 [n, k] on the table's device, contiguous; any value may be in it.
        lengths: [n], tokens that each row has; below 2**31.  A thread keeps 4 bytes of working space for each token of the
            longest row.
        attempts: [n], nonces from 1 on; a row whose nonce changes begins empty.
        keep: [n], entries at positions >= keep are dropped first: those whose rows were written since the last step, by a
            later token or after a roll-back.  `lengths` if not given.
        rows: [n], distinct rows of the table; 0..n if not given.
        threads: the most that may work on it; the result is the same.

        ValueError, with nothing changed, names the first value out of range, and a row that is asked for more distinct
        positions than `hot`.
        """
        if asked.ndim != 2 or asked.dtype not in (torch.int32, torch.int64) or asked.shape[1] > LARGEST:
            raise ValueError(f"asked is {asked.dtype} of shape {tuple(asked.shape)}: give int32 or int64 positions as [rows, k]")
        if asked.device != self.positions.device:
            raise ValueError(f"asked is on {asked.device}, the table on {self.positions.device}: both must be on one device")
        n = asked.shape[0]
        entry_rows, length, nonce = self._rows(rows, n), _column("lengths", lengths, n), _column("attempts", attempts, n)
        kept = length if keep is None else _column("keep", keep, n)
        native = native_for(asked, self.positions)
        if native is None:
            return Step(*reference.step(self, asked, entry_rows, length, nonce, kept))
        asked = asked.contiguous()
        k = asked.shape[1]
        slots, positions, places = (torch.empty(n, k, dtype=torch.int32) for _ in range(3))
        step = Step(entry_rows, slots, positions, places, torch.empty(3, n, dtype=torch.int32))
        s = StepArguments(
            self.positions.data_ptr(), self.slots.data_ptr(), self.attempts.data_ptr(), *self.positions.shape,
            asked.data_ptr(), asked.element_size(), n, k,
            entry_rows.data_ptr(), length.data_ptr(), nonce.data_ptr(), kept.data_ptr(),
            *(out.data_ptr() for out in step[1:]), native.isa, threads,
        )  # fmt: skip
        code = native.library.tg_residency_step(ctypes.byref(s))
        if code:
            complain(code, s.bad, hot=self.positions.shape[1], rows=self.positions.shape[0])
        return step

    def truncate(self, keep: Integers, attempts: Integers, *, rows: Integers | None = None) -> None:
        """Drop entries at positions >= `keep` [n] of rows that belong to `attempts` [n]: speculation that was rejected.

        Their slots become the next victims, in their old order.  A row of another attempt is left as it is: it begins empty
        anyway.  Only needed where no step with a shorter `keep` or length comes before the positions are written again.
        ValueError as `step`, with nothing changed.
        """
        n = len(keep)
        entry_rows, nonce = self._rows(rows, n), _column("attempts", attempts, n)
        kept = _column("keep", keep, n)
        native = native_for(self.positions)
        if native is None:
            reference.truncate(self, entry_rows, nonce, kept)
            return
        s = TruncateArguments(
            self.positions.data_ptr(), self.slots.data_ptr(), self.attempts.data_ptr(), *self.positions.shape, n,
            entry_rows.data_ptr(), nonce.data_ptr(), kept.data_ptr(),
        )  # fmt: skip
        code = native.library.tg_truncate(ctypes.byref(s))
        if code:
            complain(code, s.bad, hot=self.positions.shape[1], rows=self.positions.shape[0])

    def _rows(self, rows: Integers | None, n: int) -> Tensor:
        return torch.arange(n) if rows is None else _column("rows", rows, n)


def _column(name: str, values: Integers, n: int) -> Tensor:
    if isinstance(values, Tensor) and values.dtype == torch.int64 and values.shape == (n,) and values.is_cpu:
        return values.contiguous()
    column = torch.as_tensor(values)
    if column.numel() == 0 == n:
        return torch.zeros(0, dtype=torch.int64)
    if column.shape != (n,) or column.is_floating_point() or column.dtype == torch.bool:
        raise ValueError(f"{name} is {column.dtype} of shape {tuple(column.shape)}: give {n} integers, one for each row asked")
    return column.to("cpu", torch.int64).contiguous()
