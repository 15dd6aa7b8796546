"""A server that has served many requests remembers the live ones only: both engines, real sockets, real copies, messages lost."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq
from embed_decode import BLOCK, CHUNK, LAYERS, WIDTHS, Inbox, pattern

from tidegate.engine import forgetting
from tidegate.engine.faults import Injector
from tidegate.engine.forgetting import Again
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_copies import PoolCopies, extent_layout
from tidegate.engine.prefill_engine import PrefillEngine, Run, RunOver, layer_memory
from tidegate.engine.prefill_link import DirectLink
from tidegate.engine.slot_layout import plan_layout
from tidegate.engine.step_blocks import Teller
from tidegate.protocol.machines import prefill_run as PR
from tidegate.protocol.session import Session
from tidegate.protocol.topology import SlotPlan

AT_ONCE = 2
SOON = 0.02
BOUNDED = {"Decode.core.peer.tables._tables"}
"""Tables that have a bound of their own."""


class Lossy(Injector):
    """Loses a message in five, and doubles one; START, which nobody says again, always arrives."""

    def __init__(self, seed: int) -> None:
        super().__init__(())
        self._random = random.Random(seed)

    def copies_of(self, tag: str) -> int:
        return 1 if tag == "START" else self._random.choice((0, 1, 1, 1, 2))


class Server:
    """Both ranks; a thread computes."""

    def __init__(self, folder: Path, faults: tuple[Injector, Injector] | None) -> None:
        plan = SlotPlan.make(layers=LAYERS, independent=frozenset({1}), buffers=2)
        slots = [plan.slot_of(layer) for layer in range(1, LAYERS + 1)]
        self.memory = layer_memory(plan_layout(slots, WIDTHS, "int8", blocks=20, block_size=BLOCK))
        of_prefill, of_decode = faults or (None, None)
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.prefill = PrefillEngine(self.memory, plan=plan, chunk_tokens=CHUNK, resend_seconds=SOON, faults=of_prefill,
                                     on_crash=lambda error: self.said.put(repr(error)))  # fmt: skip
        pool = LocalPool(extent_layout(self.memory.layout), 40, folder=folder)
        copies = PoolCopies(pool, self.memory, span=self.prefill.core.span, post=self.prefill.owner.post)
        self.inbox, self.context = Inbox(concurrency=AT_ONCE, faults=of_decode, resend_seconds=SOON), zmq.Context()
        link = DirectLink(self.prefill.owner, self.context, self.inbox.port, self.prefill.hello, self.prefill.core)
        self.prefill.attach(copies=copies, links=link)
        self.prefill.open()
        self._thread = threading.Thread(target=self._compute)
        self._thread.start()

    @property
    def sessions(self) -> dict[str, tuple[Any, Session]]:
        decode = self.inbox.engine
        return {"Prefill": (self.prefill.owner, self.prefill.core.session), "Decode": (decode.owner, decode.core.session)}

    def remembered(self) -> dict[str, int]:
        """Entries of each table of both sessions, slots left out, that are not empty."""
        out = {}
        for side, (owner, session) in self.sessions.items():
            sizes = owner.ask(lambda s=session: {name: len(getattr(s, name)) for name in s.tables if name != "slots"})
            out |= {f"{side} {name}": size for name, size in sizes.items() if size}
        return out

    def tables(self) -> dict[str, int]:
        """Entries of every container that the two engines keep, by the way that leads to it."""
        decode = self.inbox.engine
        return self.prefill.owner.ask(lambda: tables("Prefill", self.prefill)) | decode.owner.ask(lambda: tables("Decode", decode))

    def _compute(self) -> None:
        while (run := self.prefill.next_run()) is not None:
            with suppress(RunOver):
                self._prefill(run)
            self.prefill.finished(), self.prefill.failed_blocks()

    def _prefill(self, run: Run) -> None:
        for chunk in range(1, run.chunks + 1):
            step = self.prefill.start(run, chunk)
            if step.begin == step.end:
                self.prefill.copy_step()
                continue
            for layer in range(LAYERS):
                place = self.prefill.wait_for_layer(layer)
                for name, view in place.views.items():
                    rows = pattern(layer, step.begin, step.end, WIDTHS[name])
                    for token in range(step.begin, step.end):
                        view[place.blocks[token // BLOCK], token % BLOCK] = rows[token - step.begin]
                self.prefill.kv_written(layer)
                self.prefill.layer_done(layer)

    def close(self) -> None:
        self.prefill.stop()
        self._thread.join()
        self.inbox.close()
        self.prefill.close()
        self.memory.close()
        self.context.term()
        assert self.said.empty(), self.said.get()


def tables(name: str, top: object) -> dict[str, int]:
    """The sizes of all containers that `top` keeps, and whatever of ours it keeps."""
    out: dict[str, int] = {}
    todo, seen = [(name, top)], {id(top)}
    while todo:
        where, one = todo.pop()
        slots = [slot for kind in type(one).__mro__ for slot in getattr(kind, "__slots__", ())]
        for key, value in {**getattr(one, "__dict__", {}), **{slot: getattr(one, slot, None) for slot in slots}}.items():
            path = f"{where}.{key}"
            if isinstance(value, queue.Queue | queue.SimpleQueue):
                out[path] = value.qsize()
            elif isinstance(value, dict | set | list | deque):
                out[path] = len(value)
            elif type(value).__module__.startswith("tidegate.engine") and id(value) not in seen:
                seen.add(id(value))
                todo.append((path, value))
    return out


@contextmanager
def serving(folder: Path, faults: tuple[Injector, Injector] | None = None) -> Iterator[Server]:
    server = Server(folder, faults)
    try:
        yield server
    finally:
        server.close()


def forgets(server: Server, seconds: float) -> dict[str, int]:
    """Wait until nothing is remembered; what still is when the time is over."""
    until = time.monotonic() + seconds
    while (left := server.remembered()) and time.monotonic() < until:
        time.sleep(0.01)
    return left


def serve(server: Server, requests: int) -> int:
    """Have so many short prompts served, every seventh aborted; the most runs and attempts that were remembered at once."""
    most, engine = 0, server.inbox.engine
    for n in range(requests + AT_ONCE):
        if n >= AT_ONCE:
            assert server.inbox.outcomes.get(timeout=60)[1] in ("", "the client gave up")
            most = max(most, *(size for name, size in server.remembered().items() if name.split()[1] in ("runs", "attempts")), 0)
        if n < requests:
            server.inbox.ask(f"r{n}", 1 + n % 20)
            attempt = list(server.inbox.asked)[-1]
            if n % 7 == 6 and not engine.why(attempt):  # one that has its memory is told of its end
                engine.abort(attempt, "the client gave up")
    return most


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "LONGEST", 0.2)
    torch.set_num_threads(1)


def test_a_server_that_has_served_many_remembers_none(tmp_path: Path) -> None:
    with serving(tmp_path / "pool") as server:
        most = serve(server, 210)
        assert not (left := forgets(server, 60)), f"after 210 requests {left} are remembered"
        assert most < 30, f"{most} were remembered at once, of {AT_ONCE} that are served at once"


def test_no_table_of_either_engine_grows_with_the_requests(tmp_path: Path) -> None:
    with serving(tmp_path / "pool") as server:
        serve(server, 30)
        assert not forgets(server, 60)
        before = server.tables()
        serve(server, 60)
        assert not forgets(server, 60)
        after = server.tables()
    assert {"Prefill.core.links._out._waiting", "Prefill.core.answers._since", "Decode.core.wanted", "Decode.memory.owned"} <= set(after)
    grown = {name: f"{before.get(name, 0)} -> {size}" for name, size in after.items() if size > before.get(name, 0) + 5}
    assert not (grown := {name: sizes for name, sizes in grown.items() if name not in BOUNDED}), f"after 60 more requests: {grown}"


def test_a_table_that_grows_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Teller, "forget", lambda self, run: None)
    with serving(tmp_path / "pool") as server:
        serve(server, 10)
        assert not forgets(server, 60)
        assert server.tables()["Prefill.core._teller._steps"] >= 8


def test_also_when_messages_are_lost_and_doubled(tmp_path: Path) -> None:
    with serving(tmp_path / "pool", (Lossy(1), Lossy(2))) as server:
        serve(server, 40)
        assert not (left := forgets(server, 60)), f"after 40 requests {left} are remembered"


def test_a_run_that_may_never_be_forgotten_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PR, "CanForget", lambda state, held: False)
    with serving(tmp_path / "pool") as server:
        serve(server, 10)
        assert forgets(server, 0.5)["Prefill runs"] >= 5


def test_what_is_said_again_is_said_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(forgetting.time, "monotonic", lambda: now)
    monkeypatch.setattr(forgetting, "LONGEST", 4.0)
    again: Again[str] = Again(1.0)
    again.add("a")
    said = []
    for _ in range(200):
        now += 0.1
        said += [round(now - 100.0) for _ in again.due()]
    assert said[:5] == [1, 3, 7, 11, 15]
    again.keep(lambda key: key != "a")
    assert len(again) == 0
