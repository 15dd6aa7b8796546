"""Folders in shared memory: a run's or a server's own, and pools; who lives in them, and what the dead left.

Rules: a folder belongs to one user and is of no use to another (0700, files 0600), and its name cannot be guessed; it is opened, left and
swept under one lock; whoever uses it keeps a lock that ends with the process, so nobody takes a folder from a living one, and what killed
processes left is cleared by the next that opens or sweeps it.  This module is light: the proxy sweeps too, and computes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tidegate.engine.pool_client import Client, is_alive, pid_namespace, this_process

__all__ = ["alone", "clear", "clear_if_unused", "is_unused", "new_folder", "run_folder", "run_folders", "sweep"]

POOLS, RUNS, MAKING = "tidegate-pool", "tidegate-run", ".tidegate-run"


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


def run_folders(root: Path | None = None) -> list[Path]:
    """The folders of this user's runs and servers, living or not.  root: where they lie, if not where they are made."""
    return sorted((root or _root()).glob(f"{RUNS}-{os.geteuid()}-*"))


def sweep() -> int:
    """Remove this user's pools and folders in shared memory whose processes are all dead; how many.

    Nothing that a living process uses is touched: each folder is looked at under its lock, which ends with the process that holds it.
    """
    count, user = 0, os.geteuid()
    for path in [*_root().glob(f"{POOLS}-{user}-*"), *_root().glob(f"{RUNS}-{user}-*/pool")]:
        with contextlib.suppress(OSError), alone(path, make=False) as users:
            count += clear_if_unused(path, users)
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
            if os.fstat(lock).st_uid == os.geteuid() and is_unused(lock) and not (path / "pool").exists():
                shutil.rmtree(path, ignore_errors=True)
                return True
        finally:
            os.close(lock)
    return False


@contextlib.contextmanager
def alone(path: Path, *, make: bool) -> Iterator[int]:
    """Hold the folder's lock; a descriptor of `users`, whose lock a duplicate of it keeps.

    FileNotFoundError where there is no folder and none is to be made; PoolError where it is not this user's own.
    """
    from tidegate.engine.pool_interface import PoolError  # which loads the kernels

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


def is_unused(users: int) -> bool:
    """Nobody else has the folder open.  True: it is locked by us."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def clear(path: Path) -> None:
    """Remove what a pool keeps in its folder, but for `users`, on which others may wait."""
    shutil.rmtree(path / "index", ignore_errors=True)
    for name in ("arena", "header"):
        (path / name).unlink(missing_ok=True)


def clear_if_unused(path: Path, users: int) -> bool:
    if free := is_unused(users):
        clear(path)
        (path / "users").unlink()
        with contextlib.suppress(OSError):  # things of others are in it
            path.rmdir()
    return free
