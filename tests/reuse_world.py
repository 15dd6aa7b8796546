"""The real pool of several processes, with runs that share prefixes, driven step by step through tla/pool/PrefixReuse.tla.

Real are the index (an LMDB environment), each process's `LocalPool` on it, each process's `PoolCopies`, and every byte.  A driver
stands for two things only: for the threads that copy, so that a copy ends when the model says so, and for the session, which says
what is finished and what is spoilt.  What a save will overwrite is scribbled over as soon as it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tidegate.engine import pool_local, prefill_copies
from tidegate.engine.copying import Job, OnOutcome, Outcome, Work
from tidegate.engine.pool_change import decode_entry
from tidegate.engine.pool_client import Client
from tidegate.engine.pool_folder import PoolFolder, new_folder
from tidegate.engine.pool_index import Index
from tidegate.engine.pool_interface import PoolError
from tidegate.engine.pool_keys import private_key
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_copies import PoolCopies, extent_layout
from tidegate.engine.recorder import NULL
from tidegate.engine.slot_layout import plan_layout
from tidegate.engine.slots import SharedMemory
from tidegate.protocol.messages import Start, TransferId

BLOCK, SECONDS, FOREVER = 4, 1000.0, float("inf")
HELPER = 9
Name = tuple[int, int]


@dataclass(frozen=True)
class Sizes:
    """As in the .cfg: what each run's prompt is made of, and in which process it runs."""

    prompts: dict[int, tuple[int, ...]]
    clients: dict[int, int]
    layers: int
    extents: int


@dataclass
class Copy:
    """One copy under way.  layer: from 1."""

    op: str
    run: int
    key: bytes
    layer: int
    job: Job
    told: OnOutcome
    lapsed: bool = False


class Held:
    """In the place of the threads that copy: what is submitted waits until the driver ends it."""

    recorder = NULL

    def __init__(self, submitted: Callable[[Job, OnOutcome], None]) -> None:
        self.submit = submitted

    def close(self) -> None:
        """Nothing runs by itself."""


@dataclass
class Process:
    """One client: its pool and its runs' copies.

    calls: what the copies have posted to the owner of the session; heard: (run, part, layer, ok) of what has ended since it was asked
    last; saved: layers of each part of a run; given_up: parts that will never be finished.
    """

    pool: LocalPool
    copies: PoolCopies
    calls: list[Callable[[], None]]
    heard: list[tuple[int, int, int, bool]] = field(default_factory=list)
    saved: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    given_up: set[tuple[int, int]] = field(default_factory=set)


