"""Prefill's host KV pool in files: one object per (run, chunk), written layer by layer, readable only when it is whole.

Rules: a key is written once; an object becomes readable by `finish`, in one atomic rename, and only if every layer
was saved in full; a failed save spoils its object for good; a reader pins before it reads, and a pinned object is not
evicted; a miss is a normal answer, and a success no promise to be readable later; saves and loads run in the order
they were submitted, off the caller's thread and without the GIL; the folder belongs to one pool at a time, which
clears it when it opens and when it closes.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.engine.copying import CopyWorkers, Faults, Job, OnOutcome, Outcome, Work
from tidegate.engine.file_io import read_whole, write_whole
from tidegate.engine.recorder import NULL, Recording
from tidegate.kernels.copy import Bytes, as_bytes

SUFFIXES = (".part", ".kv")  # being written; readable


class PoolError(Exception):
    """The pool cannot do what was asked; the message says which object, why, and what can be done."""


class Key(NamedTuple):
    """Name of an object."""

    run: str
    chunk: int


class _Object:
    """One object's file and state; changed under the pool's lock only."""

    def __init__(self, key: Key, path: Path, fd: int, sizes: tuple[int, ...]) -> None:
        self.key, self.path, self.fd, self.sizes = key, path, fd, sizes
        self.offsets = [sum(sizes[:layer]) for layer in range(len(sizes))]
        self.begun: set[int] = set()
        self.saved: set[int] = set()
        self.failed = ""
        self.readable = False
        self.gone = False
        self.pins = 0
        self.jobs = 0  # copies that use the descriptor

    def let_go(self) -> None:
        """Close the descriptor once the object is gone and no copy uses it."""
        if self.gone and not self.jobs and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class FilePool:
    """Objects in `folder` (made if missing), at most `capacity` bytes of them together.

    origin: the buffer that recorded memory offsets count from (the slots' memory), so that they name the same bytes
    as a reader's offsets do.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        capacity: int = 2**63 - 1,
        threads: int = 1,
        recorder: Recording = NULL,
        faults: Faults | None = None,
        origin: Any = b"",
    ) -> None:
        self.folder, self.capacity, self.used = Path(folder), capacity, 0
        self._made = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._folder_fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._folder_fd)
            raise PoolError(
                f"{self.folder} belongs to a pool that is running: give each process a folder of its own"
            ) from error
        self._sweep()
        self._lock = threading.Lock()
        self._origin = as_bytes(origin).ctypes.data
        self._objects: dict[Key, _Object] = {}  # least recently pinned first
        self._workers = CopyWorkers("pool", threads=threads, recorder=recorder, faults=faults)

    def allocate(self, key: Key, sizes: Sequence[int]) -> None:
        """Reserve an object whose layer i has `sizes[i]` bytes; PoolError where the key is in use or there is no
        room.
        """
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", key.run) or key.chunk < 0 or not sizes or min(sizes) < 1:
            raise ValueError(
                f"{key} with layers of {list(sizes)} bytes: runs are letters, digits, - and _; numbers start at 0, sizes at 1"
            )
        total = sum(sizes)
        with self._lock:
            if key in self._objects:
                raise PoolError(f"{key} exists: a key is written once; remove it, or take a new run")
            if total > self.capacity - self.used:
                raise PoolError(
                    f"{key} needs {total} bytes, {self.capacity - self.used} of {self.capacity} are free: evict first"
                )
            path = self.folder / f"{key.run}-{key.chunk}.part"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, total)
            except OSError as error:
                os.close(fd)
                path.unlink()
                raise PoolError(
                    f"{key} needs {total} bytes and {self.folder} has no room: {error.strerror}; evict first"
                ) from error
            self._objects[key] = _Object(key, path, fd, tuple(sizes))
            self.used += total

    def save(self, key: Key, layer: int, buffers: Sequence[Any], work: Work, on_outcome: OnOutcome) -> None:
        """Write `buffers`, together exactly the layer's size; PoolError or ValueError, with nothing queued, where
        they cannot be.

        The memory must stay as it is until the outcome.
        """
        views = [as_bytes(buffer) for buffer in buffers]
        with self._lock:
            item = self._writable(key)
            self._check(item, layer, views)
            if layer in item.begun:
                raise PoolError(f"{key} layer {layer} is saved already: a layer is written once")
            item.begun.add(layer)
            item.jobs += 1

        def ended(outcome: Outcome) -> None:
            with self._lock:
                if outcome.ok:
                    item.saved.add(layer)
                else:
                    item.failed = item.failed or outcome.reason
                self._ended(item, outcome)
            on_outcome(outcome)

        job = self._job("save", item, layer, views, work, lambda: write_whole(item.fd, views, item.offsets[layer]))
        self._workers.submit(job, ended)

    def finish(self, key: Key) -> None:
        """Make the object readable; PoolError, naming what is missing, unless every layer was saved."""
        with self._lock:
            item = self._writable(key)
            missing = sorted(set(range(len(item.sizes))) - item.saved)
            if missing:
                raise PoolError(f"{key} cannot be finished: layers {missing} are not saved")
            path = item.path.with_suffix(".kv")
            os.rename(item.path, path)
            item.path, item.readable = path, True

    def pin(self, key: Key) -> bool:
        """Keep a readable object from eviction until `unpin`; False is a miss."""
        with self._lock:
            item = self._objects.get(key)
            if item is None or not item.readable:
                return False
            self._objects[key] = self._objects.pop(key)  # most recently used: last
            item.pins += 1
            return True

    def unpin(self, key: Key) -> None:
        """Take back one pin; PoolError where there is none."""
        with self._lock:
            item = self._objects.get(key)
            if item is None or not item.pins:
                raise PoolError(f"{key} is not pinned: each pin is taken back once")
            item.pins -= 1

    def load(self, key: Key, layer: int, buffers: Sequence[Any], work: Work, on_outcome: OnOutcome) -> None:
        """Read a layer of a pinned object into `buffers`; PoolError or ValueError, with nothing queued, where it
        cannot be.
        """
        views = [as_bytes(buffer, writable=True) for buffer in buffers]
        with self._lock:
            item = self._objects.get(key)
            if item is None or not item.pins:
                raise PoolError(f"{key} is not pinned: pin it before reading, so that it cannot be evicted in between")
            self._check(item, layer, views)
            item.jobs += 1

        def ended(outcome: Outcome) -> None:
            with self._lock:
                self._ended(item, outcome)
            on_outcome(outcome)

        job = self._job("load", item, layer, views, work, lambda: read_whole(item.fd, views, item.offsets[layer]))
        self._workers.submit(job, ended)

    def evict(self, key: Key) -> bool:
        """Drop a readable object and give its bytes back; False where it is absent, unfinished or pinned."""
        with self._lock:
            item = self._objects.get(key)
            if item is None or not item.readable or item.pins:
                return False
            self._drop(item)
            return True

    def remove(self, key: Key) -> None:
        """Drop an object in whatever state; copies that run end by themselves.  Absent already: nothing."""
        with self._lock:
            if item := self._objects.get(key):
                self._drop(item)

    def evictable(self) -> list[Key]:
        """Readable objects without a pin, the one unused for longest first."""
        with self._lock:
            return [key for key, item in self._objects.items() if item.readable and not item.pins]

    def close(self) -> None:
        """Wait for the copies, then remove every object (and the folder, if this pool made it).  Again does nothing."""
        if self._folder_fd < 0:
            return
        self._workers.close()
        with self._lock:
            for item in list(self._objects.values()):
                self._drop(item)
        if self._made:
            self.folder.rmdir()
        os.close(self._folder_fd)
        self._folder_fd = -1

    def _sweep(self) -> None:
        """Remove what a killed pool left: nobody else can own it, for the folder is locked."""
        for path in self.folder.iterdir():
            if path.suffix in SUFFIXES:
                path.unlink()

    def _writable(self, key: Key) -> _Object:
        item = self._objects.get(key)
        if item is None:
            raise PoolError(f"{key} is not allocated")
        if item.readable:
            raise PoolError(f"{key} is finished: an object is written once")
        if item.failed:
            raise PoolError(f"{key} is spoilt by a failed save ({item.failed}): remove it")
        return item

    @staticmethod
    def _check(item: _Object, layer: int, views: Sequence[Bytes]) -> None:
        if not 0 <= layer < len(item.sizes):
            raise ValueError(f"{item.key} has layers 0..{len(item.sizes) - 1}, not {layer}")
        if (size := sum(view.size for view in views)) != item.sizes[layer]:
            raise ValueError(
                f"{item.key} layer {layer} has {item.sizes[layer]} bytes, the buffers have {size}: nothing was copied"
            )

    def _job(self, kind: str, item: _Object, layer: int, views: list[Bytes], work: Work, copy: Callable[[], int]) -> Job:
        offset, ranges = item.offsets[layer], []
        for view in views:
            at = view.ctypes.data - self._origin
            ranges.append((at, offset, view.size) if kind == "save" else (offset, at, view.size))
            offset += view.size
        fields = {"pool_run": item.key.run, "pool_chunk": item.key.chunk, "pool_layer": layer}
        moved = lambda: views  # noqa: E731
        source, landed = (moved, None) if kind == "save" else (None, moved)
        return Job(kind, work, ranges, source, landed, lambda: (len(views), copy()), fields)

    def _ended(self, item: _Object, outcome: Outcome) -> None:
        if outcome.stopped:
            item.jobs -= 1
            item.let_go()

    def _drop(self, item: _Object) -> None:
        item.path.unlink(missing_ok=True)
        item.gone = True
        item.let_go()
        self.used -= sum(item.sizes)
        del self._objects[item.key]
