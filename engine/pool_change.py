"""One transaction on the index of a `local` pool: which object lies in which extent, in what state, and who holds it.

    absent -> allocated -> readable -> (evicting ->) absent          allocated -> absent

Rules:
  * an extent belongs to at most one object, from `allocate` until nobody holds the object any more;
  * only the process that allocated an object makes it readable; who reads it holds a pin, and what is held keeps its extent;
  * room is made in this order: extents given back or never used, the least recently used readable object that nobody holds, what
    dead processes hold, pins that have expired.  Whether a process is dead is decided within the transaction, so nobody joins or
    returns meanwhile; a living one loses nothing but an expired pin;
  * of a chain the end goes first (a prefix without its beginning is useless): callers let go of its objects in reverse.
Which layers are written is known to the allocating process alone: if it dies the object goes as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from tidegate.engine.pool_client import Client
from tidegate.engine.pool_interface import Answer, PoolError

__all__ = ["TABLES", "Change", "Place", "decode_entry"]

TABLES = ("objects", "free", "lru", "holds", "clients", "numbers")
WRITING = b"w"


class Place(NamedTuple):
    """Answer to one key of `allocate`, and where the object lies (-1: nowhere)."""

    answer: Answer
    extent: int = -1
    rows: int = 0


class Entry(msgspec.Struct, array_like=True):
    """One object."""

    state: Literal["allocated", "readable", "evicting"]
    extent: int
    rows: int
    owner: bytes
    pins: int = 0  # processes that hold it
    used: int = 0  # its place in `lru`, while it is readable and nobody holds it


_encode = msgspec.msgpack.Encoder().encode
decode_entry = msgspec.msgpack.Decoder(Entry).decode


def _order(number: int) -> bytes:
    return number.to_bytes(8, "big")


class Change:
    """What can be done in the write transaction `txn`.

    tables: objects (key -> Entry), free (extent), lru (use -> key), holds (client and key -> WRITING or expiry of the pin),
    clients, numbers (counters).  alive: may a process still run?  now: seconds, on a clock that all processes share.
    """

    def __init__(self, txn: Any, tables: dict[str, Any], extents: int, alive: Callable[[Client], bool], now: float) -> None:
        self._txn, self._t, self._extents, self._alive, self._now = txn, tables, extents, alive, now
        self._cleaned = False

    def get(self, key: bytes) -> Entry | None:
        raw = self._txn.get(key, db=self._t["objects"])
        return decode_entry(raw) if raw else None

    def join(self, client: bytes) -> None:
        self._txn.put(client, b"", db=self._t["clients"])

    def allocate(self, client: bytes, key: bytes, rows: int) -> Place:
        """An object that a dead process was writing is no obstacle."""
        entry = self.get(key)
        if entry is not None and entry.state == "allocated" and not self._alive(Client.unpack(entry.owner)):
            self.leave(entry.owner)
            entry = None
        if entry is not None:
            return Place(Answer.STORED if entry.state == "readable" else Answer.BUSY, entry.extent, entry.rows)
        extent = self._take()
        if extent < 0:
            return Place(Answer.FULL)
        self._put(key, Entry("allocated", extent, rows, client))
        self._txn.put(client + key, WRITING, db=self._t["holds"])
        return Place(Answer.NEW, extent, rows)

    def finish(self, client: bytes, key: bytes) -> None:
        """PoolError unless `client` is writing it."""
        entry = self.get(key)
        if entry is None or entry.state != "allocated" or entry.owner != client:
            raise PoolError(f"{key.hex()} cannot be finished: this process is not writing it")
        self._txn.delete(client + key, db=self._t["holds"])
        entry.state = "readable"
        self._unused(key, entry)

    def pin(self, client: bytes, key: bytes, expiry: float) -> Entry | None:
        """Hold a readable object until it is let go, or `expiry` if that comes first; None is a miss."""
        entry = self.get(key)
        if entry is None or entry.state != "readable":
            return None
        if not self._is_pinned(client, key):
            if not entry.pins:
                self._txn.delete(_order(entry.used), db=self._t["lru"])
            entry.pins += 1
            self._put(key, entry)
        self._txn.put(client + key, struct.pack(">d", expiry), db=self._t["holds"])
        return entry

    def renew(self, client: bytes, key: bytes, expiry: float) -> bool:
        """Move the expiry of a pin that is still there."""
        if pinned := self._is_pinned(client, key):
            self._txn.put(client + key, struct.pack(">d", expiry), db=self._t["holds"])
        return pinned

    def drop(self, client: bytes, key: bytes) -> None:
        """Give up what `client` is writing; nothing where it is not."""
        entry = self.get(key)
        if entry is not None and entry.state == "allocated" and entry.owner == client:
            self._txn.delete(client + key, db=self._t["holds"])
            self._give_back(key, entry)

    def unpin(self, client: bytes, key: bytes) -> None:
        """End `client`'s pin; nothing where it has none (any more)."""
        entry = self.get(key)
        if not self._is_pinned(client, key) or entry is None:
            return
        self._txn.delete(client + key, db=self._t["holds"])
        entry.pins -= 1
        if entry.pins:
            self._put(key, entry)
        elif entry.state == "evicting":
            self._give_back(key, entry)
        else:
            self._unused(key, entry)

    def evict(self, key: bytes) -> bool:
        """Drop a readable object that nobody holds; False for any other."""
        entry = self.get(key)
        if entry is None or entry.state != "readable" or entry.pins:
            return False
        self._txn.delete(_order(entry.used), db=self._t["lru"])
        self._give_back(key, entry)
        return True

    def remove(self, client: bytes, key: bytes) -> None:
        """Drop an object, or see to it that nobody finds it any more; PoolError where another living process writes it."""
        entry = self.get(key)
        if entry is None or self.evict(key):
            return
        if entry.state == "readable":
            entry.state = "evicting"
            self._put(key, entry)
        elif entry.state == "allocated":
            if entry.owner != client and self._alive(owner := Client.unpack(entry.owner)):
                raise PoolError(f"{key.hex()} is being written by process {owner.pid}: only that process removes it")
            self.drop(entry.owner, key)

    def leave(self, client: bytes) -> None:
        """Forget a process and all that it held."""
        for held in reversed(list(self._held(client))):
            self.drop(client, held[len(client) :])
            self.unpin(client, held[len(client) :])
        self._txn.delete(client, db=self._t["clients"])

    def clean(self) -> int:
        """Take back what dead processes hold, and pins that have expired; how many holds that were."""
        self._cleaned = True
        before = self._txn.stat(self._t["holds"])["entries"]
        for client in [client for client, _ in self._txn.cursor(db=self._t["clients"])]:
            if not self._alive(Client.unpack(client)):
                self.leave(client)
        for held in [held for held, value in self._txn.cursor(db=self._t["holds"]) if self._is_late(value)]:
            self.unpin(held[:16], held[16:])
        return int(before - self._txn.stat(self._t["holds"])["entries"])

    def _is_late(self, value: bytes) -> bool:
        """Writing never is: its owner may be copying, however long that takes."""
        return value != WRITING and struct.unpack(">d", value)[0] < self._now

    def _held(self, client: bytes) -> Iterator[bytes]:
        cursor = self._txn.cursor(db=self._t["holds"])
        if cursor.set_range(client):
            for held in cursor.iternext(values=False):
                if not held.startswith(client):
                    return
                yield held

    def _is_pinned(self, client: bytes, key: bytes) -> bool:
        return self._txn.get(client + key, db=self._t["holds"]) not in (None, WRITING)

    def _take(self) -> int:
        """An extent that belongs to nobody now; -1 where every object is held."""
        free = self._txn.cursor(db=self._t["free"])
        if free.first():
            extent = int.from_bytes(free.key(), "big")
            free.delete()
            return extent
        if self._number(b"extents") < self._extents:
            return self._count(b"extents")
        oldest = self._txn.cursor(db=self._t["lru"])
        if oldest.first():
            self.evict(oldest.value())
            self._count(b"evicted")
            return self._take()
        if self._cleaned:
            return -1
        self.clean()
        return self._take()

    def _give_back(self, key: bytes, entry: Entry) -> None:
        self._txn.delete(key, db=self._t["objects"])
        self._txn.put(_order(entry.extent), b"", db=self._t["free"])

    def _unused(self, key: bytes, entry: Entry) -> None:
        entry.used = self._count(b"uses")
        self._txn.put(_order(entry.used), key, db=self._t["lru"])
        self._put(key, entry)

    def _put(self, key: bytes, entry: Entry) -> None:
        self._txn.put(key, _encode(entry), db=self._t["objects"])

    def _number(self, name: bytes) -> int:
        return int.from_bytes(self._txn.get(name, b"", db=self._t["numbers"]), "big")

    def _count(self, name: bytes) -> int:
        """The counter's value before one is added to it."""
        value = self._number(name)
        self._txn.put(name, _order(value + 1), db=self._t["numbers"])
        return value
