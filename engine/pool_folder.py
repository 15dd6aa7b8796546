"""The folder of a `local` pool in shared memory: the arena that holds the bytes, the index, and who is in.

Rules: everything is allocated when the pool is made, so memory that is not there is an error then and never a SIGBUS later; a
folder belongs to one user and is of no use to another (0700, files 0600); it is opened, left and swept under one lock; whoever
uses it keeps a shared lock that ends with the process, so nobody takes a folder from a living one, what killed processes left is
cleared by the next that opens or sweeps it, and the last to leave removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lmdb
import msgspec
import numpy as np

from tidegate.engine.pool_change import TABLES
from tidegate.engine.pool_client import Client, is_alive, pid_namespace, this_process
from tidegate.engine.pool_interface import PoolError
from tidegate.engine.pool_layout import ExtentLayout
from tidegate.kernels.copy import Bytes

__all__ = ["PoolFolder", "new_folder", "run_folder", "sweep"]

VERSION = 1
POOLS, RUNS, MAKING = "tidegate-pool", "tidegate-run", ".tidegate-run"
INDEX_BYTES, INDEX_BYTES_PER_EXTENT = 4 << 20, 2048
READERS, LOCK_BYTES = 512, 64 << 10


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all users of a pool must agree on."""

    version: int
    extents: int
    layout: ExtentLayout
    pid_namespace: int


def _root() -> Path:
    """Where pools lie: /dev/shm, or what TIDEGATE_SHARED_MEMORY names."""
    shared = Path(os.environ.get("TIDEGATE_SHARED_MEMORY", "/dev/shm"))
    return shared if shared.is_dir() else Path(tempfile.gettempdir())


def new_folder() -> Path:
    """A path in shared memory for a pool of one's own, which `sweep` will find should its owner be killed."""
    return _root() / f"{POOLS}-{os.geteuid()}-{secrets.token_hex(8)}"


def run_folder() -> tuple[Path, int]:
    """A new private folder in shared memory for one run or one server, whose pool is named "pool" in it, and a lock on it.

    The descriptor is to be closed when the folder has been removed; should it be closed by a sudden death, `sweep` removes it.
    """
    me = this_process()
    made = _root() / f"{MAKING}-{os.geteuid()}-{pid_namespace()}-{me.pid}-{me.started}-{secrets.token_hex(8)}"
    made.mkdir(0o700)  # until it is locked, its name says whose it is
    lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return made.rename(made.with_name(f"{RUNS}-{os.geteuid()}-{secrets.token_hex(8)}")), lock


def sweep() -> int:
    """Remove this user's pools and folders in shared memory whose processes are all dead; how many.

    Nothing that a living process uses is touched: each folder is looked at under its lock, which ends with the process that holds it.
    """
    count, user = 0, os.geteuid()
    for path in [*_root().glob(f"{POOLS}-{user}-*"), *_root().glob(f"{RUNS}-{user}-*/pool")]:
        with contextlib.suppress(OSError), _alone(path, make=False) as users:
            count += _clear_if_unused(path, users)
    count += sum(map(_remove_run, _root().glob(f"{RUNS}-{user}-*")))
    for path in _root().glob(f"{MAKING}-{user}-{pid_namespace()}-*"):
        pid, started = path.name.split("-")[-3:-1]
        if not is_alive(Client(int(pid), int(started))):
            count += _remove_run(path)
    return count


def _remove_run(path: Path) -> bool:
    """Remove the folder of a run whose parent is dead and whose pool, if there is one, nobody uses (so it is gone)."""
    with contextlib.suppress(OSError):
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(lock).st_uid == os.geteuid() and _unused(lock) and not (path / "pool").exists():
                shutil.rmtree(path, ignore_errors=True)
                return True
        finally:
            os.close(lock)
    return False


@contextlib.contextmanager
def _alone(path: Path, *, make: bool) -> Iterator[int]:
    """Hold the folder's lock; a descriptor of `users`, whose lock a duplicate of it keeps.

    FileNotFoundError where there is no folder and none is to be made; PoolError where it is not this user's own.
    """
    folder = _locked(path, make)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PoolError(f"{path} is open to other users (mode {found.st_mode & 0o777:o}): a pool is private; name a path that "
                            "does not exist")  # fmt: skip
        users = os.open(path / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield users
        finally:
            os.close(users)
    finally:
        os.close(folder)


def _locked(path: Path, make: bool) -> int:
    """A descriptor of the folder, locked."""
    while True:
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(folder, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(folder)):
                return folder
        os.close(folder)  # its last user has removed it meanwhile


def _unused(users: int) -> bool:
    """Nobody else has the folder open.  True: it is locked by us."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _clear(path: Path) -> None:
    """Remove what a pool keeps in its folder, but for `users`, on which others may wait."""
    shutil.rmtree(path / "index", ignore_errors=True)
    for name in ("arena", "header"):
        (path / name).unlink(missing_ok=True)


def _clear_if_unused(path: Path, users: int) -> bool:
    if free := _unused(users):
        _clear(path)
        (path / "users").unlink()
        with contextlib.suppress(OSError):  # things of others are in it
            path.rmdir()
    return free


class PoolFolder:
    """An open pool folder.  arena: all extents, one after another, writable; env: the index.

    Opens what living processes have open, which must be of the same layout and size, and makes it anew otherwise.  PoolError
    where it cannot be had, with nothing left behind.
    """

    def __init__(self, path: Path, layout: ExtentLayout, extents: int) -> None:
        self.path = path
        header = _Header(VERSION, extents, layout, pid_namespace())
        try:
            with _alone(path, make=True) as users:
                fresh = _unused(users)
                try:
                    if fresh:
                        _clear(path)
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
                        _clear_if_unused(path, users)
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
        with contextlib.suppress(FileNotFoundError), _alone(self.path, make=False) as users:
            _clear_if_unused(self.path, users)


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
