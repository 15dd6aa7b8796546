"""The Decode process: owns destinations, pulls layers into them, decodes; `DecodeSession` decides, this module executes.

Rules: one thread owns the session (`Owner`); one thread decodes; pulls run on the data path's threads and only post their end.
Each attempt's destination is a region of its own with the pull backend, from its registration until nothing can land in it any
more, so a range outside it is refused to the byte.
"""

from __future__ import annotations

import logging
import queue
import secrets
import time
from collections import Counter
from functools import partial
from pathlib import Path

import zmq

from tidegate.engine import control
from tidegate.engine.admission import AREAS, Active, Admission
from tidegate.engine.config import RunConfig
from tidegate.engine.copying import Outcome, Work
from tidegate.engine.decode_peer import PEER, Peer, region
from tidegate.engine.faults import Injector
from tidegate.engine.hot_buffer import Counts, HotRows, SparseKV
from tidegate.engine.model import greedy
from tidegate.engine.owner import Owner
from tidegate.engine.pull_shm import Part, ShmPull
from tidegate.engine.recorder import NULL, NullRecorder, Recorder
from tidegate.engine.row_pool import Place, RowPool
from tidegate.engine.tracing import labels, trace_file, trace_footer, trace_header, trace_observer
from tidegate.engine.worker_io import Parent, run_worker
from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import AttemptFailed, BeginRead, Completed, Effect, Reclaimed, Register, Send
from tidegate.protocol.errors import RemoteProtocolError
from tidegate.protocol.messages import Message, Ready, Start, TransferId, decode, encode

__all__ = ["DecodeWorker", "main"]

log = logging.getLogger(__name__)

class Running:
    """A scheduled attempt and its rows behind hot buffers; the decoding thread alone touches it until it is finished."""

    def __init__(self, active: Active, hot: HotRows, counts: Counts) -> None:
        self.active = active
        main, index = (active.places[name] for name in AREAS)
        self.kv = SparseKV(main, index, len(active.ask.prompt), hot, active.attempt, counts)

    def next(self) -> tuple[int, int, SparseKV]:
        """(token, position, rows) of the next step; the first runs the last token of the prompt again."""
        prompt, tokens = self.active.ask.prompt, self.active.tokens
        return tokens[-1] if tokens else prompt[-1], len(prompt) - 1 + len(tokens), self.kv


