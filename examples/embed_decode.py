"""Decode's side of `embed_prefill.py`: a worker without a model, the embedding API from beginning to end.

It has prompts prefilled, then takes each a step further: appends a token, and looks at every indexer row and, by top-k, main row.
"""

import queue
import sys
import threading

import torch

from tidegate.engine.decode_engine import DecodeEngine, RowKind
from tidegate.engine.faults import Injector
from tidegate.engine.recorder import NULL, Recorder

LAYERS, CHUNK, BLOCK, WIDTHS = 6, 48, 16, {"main": 24, "index": 8}
PROMPTS = {"long": 130, "exactly a block": BLOCK, "short": 5}


def pattern(layer: int, first: int, end: int, width: int) -> torch.Tensor:
    """What the rows of tokens [first, end) hold instead of KV: [end - first, width], int8."""
    token, column = torch.arange(first, end)[:, None], torch.arange(width)[None]
    return ((31 * layer + 7 * token + column) % 127).to(torch.int8)


class Inbox:  # outcomes: (request, "" or what is wrong), once each
    def __init__(self, *, concurrency: int = 2, trace: str = "", faults: Injector | None = None, resend_seconds: float = 0.2) -> None:
        self._recorder = Recorder(f"{trace}/decode-0.jsonl", "decode-0") if trace else NULL
        self.engine = DecodeEngine([RowKind(name, "int8", width) for name, width in WIDTHS.items()], layers=LAYERS, block_size=BLOCK,
                                   blocks=concurrency * (max(PROMPTS.values()) // BLOCK + 1), rows=concurrency, hot=BLOCK,
                                   resend_seconds=resend_seconds, poison=True, recorder=self._recorder, faults=faults)  # fmt: skip
        self.port, self.outcomes, self._lock = self.engine.port, queue.SimpleQueue[tuple[str, str]](), threading.Lock()
        self.asked, self._thread = dict[int, tuple[str, int]](), threading.Thread(target=self._decode)
        self.engine.open()
        self._thread.start()

    def ask(self, request: str, tokens: int) -> None:
        with self._lock:
            self.asked[self.engine.admit(request, range(tokens), new_tokens=1)] = request, tokens

    def close(self) -> None:
        self.engine.stop()
        self._thread.join()
        self.engine.close()
        self._recorder.close()

    def _decode(self) -> None:
        while (complete := self.engine.completed(wait=True)) is not None:
            with self._lock:
                for attempt, reason in self.engine.failed():
                    self.outcomes.put((self.asked[attempt][0], reason))
                for attempt in complete:
                    wrong = filter(None, (self._step(layer, attempt, self.asked[attempt][1]) for layer in range(LAYERS)))
                    self.outcomes.put((self.asked[attempt][0], next(wrong, "")))
                    self.engine.finish(attempt)

    def _step(self, layer: int, attempt: int, position: int) -> str:
        new, want = ({name: pattern(layer, first, position + 1, width) for name, width in WIDTHS.items()} for first in (position, 0))
        self.engine.append(layer, [(attempt, position)], new)
        wrong = "" if torch.equal(self.engine.index_rows(layer, attempt), want["index"]) else "index"
        for topk in torch.arange(position, -1, -1).split(BLOCK):  # a hot buffer at a time, from the new token backwards
            (hot,), row, slots = self.engine.select(layer, [attempt], topk[None])
            wrong = wrong if torch.equal(hot[row[0], slots[0].long()], want["main"][topk]) else "main"
        return wrong and f"the {wrong} rows of layer {layer} are wrong"


def main(trace: str = "") -> None:
    inbox = Inbox(trace=trace)
    print(inbox.port, flush=True)
    for request, tokens in PROMPTS.items():
        inbox.ask(request, tokens)
    for request, wrong in (inbox.outcomes.get() for _ in PROMPTS):
        print(f"{request}: {wrong or 'every row of every layer is right'}", flush=True)
    sys.stdin.read()
    inbox.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
