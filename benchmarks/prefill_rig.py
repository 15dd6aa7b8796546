"""A PrefillEngine with its pool and a Decode process that takes what it publishes, for benchmarks: no model, and rows of any content."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq
from sink import Sizes

from tidegate.engine.copying import Outcome, Work
from tidegate.engine.paged_rows import RowKind
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_copies import PoolCopies, extent_layout
from tidegate.engine.prefill_engine import PrefillEngine, Run, layer_memory
from tidegate.engine.prefill_link import DirectLink
from tidegate.engine.slot_layout import plan_layout
from tidegate.protocol.messages import Start, TransferId
from tidegate.protocol.topology import SlotPlan

__all__ = ["Rig"]


class NoCopies(PoolCopies):
    """Saves that end where they would begin: what is left is the control plane."""

    def reserve(self, run: int, tokens: int) -> bool:
        return True

    def begin(self, run: int, start: Start, blocks: tuple[int, ...]) -> int:
        return 0

    def save(self, step: TransferId, work: Work, on_end: Callable[[TransferId, Outcome], None]) -> None:
        self._post(lambda: on_end(step, Outcome(True, True)))

    def finish(self, run: int, chunk: int) -> None:
        """Nothing was allocated."""

    def end(self, run: int) -> None:
        """Nothing is pinned."""


class Rig:
    """layers over `buffers` shared slots (None: each has its own); prompts of `chunks` chunks of `chunk_tokens` tokens, `requests` of them
    on their way together.

    copies: False for rows that are neither saved nor pulled; batched: all requests in one step, as servers do, or one after the other.
    """

    def __init__(
        self, *, layers: int, buffers: int | None, chunks: int, chunk_tokens: int, block_size: int, widths: dict[str, int], dtype: str,
        requests: int = 1, copies: bool = True, batched: bool = False,
    ) -> None:  # fmt: skip
        self.layers, self.chunks, self.tokens, self.requests, self.batched = layers, chunks, chunks * chunk_tokens, requests, batched
        own = frozenset(range(1, layers + 1)) if buffers is None else frozenset()
        self.plan = SlotPlan.make(layers=layers, independent=own, buffers=buffers or 0)
        slots = [self.plan.slot_of(layer) for layer in range(1, layers + 1)]
        blocks = -(-self.tokens // block_size) * requests
        self.memory = layer_memory(plan_layout(slots, widths, dtype, blocks=blocks, block_size=block_size))
        self.memory.bytes[:] = 1
        self.engine = PrefillEngine(self.memory, plan=self.plan, chunk_tokens=chunk_tokens, lanes=requests if batched else 1,
                                    on_crash=lambda error: print(repr(error)))  # fmt: skip
        self.pool = LocalPool(extent_layout(self.memory.layout), extents=blocks)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        kinds = tuple(RowKind(name, dtype, width) for name, width in widths.items())
        sizes = Sizes(layers, block_size, blocks, self.tokens, requests, kinds, copies)
        command = [sys.executable, str(Path(__file__).with_name("sink.py")), msgspec.json.encode(sizes).decode()]
        self._decode = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self._decode.stdin is not None
        assert self._decode.stdout is not None
        self._in, self._out, self.decode_pid = self._decode.stdin, self._decode.stdout, self._decode.pid
        kind = PoolCopies if copies else NoCopies
        self.engine.attach(
            copies=kind(self.pool, self.memory, span=self.engine.core.span, post=self.engine.owner.post),
            links=DirectLink(self.engine.owner, self.context, int(self._out.readline()), self.engine.hello, self.engine.core),
        )
        self.engine.open()

    def prefill(self, compute: Callable[[int, int], float] | None = None) -> float:
        """The prompts; seconds from the first layer of the first until every layer of all is acknowledged.

        compute: (chunk, layer) -> seconds that the layer's work takes, a fifth of them before its rows are written.
        """
        self._in.write("\n")
        began, together = 0.0, self.requests if self.batched else 1
        for _ in range(0, self.requests, together):
            runs = [run for _ in range(together) if (run := self.engine.next_run()) is not None]
            began = began or time.perf_counter()
            for chunk in range(1, self.chunks + 1):
                self._chunk(runs, chunk, compute)
        for _ in range(self.requests):
            if (verdict := self.engine.core.ended.get())[1] != "done":
                raise RuntimeError(str(verdict))
        took = time.perf_counter() - began
        if (said := self._out.readline().strip()) != "ok":
            raise RuntimeError(said)
        return took

    def _chunk(self, runs: Sequence[Run], chunk: int, compute: Callable[[int, int], float] | None) -> None:
        engine = self.engine
        engine.start_all([(run, chunk) for run in runs])
        for layer in range(self.layers):
            seconds = compute(chunk, layer) if compute else 0.0
            engine.wait_for_all(layer)
            self._work(seconds / 5)
            engine.kv_written(layer)
            self._work(seconds * 4 / 5)
            engine.layer_done(layer)

    @staticmethod
    def _work(seconds: float) -> None:
        if seconds:
            time.sleep(seconds)

    def close(self) -> dict[str, float]:
        stats = self.engine.close()
        self._decode.communicate()
        self.memory.close()
        self.context.term()
        return stats