class DecodeWorker:
    """One Decode rank: host pool, indexer cache, session, control socket, and the loop that decodes."""

    def __init__(self, config: RunConfig, parent: Parent) -> None:
        self.config, self.parent = config, parent
        self.model = config.load_model()
        model = self.model.config
        capacity = config.max_tokens + config.new_tokens
        self.pools = {
            name: RowPool(config.places, model.cache_layers, capacity, width, model.torch_dtype)
            for name, width in zip(AREAS, (model.main_width, model.index_width), strict=True)
        }
        self.hot = HotRows(config.concurrency, model.cache_layers, config.hot_buffer, model.main_width, model.torch_dtype)
        incarnation = secrets.randbits(62) + 1
        self.recorder = self._recorder(incarnation)
        self.faults = Injector(config.decode_faults)
        self.backend = ShmPull(recorder=self.recorder, faults=self.faults.copies(), threads=config.pull_threads)
        self.peer = Peer(
            self.backend, incarnation=incarnation, layers=model.cache_layers, block_size=config.block_size
        )
        self.session = DecodeSession(
            layers=model.cache_layers, incarnation=incarnation, observer=trace_observer(self.recorder)
        )
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket, self.port = control.bind(self.context, config.port)
        self.owner = Owner(
            "decode-session", self._socket, on_frames=self._frames, on_tick=self._tick, after=lambda: self.admission.admit(),
            on_crash=self._crash, tick=config.resend_seconds,
        )  # fmt: skip
        self.complete: queue.Queue[Active | None] = queue.Queue()
        self.counts = Counts()
        self._reported: dict[TransferId, float] = {}
        self.pulled: Counter[str] = Counter()
        self.admission = Admission(self)

    def _recorder(self, incarnation: int) -> Recorder | NullRecorder:
        name = trace_file("decode", 0)
        recorder = Recorder(Path(self.config.trace) / name, Path(name).stem) if self.config.trace else NULL
        trace_header(recorder, role="decode", rank=0, incarnation=incarnation, layers=self.model.config.cache_layers)
        return recorder

    # ---- the decoding thread --------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Decode whatever is complete, all together, one token a step, until the parent says stop."""
        self.parent.watch(lambda: self.complete.put(None), self.config.scratch_folder)
        self.owner.start()
        self.admission.http.server.start()
        self.parent.say("ready", port=self.port, http_port=self.admission.http.server.port)
        running: list[Running] = []
        while (more := self._more(wait=not running)) is not None:
            running = self._step(running + more)
        self._close()

    def _more(self, *, wait: bool) -> list[Running] | None:
        """What has become complete, waiting for something if asked to; None when the parent said stop."""
        more: list[Running] = []
        while (wait and not more) or not self.complete.empty():
            one = self.complete.get()
            if one is None:
                return None
            more.append(Running(one, self.hot, self.counts))
        return more

    def _step(self, running: list[Running]) -> list[Running]:
        """One token for each; those that have all theirs are finished, the others returned."""
        logits = self.model.decode_step([one.next() for one in running])
        going = []
        for one, row, token in zip(running, logits, greedy(logits), strict=True):
            active = one.active
            active.tokens.append(token)
            active.logits.append(row.clone())
            if active.done:
                self.owner.post(partial(self._finish, active))
            else:
                going.append(one)
            if len(active.tokens) % 16 == 0:
                self.parent.say("progress", text=f"decode {active.ask.request}: {len(active.tokens)} tokens")
        return going

    # ---- the owner's thread ---------------------------------------------------------------------------------------

    def execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message):
                    self._send(message)
                case Register(attempt):
                    for name, place in self.admission.active[attempt].places.items():
                        self.backend.register(region(name, place), place.rows)
                    self.owner.post(partial(self._registered, attempt))
                case BeginRead(ready):
                    self._read(ready)
                case Completed(attempt):
                    self._schedule(self.admission.active[attempt])
                case AttemptFailed(attempt, reason):
                    self.admission.failed(attempt, reason)
                case Reclaimed(attempt):
                    self._give_back(self.admission.active.pop(attempt))

    def _send(self, message: Message) -> None:
        copies = self.faults.copies_of(str(message.__struct_config__.tag))
        if isinstance(message, Start):
            self.admission.announce(message, copies)
        elif self.peer.address:  # before a Prefill has introduced itself there is nobody to tell
            for _ in range(copies):
                self._socket.send_multipart([self.peer.address, control.MESSAGE, encode(message)])
        if (transfer := getattr(message, "transfer", None)) is not None:
            self._reported.setdefault(transfer, time.monotonic())

    def reserve(self) -> dict[str, Place] | None:
        """Memory for one prompt with all its tokens, in every pool, or in none."""
        if not all(pool.free for pool in self.pools.values()):
            return None
        places = {name: place for name, pool in self.pools.items() if (place := pool.claim()) is not None}
        for name, place in places.items():
            self.pools[name].poison(place)
        return places

    def _registered(self, attempt: int) -> None:
        if self.session.can_register(attempt):  # it may have failed meanwhile
            self.execute(self.session.registered(attempt))

    def _schedule(self, one: Active) -> None:
        self.execute(self.session.schedule(one.attempt))
        if self.config.tags:
            one.tag(self.config.chunk)
        layers = self.model.config.cache_layers
        self.parent.say("progress", text=f"decode {one.ask.request}: all {layers} layers are here and committed")
        self.complete.put(one)

    def _finish(self, one: Active) -> None:
        self.execute(self.session.finish(one.attempt))
        self.admission.finished(one)

    def _give_back(self, one: Active) -> None:
        for name, place in one.places.items():
            self.backend.unregister(region(name, place))
            self.pools[name].release(place)

    def _read(self, ready: Ready) -> None:
        """Begin the pull that READY asks for, or say at once, quietly, why it cannot be."""
        one, reported = self.admission.active[ready.attempt], False
        parts: list[Part] = []

        def ended(outcome: Outcome) -> None:
            nonlocal reported
            first, reported = not reported, True
            if first:
                how = "ok" if outcome.ok else "quiet" if outcome.stopped else "unknown"
                if outcome.ok:
                    self.pulled.update({part.region.split("-")[0]: int(sum(part.length)) for part in parts})
                self.execute(self.session.read_end(ready.transfer, how, outcome.reason))
            elif outcome.stopped:
                self.execute(self.session.landed(ready.transfer))

        def told(outcome: Outcome) -> None:
            self.owner.post(partial(ended, outcome))

        try:
            parts = self.peer.parts(ready, one.places, len(one.ask.prompt))
        except ValueError as error:
            told(Outcome(False, True, str(error)))
            return
        self.backend.submit(PEER, parts, Work(ready.slot, ready.epoch, labels(ready.transfer)), told)

    def _frames(self, frames: list[bytes]) -> None:
        if len(frames) == 3 and frames[1] == control.HELLO:
            welcome = self.peer.meet(frames[0], control.parse_hello(frames[2]))
            self._socket.send_multipart([frames[0], control.WELCOME, control.frame(welcome)])
            if welcome.refused:
                log.warning("refused a Prefill: %s", welcome.refused)
        elif len(frames) == 3 and frames[1] == control.MESSAGE:
            self.peer.check_sender(frames[0])
            self.execute(self.session.receive(decode(frames[2])))
        else:
            raise RemoteProtocolError("these frames are no message", machine="control", state=f"{len(frames)} frames",
                                      event=frames[1][:16] if len(frames) > 1 else b"")  # fmt: skip

    def _tick(self) -> None:
        now = time.monotonic()
        for transfer in [t for t in self.session.reads if self.session.is_unanswered(t)]:
            if now - self._reported[transfer] > self.config.resend_seconds:
                self.execute(self.session.resend_report(transfer))
        self.admission.tick(now)

    def _crash(self, error: BaseException) -> None:
        self.parent.fail(f"decode: {error}")

    def _close(self) -> None:
        """Answer who waits, let every pull end and be told, then write the last line and give everything back."""
        self.owner.ask(self.admission.close)
        self.admission.http.server.stop()
        self.backend.close()
        self.owner.stop()
        c = self.counts
        self.parent.say("stats", stats={
            "bytes_pulled_main": self.pulled["main"], "bytes_pulled_index": self.pulled["index"],
            "bytes_missed": c.bytes_loaded, "bytes_appended": c.bytes_appended, "hits": c.hits, "misses": c.misses,
            "evictions": c.evictions, "refused": self.owner.refused, "injected": self.faults.injected,
            "http_refused": self.admission.http.server.refused,
            "places_free": min(pool.free for pool in self.pools.values()), "places": self.config.places,
        })  # fmt: skip
        trace_footer(self.recorder)
        self.recorder.close()
        if self.peer.memory is not None:
            self.peer.memory.close()
        self.context.term()


def main() -> None:
    """Entry of the process: configuration on standard input."""
    run_worker("decode", lambda parent: DecodeWorker(parent.config(RunConfig), parent).serve())


if __name__ == "__main__":
    main()