class World:
    """All of it; one step of the model at a time.  `reset` begins anew, in the same memory."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        parts = max(map(len, sizes.prompts.values()))
        layout = plan_layout(range(sizes.layers), {"main": 8}, "int8", blocks=parts * len(sizes.prompts), block_size=BLOCK)
        self.memory = SharedMemory.allocate(layout)
        self.layout = extent_layout(layout)
        self.folder = PoolFolder(new_folder(), self.layout, sizes.extents)
        self.path, self.env, self.arena = self.folder.path, self.folder.env, self.folder.arena
        self.now, self.dead = 0.0, set[int]()
        self.helper = self._index(HELPER)
        self.processes: dict[int, Process] = {}
        self._attempts, prefill_copies.FILL_ATTEMPTS = prefill_copies.FILL_ATTEMPTS, 1  # in the model a fill that failed is not made again

    def close(self) -> None:
        prefill_copies.FILL_ATTEMPTS = self._attempts
        self.arena = self.folder.arena
        self.processes.clear()
        self.folder.close()
        self.memory.close()

    def _index(self, client: int) -> Index:
        return Index(self.env, Client(client, 1), self.sizes.extents, alive=lambda c: c.pid not in self.dead, clock=lambda: self.now)

    # ---- beginning ------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        self.dead.clear()
        with self.env.begin(write=True) as txn:
            for table in self.helper._tables.values():
                txn.drop(table, delete=False)
        self.pending: list[Copy] = []
        self.names: dict[bytes, Name] = {}
        self.place: dict[int, int] = {}  # an extent of ours -> the model's
        self.processes = {c: self._process(c) for c in sorted(set(self.sizes.clients.values()))}
        for run, prompt in self.sizes.prompts.items():
            for key, content in zip(self._keys(run), prompt, strict=True):
                self.names[key] = (content, 0)
                self.names[private_key(key, run)] = (content, run)

    def _process(self, client: int) -> Process:
        shared = _Kept(self.path, self.env, self.arena)
        index = lambda env, _, extents, clock: self._index(client)  # noqa: E731
        with _changed(pool_local, PoolFolder=lambda *_: shared, Index=index, this_process=lambda: Client(client, 1), sweep=lambda: None):
            pool = LocalPool(self.layout, self.sizes.extents, folder=self.path, pin_seconds=SECONDS, clock=lambda: self.now)
        calls: list[Callable[[], None]] = []
        copies = PoolCopies(pool, self.memory, span=lambda run, chunk: ((chunk - 1) * BLOCK, chunk * BLOCK), post=calls.append)
        pool._workers = pool._fills = Held(partial(self._submitted, client))  # type: ignore[assignment]
        return Process(pool, copies, calls)

    def _tokens(self, run: int) -> tuple[int, ...]:
        return tuple(token for key in self.sizes.prompts[run] for token in (key,) * BLOCK)

    def _keys(self, run: int) -> list[bytes]:
        tokens, copies = self._tokens(run), self._of(run).copies
        stops = range(BLOCK, len(tokens) + 1, BLOCK)
        return prefill_copies.chain_keys(copies._root, tokens, stops)

    def _of(self, run: int) -> Process:
        return self.processes[self.sizes.clients[run]]

    def _blocks(self, run: int) -> tuple[int, ...]:
        parts = max(map(len, self.sizes.prompts.values()))
        return tuple(range((run - 1) * parts, (run - 1) * parts + len(self.sizes.prompts[run])))

    # ---- copies ---------------------------------------------------------------------------------------------------

    def _submitted(self, client: int, job: Job, told: OnOutcome) -> None:
        """job.work.labels: which object of which run, as the driver has named it (of a load, the pool's copies name the part)."""
        labels = job.work.labels
        part = int(labels.get("pool_chunk", labels["part"]))
        copy = Copy(job.kind, int(labels["run"]), self._at[part - 1], int(labels["layer"]), job, told)
        if job.kind == "save" and copy.key not in self.processes[client].pool._writing:
            self._ended(copy, True)  # it is stored: no byte moves
            return
        if job.kind == "save":
            self._bytes(self.processes[client].pool._writing[copy.key].extent, copy.layer)[:] = 0xEE
        self.pending.append(copy)

    def _ended(self, copy: Copy, ok: bool) -> None:
        if not ok and not copy.lapsed:
            copy.told(Outcome(False, True, "injected: it failed, and what landed is anybody's guess"))
            return
        self.now = FOREVER if copy.lapsed else self.now
        try:
            copy.job.copy()
            copy.told(Outcome(True, True, bytes=BLOCK * 8))
        except OSError as error:
            copy.told(Outcome(False, True, str(error)))
        finally:
            self.now = 0.0

    def _hear(self, run: int) -> list[tuple[int, int, int, bool]]:
        """Let the owner hear of what has ended."""
        process = self._of(run)
        while process.calls:
            process.calls.pop(0)()
        heard, process.heard = process.heard, []
        return heard

    def _told(self, process: Process, step: TransferId, outcome: Outcome) -> None:
        process.heard.append((step.run, step.chunk, step.layer, outcome.ok))

    def _bytes(self, extent: int, layer: int) -> Any:
        first = extent * self.layout.size + int(self.layout.area_offsets(layer - 1)[0])
        return self.arena[first : first + BLOCK * 8]

    def _rows(self, run: int, part: int, layer: int) -> Any:
        block = self._blocks(run)[part - 1]
        area = self.memory.layout.areas_of(layer - 1, layer - 1)[0]
        first = area.offset + block * BLOCK * 8
        return self.memory.bytes[first : first + BLOCK * 8]

    @staticmethod
    def content(key: int, layer: int) -> int:
        return 16 * key + layer

    # ---- the model's steps -------------------------------------------------------------------------------------------

    def take(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        """Do what the label says; AssertionError where something else comes of it than in the model."""
        getattr(self, f"do_{ev['op'].lower()}")(ev, before, after)

    def do_begin(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        run = ev["run"]
        tokens = self._tokens(run)
        backed = self._of(run).copies.begin(run, Start("r", run, 1, len(tokens), tokens), self._blocks(run))
        assert backed == BLOCK * after["runs"][run - 1]["backed"], "another part of the prompt is backed"

    def _step(self, ev: dict[str, Any], before: dict[str, Any]) -> tuple[int, Process, TransferId, Work]:
        run = ev["run"]
        state = before["runs"][run - 1]
        part, layer = state["at"], state["layer"]
        self._at = self._of(run).copies._runs[run].keys
        work = Work(layer - 1, 1, {"run": run, "part": part, "layer": layer})
        return run, self._of(run), TransferId(run, part, layer, 0), work

    def do_fill(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        run, process, step, work = self._step(ev, before)
        self._rows(run, step.chunk, step.layer)[:] = 0
        first = (step.chunk - 1) * BLOCK
        process.copies.fill(step, work, first, first + BLOCK, partial(self._told, process))
        self._failed_as_in(after, run, self._hear(run))

    def do_load(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        run, process, step, work = self._step(ev, before)
        for part in range(1, step.chunk):
            self._rows(run, part, step.layer)[:] = 0
        process.copies.load(step, work, partial(self._told, process))
        self._failed_as_in(after, run, self._hear(run))

    @staticmethod
    def _failed_as_in(after: dict[str, Any], run: int, heard: list[tuple[int, int, int, bool]]) -> None:
        failed = after["runs"][run - 1]["phase"] == "failed"
        assert [ok for *_, ok in heard] == ([False] if failed else []), "a read that the model refuses, or refuses one that it begins"

    def do_readend(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        copy = self._take_pending(lambda c: c.op != "save" and c.run == ev["run"] and self.names[c.key] == ev["name"])
        self._ended(copy, ev["ok"])
        running = before["runs"][copy.run - 1]["phase"] == "running"
        oks = [ok for *_, ok in self._hear(copy.run)]
        assert oks == [ev["ok"]], f"a read ended {oks}"
        if ev["ok"] and running:
            part = [*self.sizes.prompts[copy.run]].index(ev["name"][0]) + 1
            assert (self._rows(copy.run, part, copy.layer) == self.content(ev["name"][0], copy.layer)).all(), "it read other bytes"

    def do_save(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        run, process, step, work = self._step(ev, before)
        self._rows(run, step.chunk, step.layer)[:] = self.content(self.sizes.prompts[run][step.chunk - 1], step.layer)
        self._make_last(ev["gone"], before)
        process.copies.save(step, work, partial(self._saved, process))
        self._hear(run)
        state = after["runs"][run - 1]
        name, extent = state["names"][step.chunk - 1], after["entries"][state["names"][step.chunk - 1]]["extent"]
        if name in state["new"] and step.layer == 1:
            self.place[process.pool._writing[self._at[step.chunk - 1]].extent] = extent

    def _make_last(self, gone: frozenset[Name], before: dict[str, Any]) -> None:
        """Whatever else could be evicted was used after it."""
        for key, name in self.names.items():
            entry = before["entries"].get(name)
            if gone and name not in gone and entry and entry["state"] == "readable" and not entry["pins"]:
                assert self.helper.pin([key], FOREVER)
                self.helper.let_go([key], [])

    def _saved(self, process: Process, step: TransferId, outcome: Outcome) -> None:
        """What the session does, at once, when a save has ended."""
        part, saved = (step.run, step.chunk), process.saved.setdefault((step.run, step.chunk), set())
        saved.add(step.layer)
        if not outcome.ok:
            process.given_up.add(part)
            process.copies.remove(step.run, [step.chunk])
        elif saved == set(range(1, self.sizes.layers + 1)) and part not in process.given_up:
            process.copies.finish(*part)

    def do_saveend(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        copy = self._take_pending(
            lambda c: (c.op, c.run, self.names[c.key], c.layer) == ("save", ev["run"], ev["name"], ev["layer"])
        )
        self._at = []
        self._ended(copy, ev["ok"])
        self._hear(copy.run)

    def do_end(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        self._of(ev["run"]).copies.end(ev["run"])

    def do_fail(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        run, process = ev["run"], self._of(ev["run"])
        parts = range(1, len(self.sizes.prompts[run]) + 1)
        process.given_up.update((run, part) for part in parts)
        process.copies.remove(run, parts)
        process.copies.end(run)

    def do_evict(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        assert self.helper.evict([self._key(ev["name"])]) == [True]

    def do_remove(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        self.helper.remove([self._key(ev["name"])])

    def do_lapse(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        """As a late pin is taken back, this one alone."""
        client, key = ev["client"], self._key(ev["name"])
        self.helper._change(lambda t: t.unpin(Client(client, 1).pack(), key))
        if client not in self.dead:
            self.processes[client].pool._pinned[key].expiry = -FOREVER
        for copy in self.pending:
            if copy.op != "save" and copy.key == key and self.sizes.clients[copy.run] == client:
                copy.lapsed = True

    def do_die(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        self.dead.add(ev["client"])
        self.pending = [c for c in self.pending if self.sizes.clients[c.run] != ev["client"]]

    def do_recover(self, ev: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        self.helper.recover()

    def _key(self, name: Name) -> bytes:
        return next(key for key, known in self.names.items() if known == name)

    def _take_pending(self, wanted: Callable[[Copy], bool]) -> Copy:
        (copy,) = filter(wanted, self.pending)
        self.pending.remove(copy)
        return copy

    # ---- what is there ----------------------------------------------------------------------------------------------

    def same(self, state: dict[str, Any]) -> None:
        """AssertionError where it is not the model's state."""
        entries = self._entries()
        model = {name: e for name, e in state["entries"].items() if e["state"] != "absent"}
        assert entries.keys() == model.keys(), f"objects {sorted(entries)}, in the model {sorted(model)}"
        for name, (entry, pins) in entries.items():
            e = model[name]
            found = (entry.state, self.place.get(entry.extent), pins, entry.owner if entry.state == "allocated" else 0)
            wanted = (e["state"], e["extent"], e["pins"], e["owner"])
            assert found == wanted, f"object {name} is {found}, in the model {wanted}"
            assert entry.pins == len(pins), f"object {name} counts {entry.pins} pins: {pins}"
            for layer in range(1, self.sizes.layers + 1):
                if (key := state["mem"][e["extent"] - 1][layer - 1]) == name[0]:
                    assert (self._bytes(entry.extent, layer) == self.content(key, layer)).all(), f"{name} holds other bytes"
        copies = {(c.op, c.run, self.names[c.key], c.layer, c.lapsed) for c in self.pending}
        assert copies == {(x["op"], x["run"], x["name"], x["layer"], x["lapsed"]) for x in state["io"]}, f"copies {copies}"
        for client in self.processes.keys() - self.dead:
            self._same_runs(client, state)

    def _same_runs(self, client: int, state: dict[str, Any]) -> None:
        process = self.processes[client]
        mine = {run: state["runs"][run - 1] for run, c in self.sizes.clients.items() if c == client}
        begun = {run for run, r in mine.items() if r["phase"] in ("running", "failed", "over")}
        assert process.copies._runs.keys() == begun, f"runs {sorted(process.copies._runs)} are begun, in the model {sorted(begun)}"
        for run in begun:
            ours, r = process.copies._runs[run], mine[run]
            assert tuple(self.names[k] for k in ours.keys) == r["names"]
            assert ours.backed == r["backed"]
            assert sorted(self.names[k] for k in ours.pinned) == sorted(r["pins"])
        held = {self.names[k]: item.pins for k, item in process.pool._pinned.items() if item.pins}
        assert held == {n: sum(n in r["pins"] for r in mine.values()) for r in mine.values() for n in r["pins"]}
        assert {self.names[k] for k in process.pool._writing} == {n for r in mine.values() for n in r["new"]}

    def _entries(self) -> dict[Name, tuple[Any, frozenset[int]]]:
        out: dict[Name, tuple[Any, frozenset[int]]] = {}
        with self.env.begin() as txn:
            tables = self.helper._tables
            holds = [held for held, value in txn.cursor(db=tables["holds"]) if value != b"w"]
            for key, raw in txn.cursor(db=tables["objects"]):
                entry = decode_entry(raw)
                entry.owner = Client.unpack(entry.owner).pid  # type: ignore[assignment]
                out[self.names[key]] = entry, frozenset(Client.unpack(held[:16]).pid for held in holds if held[16:] == key)
        return out

    def refuses(self, state: dict[str, Any]) -> None:
        """What the model does not allow, the index does not do: evict what is held or written, pin what is not readable, finish or
        remove what another one writes."""
        for key, name in self.names.items():
            e = state["entries"].get(name)
            if e is None:
                continue  # a name that no run can come to
            if e["state"] != "readable" or e["pins"]:
                assert self.helper.evict([key]) == [False]
            if e["state"] != "readable":
                assert self.helper.pin([key], FOREVER) == []
                assert self.helper.lookup([key]) == 0
            for call in (partial(self.helper.finish, [key], None), *([partial(self.helper.remove, [key])] if self._lives(e) else ())):
                try:
                    call()
                except PoolError:
                    continue
                raise AssertionError(f"somebody else finished or removed {name}")

    def _lives(self, entry: dict[str, Any]) -> bool:
        return entry["state"] == "allocated" and entry["owner"] not in self.dead


@dataclass
class _Kept:
    """A folder that outlives the pools on it."""

    path: Path
    env: Any
    arena: Any

    def close(self) -> None:
        """It is the world's."""


@contextmanager
def _changed(module: Any, **names: Any) -> Iterator[None]:
    old = {name: getattr(module, name) for name in names}
    try:
        for name, value in names.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in old.items():
            setattr(module, name, value)
