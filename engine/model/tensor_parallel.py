"""The ranks that compute one model together, and the one thing that they exchange: partial sums.

Rules: what is summed over ranks is gathered whole and added by everybody in the order of the parts' numbers, so that all ranks hold
the same bits, and the same as one rank alone; nothing is added as it arrives.  A group is one failure domain: when a rank dies, leaves
or falls silent, every collective of every other rank ends with `RankLost` within the group's time limit, and no later one succeeds;
whoever catches that has nothing left to do but to end, as all the others do (`run_worker` ends them with one exit code).  One thread
of a rank calls it at a time, and all ranks make the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tidegate.engine.model.arithmetic import wide

__all__ = ["ALONE", "Alone", "GlooRanks", "RankLost", "TensorParallel", "summed"]


class RankLost(RuntimeError):
    """A rank of the group has gone or is silent; this one must end too."""


class TensorParallel(Protocol):
    """The collectives of one rank."""

    rank: int  # from 0
    size: int

    def gather(self, mine: Tensor) -> Tensor:
        """`mine` [n, ...] of every rank, of one shape and type everywhere, one after the other in the order of ranks: [size * n, ...]."""

    def exchange(self, data: bytes) -> list[bytes]:
        """What every rank gave, in the order of ranks; any lengths.  Ends nowhere before all have come, so it is a barrier too."""

    def agree(self, what: str, data: bytes) -> None:
        """RuntimeError on every rank, naming `what` and who differs, unless all ranks gave the same."""

    def close(self) -> None:
        """Give the connections back; the other ranks lose this one."""


class Alone:
    """A group of one: nothing to exchange."""

    rank, size = 0, 1

    def gather(self, mine: Tensor) -> Tensor:
        return mine

    def exchange(self, data: bytes) -> list[bytes]:
        return [data]

    def agree(self, what: str, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


ALONE = Alone()


class GlooRanks:
    """Rank `rank` of `size` processes of this machine, over gloo on loopback.

    meeting: a file that does not exist yet in a folder of the group's own; all ranks name the same one.  timeout: seconds for all
    ranks to come, and for every collective after that.  Between steps a rank may be in `exchange` for no longer than that either, so
    whoever leads an idle group lets it exchange something more often.  RankLost where the others do not come.
    """

    def __init__(self, meeting: str | Path, *, rank: int, size: int, timeout: float = 60.0) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"rank is {rank}: between 0 and {size - 1}, for there are {size} ranks")
        self.rank, self.size, self._timeout = rank, size, timeout
        # Not init_process_group: a process has one of those, and an embedder's may be it.  The type stubs lack what is used here.
        dist: Any = torch.distributed
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(interface="lo")]
        options._timeout = limit = timedelta(seconds=timeout)
        try:
            store = dist.FileStore(str(meeting), size)
            store.set_timeout(limit)
            self._group: Any = dist.ProcessGroupGloo(store, rank, size, options)
            self.exchange(b"")  # connections are made when they are needed: now, not in the middle of a forward
        except RuntimeError as error:
            raise self._lost("not all ranks came", error) from None

    def gather(self, mine: Tensor) -> Tensor:
        mine = mine.contiguous()
        every = mine.new_empty(self.size * mine.shape[0], *mine.shape[1:])
        if mine.numel():
            self._collect(every.view(-1).view(torch.uint8), mine.view(-1).view(torch.uint8))
        return every

    def exchange(self, data: bytes) -> list[bytes]:
        lengths = self.gather(torch.tensor([len(data)])).tolist()
        room = max(lengths)
        padded = torch.frombuffer(bytearray(data.ljust(room, b"\0")), dtype=torch.uint8) if room else torch.empty(0, dtype=torch.uint8)
        every = self.gather(padded[None])
        return [row[:length].numpy().tobytes() for row, length in zip(every, lengths, strict=True)]

    def agree(self, what: str, data: bytes) -> None:
        every = self.exchange(data)
        if others := [rank for rank, given in enumerate(every) if given != every[0]]:
            raise RuntimeError(f"{what}: ranks {others} of {self.size} have another than rank 0; a group that disagrees must end")

    def close(self) -> None:
        self._group = None

    def _collect(self, every: Tensor, mine: Tensor) -> None:
        if self._group is None:
            raise RankLost(f"rank {self.rank} of {self.size} has left its group")
        try:
            self._group._allgather_base(every, mine).wait()
        except RuntimeError as error:
            self._group = None  # so that nobody waits for this rank, either
            raise self._lost("a collective ended without an answer", error) from None

    def _lost(self, what: str, error: RuntimeError) -> RankLost:
        why = str(error).split(". This is typically")[0].splitlines()[0]
        return RankLost(
            f"rank {self.rank} of {self.size}: {what} (limit {self._timeout:g} s): another rank has stopped or is stuck, and all end "
            f"together; look at the one that ended first ({why})"
        )


def summed(group: TensorParallel, partials: Sequence[Tensor]) -> Tensor:
    """The sum of all parts of all ranks, added in the order of their numbers in the wide type and rounded once.

    partials: those of this rank, equally many on every rank, of one shape and type, in order.
    """
    first, *rest = group.gather(torch.stack([*partials]))
    total = wide(first).clone()
    for part in rest:
        total += part
    return total.to(first.dtype)
