"""One-sided pull on one host: Decode copies out of a Prefill's mapped layer memory into its own registered regions.

Rules: every range of every part is checked, in 64 bits and to the byte, against the peer's memory and the region
before the first byte moves; a refused pull fails quietly, with nothing moved; adjacent ranges are copied as one; the
peer takes no part.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tidegate.engine.copying import CopyWorkers, Faults, Job, OnOutcome, Outcome, Work, wait_for
from tidegate.engine.recorder import NULL, Recording
from tidegate.engine.slots import SharedMemory
from tidegate.kernels.copy import Bytes, Offsets, as_bytes, checked_ranges, copy_checked, first_astray, refuse_shared

Columns = tuple[Offsets, Offsets, Offsets]  # destination, source, length


class Part(NamedTuple):
    """What a pull reads into one region: three columns of equal length, in bytes; destinations count from the region's buffer.

    total: the sum of `length`, where whoever made it keeps that; only to be counted with.
    """

    region: str
    source: Sequence[int] | Offsets
    destination: Sequence[int] | Offsets
    length: Sequence[int] | Offsets
    total: int = 0


class PullBackend(Protocol):
    """One way of reading a peer's memory."""

    def register(self, region: str, buffer: Any, spans: Offsets | None = None, memory: str = "") -> None:
        """Make `buffer` a destination; before any address of it is advertised.

        spans: int64 [n, 2], the only bytes [first, stop) of it that may be written, in order and apart; all if left out.
        memory: what the buffer is called in the trace, where several regions lie in one; `region` if left out.
        """

    def submit(self, peer: str, parts: Sequence[Part], work: Work, on_outcome: OnOutcome) -> None:
        """Begin a pull; outcomes follow on another thread until one is `stopped`."""

    def pull(self, peer: str, parts: Sequence[Part], work: Work) -> Outcome:
        """The same, blocking until the first outcome."""

    def close(self) -> None:
        """Wait for every pull to end."""


class Region(NamedTuple):
    """A registered destination.  spans: as `register` says; memory: its buffer's name in the trace."""

    buffer: Bytes
    spans: Offsets | None
    memory: str

    def check(self, destination: Offsets, length: Offsets) -> None:
        """ValueError, naming the first, for a range that is not wholly in one span; ranges are inside the buffer already."""
        if self.spans is None:
            return
        if (i := first_astray(destination, length, self.spans)) >= 0:
            first, stop = self.spans.T
            raise ValueError(
                f"range {i} (destination {destination[i]}, length {length[i]}) leaves the {int((stop - first).sum())} bytes that are "
                f"registered, in {len(first)} places: nothing was copied"
            )


class ShmPull:
    """PullBackend over `SharedMemory`."""

    def __init__(self, *, threads: int = 1, recorder: Recording = NULL, faults: Faults | None = None) -> None:
        self._workers = CopyWorkers("pull", threads=threads, recorder=recorder, faults=faults)
        self._lock = threading.Lock()
        self._regions: dict[str, Region] = {}
        self._peers: dict[str, SharedMemory] = {}

    def register(self, region: str, buffer: Any, spans: Offsets | None = None, memory: str = "") -> None:
        """ValueError for a name in use, for memory that is not contiguous or not writable, and for spans that are not in it."""
        view = as_bytes(buffer, writable=True)
        if spans is not None:
            ends = np.concatenate(([0], spans.reshape(-1), [view.size]))
            if spans.shape != (len(spans), 2) or (np.diff(ends) < 0).any():
                raise ValueError(f"region {region!r}: its spans are not [n, 2] bytes of a buffer of {view.size}, in order and apart")
        with self._lock:
            if region in self._regions:
                raise ValueError(f"region {region!r} is registered: unregister it first")
            apart = None if spans is None else np.ascontiguousarray(spans, np.int64)
            self._regions[region] = Region(view, apart, memory or region)

    def unregister(self, region: str) -> None:
        """Refuse new pulls into `region`; those that began go on (wait for their end before the memory is given
        away).
        """
        with self._lock:
            self._regions.pop(region, None)

    def connect(self, peer: str, memory: SharedMemory) -> None:
        """Read `peer` from `memory` from now on (a restarted peer has new memory)."""
        with self._lock:
            self._peers[peer] = memory

    def disconnect(self, peer: str) -> None:
        """Refuse new pulls from `peer`."""
        with self._lock:
            self._peers.pop(peer, None)

    def submit(self, peer: str, parts: Sequence[Part], work: Work, on_outcome: OnOutcome) -> None:
        try:
            job = self._job(peer, parts, work)
        except ValueError as error:
            reason = f"pull from {peer!r} for slot {work.slot} epoch {work.epoch}: {error}"
            self._workers.report(Outcome(ok=False, stopped=True, reason=reason), on_outcome)
            return
        self._workers.submit(job, on_outcome)

    def pull(self, peer: str, parts: Sequence[Part], work: Work) -> Outcome:
        return wait_for(lambda on_outcome: self.submit(peer, parts, work, on_outcome))

    def close(self) -> None:
        self._workers.close()

    def _checked(self, peer: str, parts: Sequence[Part]) -> tuple[Bytes, list[Region], list[Columns]]:
        """The peer's memory, and of each part the region and its columns, every range inside both."""
        with self._lock:
            if peer not in self._peers:
                raise ValueError(f"peer is not connected: there are {sorted(self._peers)}")
            source = self._peers[peer].bytes
            try:
                regions = [self._regions[part.region] for part in parts]
            except KeyError as missing:
                raise ValueError(f"region {missing} is not registered: there are {sorted(self._regions)}") from None
        columns = []
        for part, region in zip(parts, regions, strict=True):
            try:
                refuse_shared(region.buffer, source)
                columns.append(checked_ranges(region.buffer.size, source.size, part.destination, part.source, part.length))
                region.check(columns[-1][0], columns[-1][2])
            except ValueError as error:
                raise ValueError(f"region {part.region!r}: {error}") from error
        return source, regions, columns

    def _job(self, peer: str, parts: Sequence[Part], work: Work) -> Job:
        source, regions, columns = self._checked(peer, parts)
        targets = [region.buffer for region in regions]

        def copy() -> tuple[int, int]:
            copies = [copy_checked(target, source, *column) for target, column in zip(targets, columns, strict=True)]
            return sum(copies), sum(int(n.sum()) for _, _, n in columns)

        def read() -> list[Bytes]:
            return [source[at : at + n] for _, s, length in columns for at, n in zip(s.tolist(), length.tolist(), strict=True)]

        def landed() -> list[Bytes]:
            pieces = []
            for target, (d, _, length) in zip(targets, columns, strict=True):
                pieces += [target[at : at + n] for at, n in zip(d.tolist(), length.tolist(), strict=True)]
            return pieces

        fields: dict[str, Any] = {"peer": peer}
        ranges: list[tuple[int, int, int]] = []
        if self._workers.recorder.enabled:  # a line for each block takes longer than to copy some
            fields["regions"] = [region.memory for region, (_, _, n) in zip(regions, columns, strict=True) for _ in n]
            ranges = [(s, d, n) for column in columns for d, s, n in zip(*(x.tolist() for x in column), strict=True)]
        return Job("read", work, ranges, read, landed, copy, fields)
