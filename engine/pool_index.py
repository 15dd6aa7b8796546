"""The index of a `local` pool, in LMDB: whole transactions, each of many keys.  It never sees a byte of KV.

Rules: every change is one transaction (`pool_change.py` says what may be done in it), so a process killed at any moment leaves
the state before it or the state after it, and one that waits for the dead one's turn gets it; readers see one moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import lmdb

from tidegate.engine.pool_change import TABLES, Change, Place, decode_entry
from tidegate.engine.pool_client import Client, is_alive
from tidegate.engine.pool_interface import Answer, PoolError

__all__ = ["Index"]

T = TypeVar("T")


class Index:
    """What one process (`client`) asks of the index in `env`; any thread may, one transaction at a time runs.

    alive: may a process still run?  clock: seconds, on a clock that all processes of the machine share.
    """

    def __init__(
        self, env: lmdb.Environment, client: Client, extents: int, *,
        alive: Callable[[Client], bool] = is_alive, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._env, self._client, self._extents, self._alive, self._clock = env, client.pack(), extents, alive, clock
        self._tables = {name: env.open_db(name.encode()) for name in TABLES}

    def _change(self, change: Callable[[Change], T]) -> T:
        """Run one transaction.  Pages that a killed reader kept are taken back when the index runs full."""
        for last in (False, True):
            try:
                with self._env.begin(write=True) as txn:
                    return change(Change(txn, self._tables, self._extents, self._alive, self._clock()))
            except lmdb.MapFullError as error:
                if last or not self._env.reader_check():
                    raise PoolError("the pool's index is full: make the pool anew with fewer, larger blocks") from error
            except lmdb.Error as error:
                raise PoolError(f"the pool's index cannot be changed: {error}") from error
        raise AssertionError("unreachable")

    def join(self) -> int:
        """Begin to use the pool; how many holds of dead processes were taken back."""
        taken = self.recover()
        self._change(lambda t: t.join(self._client))
        return taken

    def leave(self) -> None:
        """Give back all that this process holds."""
        self._change(lambda t: t.leave(self._client))

    def recover(self) -> int:
        """Take back what dead processes hold and what has expired; how many holds that were."""
        self._env.reader_check()
        return self._change(lambda t: t.clean())

    def lookup(self, keys: Sequence[bytes]) -> int:
        """How many of `keys`, from the first on, are readable now."""
        with self._env.begin() as txn:
            for count, key in enumerate(keys):
                raw = txn.get(key, db=self._tables["objects"])
                if not raw or decode_entry(raw).state != "readable":
                    return count
        return len(keys)

    def allocate(self, keys: Sequence[bytes], rows: Sequence[int], expiry: float | None) -> list[Place]:
        """One answer for each key; those that are stored are pinned until `expiry` if one is given."""

        def one(t: Change, key: bytes, count: int) -> Place:
            place = t.allocate(self._client, key, count)
            if place.answer is Answer.STORED and place.rows != count:
                raise PoolError(f"{key.hex()} is stored with {place.rows} rows, not {count}: two contents have one key")
            if place.answer is Answer.STORED and expiry is not None:
                t.pin(self._client, key, expiry)
            return place

        return self._change(lambda t: [one(t, key, count) for key, count in zip(keys, rows, strict=True)])

    def finish(self, keys: Sequence[bytes], expiry: float | None) -> None:
        """Make objects of this process readable, all or none; pinned in the same breath until `expiry` if one is given."""

        def change(t: Change) -> None:
            for key in reversed(keys):
                t.finish(self._client, key)
                if expiry is not None:
                    t.pin(self._client, key, expiry)

        self._change(change)

    def pin(self, keys: Sequence[bytes], expiry: float) -> list[Place]:
        """Hold the readable ones among `keys`, from the first on up to the first that is not."""

        def change(t: Change) -> list[Place]:
            out: list[Place] = []
            for key in keys:
                if (entry := t.pin(self._client, key, expiry)) is None:
                    break
                out.append(Place(Answer.STORED, entry.extent, entry.rows))
            return out

        return self._change(change)

    def renew(self, keys: Sequence[bytes], expiry: float) -> bool:
        """Move the expiry of this process's pins; False where one of them is gone."""

        def change(t: Change) -> bool:
            there = [t.renew(self._client, key, expiry) for key in keys]
            return all(there)

        return self._change(change)

    def let_go(self, pinned: Sequence[bytes], written: Sequence[bytes]) -> None:
        """End this process's pins of some, and give up others that it was writing."""

        def change(t: Change) -> None:
            for key in reversed(pinned):
                t.unpin(self._client, key)
            for key in written:
                t.drop(self._client, key)

        self._change(change)

    def evict(self, keys: Sequence[bytes]) -> list[bool]:
        """Drop readable objects that nobody holds; False for the others."""
        return self._change(lambda t: [t.evict(key) for key in keys])

    def remove(self, keys: Sequence[bytes]) -> None:
        """Drop objects; one that somebody reads is found by nobody from now on, and goes with its last pin."""

        def change(t: Change) -> None:
            for key in keys:
                t.remove(self._client, key)

        self._change(change)

    def stats(self) -> dict[str, int]:
        """Counts of objects, of those that could be evicted now, of holds, processes, free extents, and evictions so far."""
        with self._env.begin() as txn:
            count = {name: int(txn.stat(table)["entries"]) for name, table in self._tables.items()}
            used, evicted = (
                int.from_bytes(txn.get(name, b"", db=self._tables["numbers"]), "big") for name in (b"extents", b"evicted")
            )
        return {
            "objects": count["objects"], "evictable": count["lru"], "holds": count["holds"], "processes": count["clients"],
            "free": count["free"] + self._extents - used, "evicted": evicted,
        }  # fmt: skip
