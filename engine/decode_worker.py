"""The Decode process: owns destinations, pulls layers into them, decodes; `DecodeSession` decides, this module executes.

Rules: one thread owns the session (`Owner`); one thread decodes; pulls run on the data path's threads and only post their end.
Each attempt's destination is a region of its own with the pull backend, from its registration until nothing can land in it any
more, so a range outside it is refused to the byte.  What READY says is compared with the layout that was mapped at the
handshake before a byte moves.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import time
from collections import deque
from functools import partial
from pathlib import Path

import torch
import zmq

from tidegate.engine import control
from tidegate.engine.config import Request, RunConfig
from tidegate.engine.copying import Outcome, Work
from tidegate.engine.faults import Injector
from tidegate.engine.hot_buffer import Counts, SparseKV
from tidegate.engine.model import Model, greedy
from tidegate.engine.owner import Owner
from tidegate.engine.pull_shm import Part, ShmPull
from tidegate.engine.recorder import NULL, NullRecorder, Recorder, content_tag
from tidegate.engine.row_pool import Place, RowPool
from tidegate.engine.slots import SharedMemory, fetch_memory
from tidegate.engine.tracing import labels, trace_file, trace_footer, trace_header, trace_observer
from tidegate.engine.worker_io import Parent
from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import AttemptFailed, BeginRead, Completed, Effect, Reclaimed, Register, Send
from tidegate.protocol.errors import LocalProtocolError, RemoteProtocolError
from tidegate.protocol.messages import VERSION, Ready, TransferId, decode, encode

__all__ = ["DecodeWorker", "main"]

log = logging.getLogger(__name__)
AREAS = ("main", "index")
PEER = "prefill-0"


class Active:
    """One attempt and what it owns."""

    def __init__(self, index: int, request: Request, attempt: int, places: dict[str, Place]) -> None:
        self.index, self.request, self.attempt, self.places = index, request, attempt, places
        self.since = time.monotonic()
        self.tokens: list[int] = []
        self.logits: list[torch.Tensor] = []
        self.kv: SparseKV | None = None
        self.reads = 0


class DecodeWorker:
    """One Decode rank: host pool, indexer cache, session, control socket, and the loop that decodes."""

    def __init__(self, config: RunConfig, parent: Parent) -> None:
        self.config, self.parent = config, parent
        self.model = Model.random(config.model_config(), config.seed)
        model = self.model.config
        self.layers = model.num_hidden_layers
        capacity = config.max_tokens + config.new_tokens
        self.pools = {
            name: RowPool(config.concurrency, self.layers, capacity, width, model.torch_dtype)
            for name, width in (("main", model.main_width), ("index", model.index_width))
        }
        self.incarnation = secrets.randbits(62) + 1
        self.recorder: Recorder | NullRecorder = NULL
        if config.trace:
            self.recorder = Recorder(Path(config.trace) / trace_file("decode", 0), Path(trace_file("decode", 0)).stem)
        trace_header(self.recorder, role="decode", rank=0, incarnation=self.incarnation, layers=self.layers)
        self.faults = Injector(config.decode_faults)
        self.backend = ShmPull(recorder=self.recorder, faults=self.faults.copies(), threads=1)
        self.session = DecodeSession(
            layers=self.layers, incarnation=self.incarnation, observer=trace_observer(self.recorder)
        )
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket, self.port = control.bind(self.context, config.port)
        self.owner = Owner(
            "decode-session", self._socket, on_frames=self._frames, on_tick=self._tick, after=self._admit,
            on_crash=self._crash, tick=config.resend_seconds,
        )  # fmt: skip
        self.waiting = deque(enumerate(config.requests))
        self.active: dict[int, Active] = {}
        self.ready: queue.Queue[Active | None] = queue.Queue()
        self.counts = Counts()
        self.memory: SharedMemory | None = None
        self._peer = b""
        self._peer_incarnation = 0
        self._reported: dict[TransferId, float] = {}
        self.pulled = {"main": 0.0, "index": 0.0}
        self.failed = 0

    # ---- the decoding thread --------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Decode whatever is complete, all together, one token a step, until the parent says stop."""
        self.parent.watch(lambda: self.ready.put(None))
        self.owner.start()
        self.parent.say("ready", port=self.port)
        running: list[Active] = []
        stopping = False
        while not stopping:
            while not running or not self.ready.empty():
                one = self.ready.get()
                if one is None:
                    stopping = True
                    break
                running.append(self._opened(one))
            if running and not stopping:
                running = self._step(running)
        self._close()

    def _opened(self, one: Active) -> Active:
        """Its rows, behind hot buffers: nobody but this thread touches them until it is finished."""
        main, index = (one.places[name] for name in AREAS)
        one.kv = SparseKV(main, index, len(one.request.prompt), self.config.hot_buffer, self.counts)
        return one

    def _step(self, running: list[Active]) -> list[Active]:
        """One token for each; those that have all theirs are reported and finished."""
        batch = []
        for one in running:
            assert one.kv is not None
            token = one.tokens[-1] if one.tokens else one.request.prompt[-1]
            batch.append((token, len(one.request.prompt) - 1 + len(one.tokens), one.kv))
        logits = self.model.decode_step(batch)
        for one, row, token in zip(running, logits, greedy(logits), strict=True):
            one.tokens.append(token)
            one.logits.append(row.clone())
        for one in running:
            if len(one.tokens) == self.config.new_tokens:
                self.owner.post(partial(self._finish, one))
        return [one for one in running if len(one.tokens) < self.config.new_tokens]

    # ---- the owner's thread ---------------------------------------------------------------------------------------

    def execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message):
                    for _ in range(self.faults.copies_of(str(message.__struct_config__.tag))):
                        self._socket.send_multipart([self._peer, control.MESSAGE, encode(message)])
                    if (transfer := getattr(message, "transfer", None)) is not None:
                        self._reported.setdefault(transfer, time.monotonic())
                case Register(attempt):
                    for name, place in self.active[attempt].places.items():
                        self.backend.register(f"{name}-{attempt}", place.rows)
                    self.owner.post(partial(self._registered, attempt))
                case BeginRead(ready):
                    self._read(ready)
                case Completed(attempt):
                    self._schedule(self.active[attempt])
                case AttemptFailed(attempt, reason):
                    one = self.active[attempt]
                    self.failed += 1
                    self.parent.say("result", request=one.request.id, index=one.index, attempt=attempt, text=reason)
                case Reclaimed(attempt):
                    self._give_back(self.active.pop(attempt))

    def _admit(self) -> None:
        """Give waiting requests a destination while there is room and somebody to prefill them."""
        while self.memory is not None and self.waiting and all(pool.free for pool in self.pools.values()):
            index, request = self.waiting.popleft()
            places = {name: place for name, pool in self.pools.items() if (place := pool.claim()) is not None}
            for name, place in places.items():
                self.pools[name].poison(place)
            attempt = secrets.randbits(62) + 1
            self.active[attempt] = Active(index, request, attempt, places)
            self.execute(self.session.admit(attempt, request=request.id, tokens=len(request.prompt), prompt=request.prompt))

    def _registered(self, attempt: int) -> None:
        self.execute(self.session.registered(attempt))

    def _schedule(self, one: Active) -> None:
        self.execute(self.session.schedule(one.attempt))
        self.parent.say("progress", text=f"decode {one.request.id}: all {self.layers} layers are here and committed")
        self.ready.put(one)

    def _finish(self, one: Active) -> None:
        tags = self._tags(one) if self.config.tags else {}
        logits = torch.stack(one.logits).float().numpy().tobytes()
        self.execute(self.session.finish(one.attempt))
        self.parent.say("result", request=one.request.id, index=one.index, attempt=one.attempt, ok=True, tokens=one.tokens,
                        logits=logits, tags=tags)  # fmt: skip

    def _tags(self, one: Active) -> dict[str, str]:
        """A tag of the rows of each (chunk, layer) as they lie in the destination; the last prompt row is decode's own."""
        tokens = len(one.request.prompt)
        out = {}
        for chunk in range(1, -(-tokens // self.config.chunk) + 1):
            first, end = (chunk - 1) * self.config.chunk, min(chunk * self.config.chunk, tokens)
            for layer in range(self.layers):
                out[f"{chunk}/{layer + 1}"] = content_tag(*(one.places[name].rows[layer, first:end] for name in AREAS))
        return out

    def _give_back(self, one: Active) -> None:
        for name, place in one.places.items():
            self.backend.unregister(f"{name}-{one.attempt}")
            self.pools[name].release(place)

    def _read(self, ready: Ready) -> None:
        """Begin the pull that READY asks for, or say at once, quietly, why it cannot be."""
        transfer = ready.transfer
        ended = False

        def told(outcome: Outcome) -> None:
            nonlocal ended
            first, ended = not ended, True
            how = "ok" if outcome.ok else "quiet" if outcome.stopped else "unknown"
            if first:
                self.owner.post(lambda: self.execute(self.session.read_end(transfer, how, outcome.reason)))
            elif outcome.stopped:
                self.owner.post(lambda: self.execute(self.session.landed(transfer)))

        try:
            parts = self._parts(ready)
        except ValueError as error:
            reason = str(error)
            self.owner.post(lambda: self.execute(self.session.read_end(transfer, "quiet", reason)))
            return
        self.backend.submit(PEER, parts, Work(ready.slot, ready.epoch, labels(transfer)), told)

    def _parts(self, ready: Ready) -> list[Part]:
        """The ranges to copy; ValueError, naming both sides, where READY does not fit the layout or the destination."""
        one, layer, count = self.active[ready.attempt], ready.transfer.layer - 1, ready.stop - ready.start
        assert self.memory is not None
        layout = self.memory.layout
        if ready.incarnation != self._peer_incarnation:
            raise ValueError(f"READY is of incarnation {ready.incarnation}, the mapped memory of {self._peer_incarnation}")
        if (slot := layout.slot_of_layer[layer]) != ready.slot:
            raise ValueError(f"layer {layer + 1} is announced in slot {ready.slot}; by the layout it uses slot {slot}")
        if count < 1 or ready.stop > len(one.request.prompt):
            raise ValueError(f"tokens {ready.start}..{ready.stop} are announced; the prompt has {len(one.request.prompt)}")
        parts = []
        for name in AREAS:
            area, place = layout.area(ready.slot, name), one.places[name]
            source, size = area.row_range(ready.start, count)
            target, room = place.byte_range(layer, ready.start, count)
            if size != room:
                raise ValueError(f"{name}: {count} rows are {size} bytes of {area.dtype} at Prefill and {room} bytes here")
            begin = place.byte_range(0, 0, 0)[0]
            parts.append(Part(f"{name}-{ready.attempt}", [source], [target - begin], [size]))
            self.pulled[name] += size
        return parts

    def _frames(self, frames: list[bytes]) -> None:
        if len(frames) == 3 and frames[1] == control.HELLO:
            self._welcome(frames[0], control.parse_hello(frames[2]))
        elif len(frames) == 3 and frames[1] == control.MESSAGE and frames[0] == self._peer:
            self.execute(self.session.receive(decode(frames[2])))
        else:
            log.warning("dropped %d frames of a stranger, or no message", len(frames))

    def _welcome(self, peer: bytes, hello: control.Hello) -> None:
        """Map the peer's memory, compare, and say what this process now holds."""
        if hello.incarnation == self._peer_incarnation:  # repeated: it had not heard the answer
            self._answer(peer, hello.digest)
            return
        if self._peer:
            self._answer(peer, "", f"this Decode serves Prefill {self._peer_incarnation} already")
            return
        try:
            memory = fetch_memory(hello.memory)
            if memory.layout.digest != hello.digest:
                raise ValueError(f"layout {memory.layout.digest} is served where {hello.digest} was announced")
            if len(memory.layout.slot_of_layer) != self.layers:
                raise ValueError(f"Prefill has {len(memory.layout.slot_of_layer)} layers, Decode {self.layers}")
        except (OSError, ValueError) as error:
            self._answer(peer, "", str(error))
            raise RemoteProtocolError(str(error), machine="control", state="-", event=hello) from error
        self.memory, self._peer, self._peer_incarnation = memory, peer, hello.incarnation
        self.backend.connect(PEER, memory)
        self._answer(peer, memory.layout.digest)

    def _answer(self, peer: bytes, digest: str, refused: str = "") -> None:
        welcome = control.Welcome(VERSION, self.incarnation, digest, refused)
        self._socket.send_multipart([peer, control.WELCOME, control.frame(welcome)])

    def _tick(self) -> None:
        now = time.monotonic()
        for transfer in [t for t in self.session.reads if self.session.is_unanswered(t)]:
            if now - self._reported[transfer] > self.config.resend_seconds:
                self.execute(self.session.resend_report(transfer))
        for one in list(self.active.values()):
            limit = self.config.abort_after.get(one.request.id, 0) or self.config.deadline_seconds * 1000
            if 1000 * (now - one.since) > limit and self.session.can_abort(one.attempt):
                self.execute(self.session.abort(one.attempt, f"not complete after {limit / 1000:g} s"))

    def _crash(self, error: BaseException) -> None:
        self.parent.say("error", text=f"decode: {error}")
        os._exit(4)

    def _close(self) -> None:
        """Let every pull end and be told, then write the last line and give everything back."""
        self.backend.close()
        self.owner.stop()
        c = self.counts
        free = min(pool.free for pool in self.pools.values())
        self.parent.say("stats", stats={
            "bytes_pulled_main": self.pulled["main"], "bytes_pulled_index": self.pulled["index"],
            "bytes_missed": float(c.bytes_loaded), "bytes_appended": float(c.bytes_appended), "hits": float(c.hits),
            "misses": float(c.misses), "evictions": float(c.evictions), "refused": float(self.owner.refused),
            "places_free": float(free), "places": float(self.config.concurrency),
        })  # fmt: skip
        trace_footer(self.recorder)
        self.recorder.close()
        if self.memory is not None:
            self.memory.close()
        self.context.term()


def main() -> None:
    """Entry of the process: configuration on standard input."""
    logging.basicConfig(level=logging.WARNING, format="decode: %(message)s")
    torch.set_num_threads(1)
    parent = Parent()
    config = parent.config(RunConfig)
    try:
        DecodeWorker(config, parent).serve()
    except (OSError, LocalProtocolError) as error:
        parent.say("error", text=f"decode: {error}")
        os._exit(4)


if __name__ == "__main__":
    main()
