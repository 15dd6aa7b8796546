"""The folder of a `local` pool in shared memory: the arena that holds the bytes, the index, and who is in.

Rules: everything is allocated when the pool is made, so memory that is not there is an error then and never a SIGBUS later; the folder
is opened, left and swept as `folders` says, and the last to leave removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from pathlib import Path

import lmdb
import msgspec
import numpy as np

from tidegate.engine.folders import alone, clear, clear_if_unused, is_unused, new_folder, run_folder, sweep
from tidegate.engine.pool_change import TABLES
from tidegate.engine.pool_client import pid_namespace
from tidegate.engine.pool_interface import PoolError
from tidegate.engine.pool_layout import ExtentLayout
from tidegate.kernels.copy import Bytes

__all__ = ["PoolFolder", "new_folder", "run_folder", "sweep"]

VERSION = 1
INDEX_BYTES, INDEX_BYTES_PER_EXTENT = 4 << 20, 2048
READERS, LOCK_BYTES = 512, 64 << 10


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all users of a pool must agree on."""

    version: int
    extents: int
    layout: ExtentLayout
    pid_namespace: int


class PoolFolder:
    """An open pool folder.  arena: all extents, one after another, writable; env: the index.

    Opens what living processes have open, which must be of the same layout and size, and makes it anew otherwise.  PoolError
    where it cannot be had, with nothing left behind.
    """

    def __init__(self, path: Path, layout: ExtentLayout, extents: int) -> None:
        self.path = path
        header = _Header(VERSION, extents, layout, pid_namespace())
        try:
            with alone(path, make=True) as users:
                fresh = is_unused(users)
                try:
                    if fresh:
                        clear(path)
                        if foreign := sorted(set(os.listdir(path)) - {"users"}):
                            raise PoolError(f"{path} holds other things ({foreign[0]}): name a path that does not exist")
                        _make(path, header)
                    else:
                        _agree(path, header)
                    self._map(header, fresh)
                    self._users = os.dup(users)  # one open file: the lock lives on in the copy
                    fcntl.flock(users, fcntl.LOCK_SH)
                except BaseException:
                    if fresh:
                        clear_if_unused(path, users)
                    raise
        except PoolError:
            raise
        except OSError as error:
            raise PoolError(f"pool {path}: {error.strerror or error}") from error

    def _map(self, header: _Header, fresh: bool) -> None:
        fd = os.open(self.path / "arena", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._mapping = mmap.mmap(fd, header.extents * header.layout.size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        finally:
            os.close(fd)
        self.arena: Bytes = np.frombuffer(self._mapping, np.uint8)
        size = INDEX_BYTES + INDEX_BYTES_PER_EXTENT * header.extents
        try:
            self.env = lmdb.open(
                str(self.path / "index"), map_size=size, mode=0o600, create=fresh, max_dbs=len(TABLES), max_readers=READERS,
                sync=False, metasync=False, readahead=False,
            )  # fmt: skip
            if fresh:
                with open(self.path / "index" / "data.mdb", "r+b") as data:
                    os.posix_fallocate(data.fileno(), 0, size)
        except lmdb.Error as error:
            raise PoolError(f"pool {self.path}: {error}; a process opens a pool once") from error

    def close(self) -> None:
        """Leave; the last one removes the folder.  Again does nothing."""
        if self._users < 0:
            return
        self.env.close()
        self.arena = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # a view is still about: the mapping goes with it
            self._mapping.close()
        os.close(self._users)
        self._users = -1
        with contextlib.suppress(FileNotFoundError), alone(self.path, make=False) as users:
            clear_if_unused(self.path, users)


def _make(path: Path, header: _Header) -> None:
    size = header.extents * header.layout.size
    fd = os.open(path / "arena", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
        raise PoolError(f"a pool of {header.extents} blocks of {header.layout.size} bytes needs {size} bytes, {path.parent} has "
                        f"{free} free ({error.strerror}): make the pool smaller, or the shared memory larger") from error  # fmt: skip
    finally:
        os.close(fd)
    (path / "index").mkdir(0o700)
    fd = os.open(path / "index" / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, LOCK_BYTES)
    finally:
        os.close(fd)
    fd = os.open(path / "header", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(msgspec.json.encode(header))


def _agree(path: Path, header: _Header) -> None:
    """PoolError unless the pool that is open is the one that is asked for."""
    try:
        found = msgspec.json.decode((path / "header").read_bytes(), type=_Header)
    except msgspec.DecodeError as error:
        raise PoolError(f"pool {path} is open and of another release ({error}): run the same release, or name another path") from error
    for name in _Header.__struct_fields__:
        if (theirs := getattr(found, name)) != (ours := getattr(header, name)):
            raise PoolError(f"pool {path} is open with {name} {theirs}, not {ours}: all its users must agree; name another path")
