"""The `local` pool: objects in fixed extents of shared memory on this host, for one process or several.

Rules: what may be done to an object is decided by the index (`pool_change.py`), in one transaction for all keys of a call; bytes
are copied outside of it, without the GIL, and only into extents that this process allocated or out of those that it has pinned;
an extent is given back only when no copy of this process touches it any more, whatever was asked meanwhile; a load whose pin
expired before its last byte has failed; which layers are written is kept here, for nobody else may write them.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tidegate.engine.copying import CopyWorkers, Faults, Job, OnOutcome, Outcome, Work
from tidegate.engine.pool_change import Place
from tidegate.engine.pool_client import this_process
from tidegate.engine.pool_folder import PoolFolder, new_folder, sweep
from tidegate.engine.pool_index import Index
from tidegate.engine.pool_interface import Answer, PoolError
from tidegate.engine.pool_layout import ExtentLayout
from tidegate.engine.pool_moves import Moves
from tidegate.engine.recorder import NULL, Recording
from tidegate.kernels.copy import Bytes, Offsets, as_bytes

__all__ = ["LocalPool"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Writing:
    """An object that this process allocated and has not finished."""

    extent: int
    rows: int
    begun: set[int] = field(default_factory=set)
    saved: set[int] = field(default_factory=set)
    failed: str = ""
    copies: int = 0
    removed: bool = False


@dataclass(slots=True)
class _Pinned:
    """A readable object that this process holds; pins: how often it asked for that."""

    extent: int
    rows: int
    expiry: float
    pins: int = 0
    copies: int = 0


class LocalPool:
    """`Pool` (pool_interface.py) of `extents` objects in `folder`; without a folder, of this process alone.

    pin_seconds: a pin under which nothing is loaded for half of this time may end, after the whole of it it does.  PoolError
    where memory is short or the folder cannot be had.
    """

    def __init__(
        self, layout: ExtentLayout, extents: int, *, folder: Path | str | None = None, threads: int = 1, recorder: Recording = NULL,
        faults: Faults | None = None, pin_seconds: float = 300.0, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        if extents < 1 or pin_seconds <= 0:
            raise ValueError(f"{extents} extents, pins of {pin_seconds} s: a pool has room for one object, and a pin lasts")
        self.layout, self.extents, self._pin_seconds, self._clock = layout.checked(), extents, pin_seconds, clock
        sweep()
        self._folder: PoolFolder | None = PoolFolder(Path(folder) if folder else new_folder(), layout, extents)
        self.path, self._arena = self._folder.path, self._folder.arena
        try:
            self._index = Index(self._folder.env, this_process(), extents, clock=clock)
            self._index.join()
        except BaseException:
            self._folder.close()
            raise
        self._lock, self._drained = threading.Lock(), False
        self._writing: dict[bytes, _Writing] = {}
        self._pinned: dict[bytes, _Pinned] = {}
        self._leaving: set[bytes] = set()  # let go, and not given back: a copy uses them
        self._workers = CopyWorkers("pool", threads=threads, recorder=recorder, faults=faults)
        self._fills = CopyWorkers("pool-fill", threads=threads, faults=faults)

    # ---- what is there --------------------------------------------------------------------------------------------

    def lookup(self, keys: Sequence[bytes]) -> int:
        return self._index.lookup(keys)

    def stats(self) -> dict[str, int]:
        own = {"writing": len(self._writing), "extents": self.extents, "extent_bytes": self.layout.size}
        return self._index.stats() | own

    def allocate(self, keys: Sequence[bytes], rows: Sequence[int], *, pin: bool = False) -> list[Answer]:
        if bad := [count for count in rows if not 1 <= count <= self.layout.rows]:
            raise ValueError(f"an object of {bad[0]} rows: an extent of this pool holds 1 to {self.layout.rows}")
        with self._lock:
            expiry = self._clock() + self._pin_seconds
            places = self._index.allocate(keys, rows, expiry if pin else None)
            for key, place in zip(keys, places, strict=True):
                if place.answer is Answer.NEW:
                    self._writing[key] = _Writing(place.extent, place.rows)
                elif place.answer is Answer.STORED and pin:
                    self._pin(key, place, expiry)
        return [place.answer for place in places]

    def finish(self, keys: Sequence[bytes], *, pin: bool = False) -> None:
        with self._lock:
            for key in keys:
                item = self._writable(key)
                if missing := sorted(set(range(len(self.layout.layers))) - item.saved):
                    raise PoolError(f"{key.hex()} cannot be finished: layers {missing} are not saved")
            expiry = self._clock() + self._pin_seconds
            self._index.finish(keys, expiry if pin else None)
            for key in keys:
                item = self._writing.pop(key)
                if pin:
                    self._pin(key, Place(Answer.STORED, item.extent, item.rows), expiry)

    def pin(self, keys: Sequence[bytes]) -> int:
        with self._lock:
            expiry = self._clock() + self._pin_seconds
            places = self._index.pin(keys, expiry)
            for key, place in zip(keys, places, strict=False):
                self._pin(key, place, expiry)
        return len(places)

    def unpin(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key, count in Counter(keys).items():
                if key not in self._pinned or self._pinned[key].pins < count:
                    raise PoolError(f"{key.hex()} is not pinned: each pin is taken back once")
            for key in keys:
                self._pinned[key].pins -= 1
            self._leaving.update(key for key in keys if not self._pinned[key].pins)
            self._settle(keys)

    def evict(self, keys: Sequence[bytes]) -> list[bool]:
        return self._index.evict(keys)

    def remove(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            own = [key for key in keys if key in self._writing]
            for key in own:
                self._writing[key].removed = True
            self._leaving.update(own)
            self._settle(own)
            self._index.remove([key for key in keys if key not in own])

    def recover(self) -> int:
        """Take back what dead processes hold (the pool does it by itself where room is short); how many holds that were."""
        return self._index.recover()

    def drain(self) -> None:
        """Let every copy end and take no more; everything else goes on until `close`."""
        self._drained = True
        self._workers.close()
        self._fills.close()

    def close(self) -> None:
        if self._folder is None:
            return
        self.drain()
        try:
            self._index.leave()
        finally:
            self._arena = np.empty(0, np.uint8)
            self._folder.close()
            self._folder = None

    # ---- copies ---------------------------------------------------------------------------------------------------

    def save(self, keys: Sequence[bytes], layer: int, memory: Any, offsets: Offsets, work: Work, on_outcome: OnOutcome) -> None:
        view = as_bytes(memory)
        with self._lock:
            self._need_open()
            stored = {key: p for key in keys if key not in self._writing and (p := self._pinned.get(key)) and p.pins}
            own = [key for key in keys if key not in stored] if stored else keys
            items = [item for key in own if (item := self._writing.get(key)) and not item.removed and not item.failed]
            if len(items) < len(own):
                items = [self._writable(key) for key in own]  # one of them says why
            if any(layer in item.begun for item in items):
                raise PoolError(f"layer {layer} is saved already: a layer is written once")
            self._renewed(list(stored), list(stored.values()))
            job = self._moves(keys, layer, view, offsets, stored, save=True).save(work, record=self._workers.recorder.enabled)
            for item in items:
                item.begun.add(layer)
                item.copies += 1

        def ended(outcome: Outcome) -> None:
            for item in items:
                if outcome.ok:
                    item.saved.add(layer)
                else:
                    item.failed = item.failed or outcome.reason

        self._submit(self._workers, job, keys, items, ended, on_outcome)

    def load(
        self, keys: Sequence[bytes], layer: int, memory: Any, offsets: Offsets, work: Work, on_outcome: OnOutcome, *,
        part_of_write: bool = False,
    ) -> None:  # fmt: skip
        """As `Pool.load`.  part_of_write: the copy takes the place of a computation, which records it; it does not queue behind
        loads and saves."""
        view = as_bytes(memory, writable=True)
        workers, kind = (self._fills, "fill") if part_of_write else (self._workers, "load")
        with self._lock:
            self._need_open()
            for key in keys:
                if key not in self._pinned or not self._pinned[key].pins:
                    raise PoolError(f"{key.hex()} is not pinned: pin it before reading, so that it cannot be evicted in between")
            job = self._moves(keys, layer, view, offsets, self._pinned, save=False).load(work, record=workers.recorder.enabled, kind=kind)
            items = [self._pinned[key] for key in keys]
            job.copy = self._within(self._renewed(keys, items), job.copy)
            for item in items:
                item.copies += 1

        self._submit(workers, job, keys, items, lambda outcome: None, on_outcome)

    def _moves(
        self, keys: Sequence[bytes], layer: int, view: Bytes, offsets: Offsets, stored: Mapping[bytes, _Pinned], *, save: bool
    ) -> Moves:
        places: list[_Writing | _Pinned] = [stored.get(key) or self._writing[key] for key in keys]
        objects = [place.extent for place in places], [place.rows for place in places], [type(place) is _Writing for place in places]
        return Moves.of(self._arena, view, self.layout, layer, objects, offsets, save=save)

    def _within(self, deadline: float, copy: Callable[[], tuple[int, int]]) -> Callable[[], tuple[int, int]]:
        def timed() -> tuple[int, int]:
            out = copy()
            if self._clock() >= deadline:  # what was read may be another object's by now
                raise OSError("the pin expired while the copy ran: what it read is worthless")
            return out

        return timed

    def _submit(
        self, workers: CopyWorkers, job: Job, keys: Sequence[bytes], items: Sequence[_Writing | _Pinned],
        ended: Callable[[Outcome], None], on_outcome: OnOutcome,
    ) -> None:  # fmt: skip
        def told(outcome: Outcome) -> None:
            with self._lock:
                ended(outcome)
                for item in items if outcome.stopped else ():
                    item.copies -= 1
                try:
                    if self._leaving:
                        self._settle(keys)
                except PoolError:  # the copy's owner must hear of its end all the same
                    log.exception("%s: its objects could not be given back", job.kind)
            on_outcome(outcome)

        workers.submit(job, told)

    # ---- what this process holds; under the lock ------------------------------------------------------------------

    def _need_open(self) -> None:
        if self._drained:
            raise PoolError("the pool is closed: nothing more is copied")

    def _writable(self, key: bytes) -> _Writing:
        item = self._writing.get(key)
        if item is None or item.removed:
            raise PoolError(f"{key.hex()} is not being written by this process: allocate it first, and heed the answer")
        if item.failed:
            raise PoolError(f"{key.hex()} is spoilt by a failed save ({item.failed}): remove it")
        return item

    def _pin(self, key: bytes, place: Place, expiry: float) -> None:
        item = self._pinned.get(key)
        if item is None or item.extent != place.extent:  # it may have come back elsewhere after a pin that expired
            item = self._pinned[key] = _Pinned(place.extent, place.rows, expiry, item.pins if item else 0)
        item.expiry = expiry
        item.pins += 1
        self._leaving.discard(key)

    def _renewed(self, keys: Sequence[bytes], items: Sequence[_Pinned]) -> float:
        """Until when the pins last; PoolError where one is gone."""
        if not items:
            return math.inf
        now, expiry = self._clock(), min([item.expiry for item in items])
        if expiry - now < self._pin_seconds / 2:
            if not self._index.renew(keys, now + self._pin_seconds):
                raise PoolError("a pin has expired and its object may be gone: pin again, and heed the answer")
            expiry = now + self._pin_seconds
            for item in items:
                item.expiry = expiry
        return expiry

    def _settle(self, keys: Sequence[bytes]) -> None:
        """Give back those that were let go and that no copy uses."""
        unpinned = [key for key in dict.fromkeys(keys) if (p := self._pinned.get(key)) and not p.pins and not p.copies]
        removed = [key for key in dict.fromkeys(keys) if (w := self._writing.get(key)) and w.removed and not w.copies]
        if unpinned or removed:
            self._index.let_go(unpinned, removed)
        for key in unpinned:
            del self._pinned[key]
        for key in removed:
            del self._writing[key]
        self._leaving.difference_update(unpinned, removed)
