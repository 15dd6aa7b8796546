"""The local pool against a plain dict: whatever is asked of it, in whatever order, by this process and by others.

The others are this process's parent, which lives, and one that is long dead; what they do is done through indexes of their own
on the same environment.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pool_tools import KEYS, LAYOUT, Rig, content

from tidegate.engine import pool_client
from tidegate.engine.copying import Fault
from tidegate.engine.pool_client import Client, this_process
from tidegate.engine.pool_index import Index
from tidegate.engine.pool_interface import PoolError

EXTENTS, SECONDS = 4, 10.0
LIVING = Client(os.getppid(), pool_client._stat(os.getppid())[1])
DEAD = Client(2**22 + 1, 1)
ME = this_process()
LAYERS = range(len(LAYOUT.layers))

some_keys = st.lists(st.sampled_from(KEYS[:7]), min_size=1, max_size=3, unique=True)
a_key = st.sampled_from(KEYS[:7])
others = st.sampled_from([LIVING, DEAD])


class Thing:
    """One object of the model; version: which of the allocations of its key it is."""

    def __init__(self, owner: Client, rows: int, version: int) -> None:
        self.owner, self.rows, self.version = owner, rows, version
        self.state, self.saved, self.spoilt = "allocated", set(), False


class Model:
    """What the pool should be."""

    def __init__(self) -> None:
        self.now, self.versions, self.evicted = 1000.0, itertools.count(), 0
        self.things: dict[bytes, Thing] = {}
        self.lru: list[bytes] = []  # readable and not held, the one unused for longest first
        self.holds: dict[tuple[Client, bytes], float] = {}  # pins only
        self.pins: Counter[bytes] = Counter()  # of this process, as often as it asked

    def hold(self, client: Client, key: bytes) -> None:
        if key in self.lru:
            self.lru.remove(key)
        self.holds[client, key] = self.now + SECONDS

    def let_go(self, client: Client, key: bytes) -> None:
        if self.holds.pop((client, key), None) is None or any(k == key for _, k in self.holds):
            return
        if self.things[key].state == "evicting":
            del self.things[key]
        else:
            self.lru.append(key)

    def leave(self, client: Client) -> None:
        mine = {k for c, k in self.holds if c == client} | {k for k, t in self.things.items() if self.writes(client, k)}
        for key in sorted(mine, reverse=True):
            if self.writes(client, key):
                del self.things[key]
            self.let_go(client, key)

    def writes(self, client: Client, key: bytes) -> bool:
        return key in self.things and self.things[key].state == "allocated" and self.things[key].owner == client

    def clean(self) -> None:
        self.leave(DEAD)
        for client, key in sorted(k for k, expiry in self.holds.items() if expiry < self.now):
            self.let_go(client, key)

    def allocate(self, client: Client, keys: list[bytes], rows: int, pin: bool) -> list[str]:
        answers, cleaned = [], False
        for key in keys:
            if self.writes(DEAD, key):
                self.leave(DEAD)
            if key in self.things:
                answers.append("stored" if self.things[key].state == "readable" else "busy")
                if pin and answers[-1] == "stored":
                    self.hold(client, key)
                continue
            if len(self.things) == EXTENTS and not self.lru and not cleaned:
                self.clean()
                cleaned = True
            if len(self.things) == EXTENTS and self.lru:
                del self.things[self.lru.pop(0)]
                self.evicted += 1
            answers.append("new" if len(self.things) < EXTENTS else "full")
            if answers[-1] == "new":
                self.things[key] = Thing(client, rows, next(self.versions))
        return answers

    def finish(self, keys: list[bytes], pin: bool, client: Client) -> None:
        for key in reversed(keys):
            self.things[key].state = "readable"
            self.lru.append(key)
            if pin:
                self.hold(client, key)

    def remove(self, key: bytes) -> None:
        if self.lru.count(key):
            self.lru.remove(key)
            del self.things[key]
        elif key in self.things:
            self.things[key].state = "evicting"


def rows_of(key: bytes) -> int:
    return 1 + key[0] % LAYOUT.rows  # one content, one length


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.fail = Model(), False
        self.rig = Rig(extents=EXTENTS, pin_seconds=SECONDS, clock=lambda: self.model.now,
                       faults=lambda kind, work: Fault("quiet") if self.fail else None)  # fmt: skip
        env = self.rig.pool._folder.env
        self.indexes = {client: Index(env, client, EXTENTS, clock=lambda: self.model.now) for client in (LIVING, DEAD)}
        self.join(LIVING)

    def teardown(self) -> None:
        try:
            for key in [key for key, thing in self.model.things.items() if thing.state == "readable"]:
                assert self.rig.pool.pin([key])
                self.same(key)
        finally:
            self.rig.pool.close()

    def join(self, client: Client) -> Index:
        """Only who has joined does anything; whoever finds it dead takes it off the list."""
        index = self.indexes[client]
        index._change(lambda t: t.join(index._client))
        return index

    def same(self, key: bytes) -> None:
        for layer in LAYERS:
            outcome, got = self.rig.load([key], layer, [rows_of(key)])
            assert outcome.ok
            for one, two in zip(got[0], self.content(key, layer), strict=True):
                assert one.tobytes() == two.tobytes(), "an object holds another's bytes"

    def content(self, key: bytes, layer: int) -> list[np.ndarray]:
        return content((self.model.things[key].version, key), layer, rows_of(key))

    @rule(key=a_key, count=st.integers(1, 3), pin=st.booleans())
    def allocate(self, key: bytes, count: int, pin: bool) -> None:
        keys = [k for k in KEYS[:7] if rows_of(k) == rows_of(key)][:count]
        answers = self.rig.pool.allocate(keys, [rows_of(key)] * len(keys), pin=pin)
        assert answers == self.model.allocate(ME, keys, rows_of(key), pin)
        for key, answer in zip(keys, answers, strict=True):
            self.model.pins[key] += pin and answer == "stored"

    @rule(key=a_key)
    def allocate_one(self, key: bytes) -> None:
        assert self.rig.pool.allocate([key], [rows_of(key)]) == self.model.allocate(ME, [key], rows_of(key), False)

    @rule(key=a_key, layer=st.sampled_from(LAYERS), fail=st.sampled_from([False, False, False, True]))
    def save(self, key: bytes, layer: int, fail: bool) -> None:
        model, thing = self.model, self.model.things.get(key)
        areas = content((thing.version if thing else -1, key), layer, rows_of(key))
        good = model.writes(ME, key) and not thing.spoilt and layer not in thing.saved
        stored = not model.writes(ME, key) and model.pins[key] and (ME, key) in model.holds
        self.fail = fail
        try:
            outcome = self.rig.save([key], layer, [areas])
        except PoolError:
            assert not good
            assert not stored
            return
        finally:
            self.fail = False
        assert good or stored
        assert outcome.ok != fail
        if stored:
            assert not outcome.bytes
            self.renewed(key)
        elif fail:
            thing.spoilt = True
        else:
            thing.saved.add(layer)

    def renewed(self, key: bytes) -> None:
        if self.model.holds[ME, key] - self.model.now < SECONDS / 2:
            self.model.holds[ME, key] = self.model.now + SECONDS

    @rule(key=a_key, pin=st.booleans())
    def save_whole(self, key: bytes, pin: bool) -> None:
        self.allocate_one(key)
        for layer in LAYERS:
            self.save(key, layer, False)
        self.finish([key], pin)

    @rule(keys=some_keys, pin=st.booleans())
    def finish(self, keys: list[bytes], pin: bool) -> None:
        model = self.model
        good = all(model.writes(ME, k) and not model.things[k].spoilt and model.things[k].saved == set(LAYERS) for k in keys)
        try:
            self.rig.pool.finish(keys, pin=pin)
        except PoolError:
            assert not good
            return
        assert good
        model.finish(keys, pin, ME)
        for key in keys:
            model.pins[key] += pin

    @rule(keys=some_keys)
    def pin(self, keys: list[bytes]) -> None:
        found = [*itertools.takewhile(lambda k: k in self.model.things and self.model.things[k].state == "readable", keys)]
        assert self.rig.pool.lookup(keys) == len(found)
        assert self.rig.pool.pin(keys) == len(found)
        for key in found:
            self.model.pins[key] += 1
            self.model.hold(ME, key)

    @rule(key=a_key)
    def unpin(self, key: bytes) -> None:
        try:
            self.rig.pool.unpin([key])
        except PoolError:
            assert not self.model.pins[key]
            return
        self.model.pins[key] -= 1
        assert self.model.pins[key] >= 0
        if not self.model.pins[key]:
            self.model.let_go(ME, key)

    @rule(key=a_key)
    def load(self, key: bytes) -> None:
        model = self.model
        try:
            self.same(key) if (ME, key) in model.holds else self.rig.load([key], 0, [rows_of(key)])
        except PoolError:
            assert not model.pins[key] or (ME, key) not in model.holds
            return
        assert model.pins[key]
        self.renewed(key)

    @rule(keys=some_keys)
    def evict(self, keys: list[bytes]) -> None:
        assert self.rig.pool.evict(keys) == [key in self.model.lru for key in keys]
        for key in set(keys) & set(self.model.lru):
            self.model.remove(key)

    @rule(key=a_key)
    def remove(self, key: bytes) -> None:
        model, writers = self.model, [c for c in (ME, LIVING, DEAD) if self.model.writes(c, key)]
        try:
            self.rig.pool.remove([key])
        except PoolError:
            assert writers == [LIVING]
            return
        assert writers != [LIVING]
        if writers:
            del model.things[key]
        else:
            model.remove(key)

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.model.now += seconds

    @rule()
    def recover(self) -> None:
        self.rig.pool.recover()
        self.model.clean()

    @rule(client=others, key=a_key)
    def other_allocates(self, client: Client, key: bytes) -> None:
        full = len(self.model.things) == EXTENTS and not self.model.lru
        if client == DEAD and (key in self.model.things or full):
            return  # it asked before it died, and so did not find itself dead
        place = self.join(client).allocate([key], [rows_of(key)], None)[0]
        assert [place.answer] == self.model.allocate(client, [key], rows_of(key), False)
        if place.answer == "new":
            for layer in LAYERS:
                for at, area in zip(LAYOUT.area_offsets(layer), self.content(key, layer), strict=True):
                    first = place.extent * LAYOUT.size + at
                    self.rig.pool._arena[first : first + area.size] = area

    @rule(key=a_key)
    def other_finishes(self, key: bytes) -> None:
        try:
            self.indexes[LIVING].finish([key], None)
        except PoolError:
            assert not self.model.writes(LIVING, key)
            return
        assert self.model.writes(LIVING, key)
        self.model.finish([key], False, LIVING)

    @rule(client=others, key=a_key)
    def other_pins(self, client: Client, key: bytes) -> None:
        found = self.join(client).pin([key], self.model.now + SECONDS)
        assert len(found) == (key in self.model.things and self.model.things[key].state == "readable")
        if found:
            self.model.hold(client, key)

    @rule(key=a_key)
    def other_unpins(self, key: bytes) -> None:
        self.indexes[LIVING].let_go([key], [])
        self.model.let_go(LIVING, key)

    @invariant()
    def counts(self) -> None:
        model, found = self.model, self.rig.pool.stats()
        writing = sum(thing.state == "allocated" for thing in model.things.values())
        assert found["objects"] == len(model.things)
        assert found["evictable"] == len(model.lru)
        assert found["free"] == EXTENTS - len(model.things)
        assert found["holds"] == len(model.holds) + writing
        assert found["evicted"] == model.evicted
