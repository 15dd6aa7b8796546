"""Decode's side of `embed_prefill.py`: takes prompts' rows out of Prefill's slots, and checks each of them.

The model-free core of a Decode rank: destinations, pulls, and a `DecodeSession` that decides.
"""

from __future__ import annotations

import queue
import secrets
import sys
from functools import partial
from pathlib import Path

import torch
import zmq

from tidegate.engine import control
from tidegate.engine.copying import Faults, Outcome, Work
from tidegate.engine.decode_peer import PEER, Peer, region
from tidegate.engine.owner import Owner
from tidegate.engine.pull_shm import ShmPull
from tidegate.engine.recorder import NULL, NullRecorder, Recorder
from tidegate.engine.row_pool import Place, RowPool
from tidegate.engine.tracing import labels, trace_file, trace_footer, trace_header, trace_observer
from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.effects import AttemptFailed, BeginRead, Completed, Effect, Reclaimed, Register, Send
from tidegate.protocol.messages import Ready, decode, encode

LAYERS, CHUNK, BLOCK, WIDTHS = 6, 48, 16, {"main": 24, "index": 8}
PROMPTS = {"long": 130, "exactly a block": BLOCK, "short": 5}


def pattern(layer: int, first: int, end: int, width: int) -> torch.Tensor:
    """What the rows of tokens [first, end) hold instead of KV: [end - first, width], int8."""
    token, column = torch.arange(first, end)[:, None], torch.arange(width)[None]
    return ((31 * layer + 7 * token + column) % 127).to(torch.int8)


class Inbox:
    """Receives prompts.  `outcomes`: (request, "" or why it failed), once each; port: of its control socket."""

    def __init__(self, *, concurrency: int = 2, trace: str = "", faults: Faults | None = None) -> None:
        incarnation = secrets.randbits(62) + 1
        name = trace_file("decode", 0)
        self.recorder: Recorder | NullRecorder = Recorder(Path(trace) / name, Path(name).stem) if trace else NULL
        trace_header(self.recorder, role="decode", rank=0, incarnation=incarnation, layers=LAYERS)
        self.backend = ShmPull(recorder=self.recorder, faults=faults)
        self.peer = Peer(self.backend, incarnation=incarnation, layers=LAYERS, block_size=BLOCK)
        self.session = DecodeSession(layers=LAYERS, incarnation=incarnation, observer=trace_observer(self.recorder))
        longest = max(PROMPTS.values())
        self.pools = {name: RowPool(concurrency, LAYERS, longest, width, torch.int8) for name, width in WIDTHS.items()}
        self.waiting: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self.places: dict[int, tuple[str, int, dict[str, Place]]] = {}
        self.outcomes: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket, self.port = control.bind(self.context, 0)
        self.owner = Owner("inbox", self._socket, on_frames=self._frames, on_tick=self._tick, after=self._admit,
                           on_crash=lambda error: self.outcomes.put(("", repr(error))), tick=0.2)  # fmt: skip
        self.owner.start()

    def ask(self, request: str, tokens: int) -> None:
        """Have `tokens` tokens prefilled, once there is room and somebody to do it."""
        self.waiting.put((request, tokens))
        self.owner.post(lambda: None)

    def close(self) -> None:
        """Let every pull end, and give everything back."""
        self.backend.close()
        self.owner.stop()
        trace_footer(self.recorder)
        self.recorder.close()
        if self.peer.memory is not None:
            self.peer.memory.close()
        self.context.term()

    def _admit(self) -> None:
        while self.peer.memory is not None and all(pool.free for pool in self.pools.values()) and not self.waiting.empty():
            request, tokens = self.waiting.get()
            attempt, places = secrets.randbits(62) + 1, {name: pool.claim() for name, pool in self.pools.items()}
            self.places[attempt] = request, tokens, {name: place for name, place in places.items() if place is not None}
            self._do(self.session.admit(attempt, request=request, tokens=tokens))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message):
                    self._socket.send_multipart([self.peer.address, control.MESSAGE, encode(message)])
                case Register(attempt):
                    for name, place in self.places[attempt][2].items():
                        self.backend.register(region(name, place), place.rows)
                    self.owner.post(partial(lambda a: self._do(self.session.registered(a)), attempt))
                case BeginRead(ready):
                    self._read(ready)
                case Completed(attempt):
                    self._do(self.session.schedule(attempt))
                    self.outcomes.put((self.places[attempt][0], self._wrong(attempt)))
                    self._do(self.session.finish(attempt))
                case AttemptFailed(attempt, reason):
                    self.outcomes.put((self.places[attempt][0], reason))
                case Reclaimed(attempt):
                    for name, place in self.places.pop(attempt)[2].items():
                        self.backend.unregister(region(name, place))
                        self.pools[name].release(place)

    def _wrong(self, attempt: int) -> str:
        _, tokens, places = self.places[attempt]
        for name, place in places.items():
            for layer in range(LAYERS):
                if not torch.equal(place.rows[layer, :tokens], pattern(layer, 0, tokens, WIDTHS[name])):
                    return f"the {name} rows of layer {layer} are wrong"
        return ""

    def _read(self, ready: Ready) -> None:
        def told(outcome: Outcome) -> None:
            self.owner.post(lambda: self._do(self.session.read_end(ready.transfer, "ok" if outcome.ok else "quiet", outcome.reason)))

        _, tokens, places = self.places[ready.attempt]
        try:
            parts = self.peer.parts(ready, places, tokens)
        except ValueError as error:
            told(Outcome(False, True, str(error)))
            return
        self.backend.submit(PEER, parts, Work(ready.slot, ready.epoch, labels(ready.transfer)), told)

    def _frames(self, frames: list[bytes]) -> None:
        if frames[1] == control.HELLO:
            welcome = self.peer.meet(frames[0], control.parse_hello(frames[2]))
            self._socket.send_multipart([frames[0], control.WELCOME, control.frame(welcome)])
        else:
            self.peer.check_sender(frames[0])
            self._do(self.session.receive(decode(frames[2])))

    def _tick(self) -> None:
        for transfer in [t for t in self.session.reads if self.session.is_unanswered(t)]:
            self._do(self.session.resend_report(transfer))


def main(trace: str = "") -> None:
    """A process of its own: prints its port, then what became of each prompt; ends when standard input does."""
    inbox = Inbox(trace=trace)
    print(inbox.port, flush=True)
    for request, tokens in PROMPTS.items():
        inbox.ask(request, tokens)
    for _ in PROMPTS:
        request, wrong = inbox.outcomes.get()
        print(f"{request}: {wrong or 'every row of every layer is right'}", flush=True)
    sys.stdin.read()
    inbox.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
