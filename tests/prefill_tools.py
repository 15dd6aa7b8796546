"""A Prefill engine with a real Decode side in another thread, which checks what it pulls."""

import queue
from contextlib import contextmanager

import torch
import zmq
from embed_decode import BLOCK, CHUNK, LAYERS, WIDTHS, Inbox, pattern

from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_copies import PoolCopies, extent_layout
from tidegate.engine.prefill_engine import PrefillEngine, layer_memory
from tidegate.engine.prefill_link import DirectLink
from tidegate.engine.slot_layout import plan_layout
from tidegate.engine.streams import CpuStream
from tidegate.protocol.topology import SlotPlan

LONG = 130  # three chunks


class Rig:
    """An engine, and the Decode side that checks what it pulls.  run/attention: what to do after a layer's rows are written."""

    def __init__(self, folder, *, buffers=2, blocks=20, extents=40, copy_faults=None, read_faults=None, style="plain", **options):
        self.plan = SlotPlan.make(layers=LAYERS, independent=frozenset({1}), buffers=buffers)
        slots = [self.plan.slot_of(layer) for layer in range(1, LAYERS + 1)]
        self.memory = layer_memory(plan_layout(slots, WIDTHS, "int8", blocks=blocks, block_size=BLOCK))
        self.said, self.style, self.attention = queue.SimpleQueue(), style, lambda layer, chunk: None
        self.computed = 0  # rows
        self.compute = options.get("compute")
        self.engine = engine = PrefillEngine(
            self.memory, plan=self.plan, chunk_tokens=CHUNK, resend_seconds=0.2, say=self.said.put,
            on_crash=lambda error: self.said.put(repr(error)), **({"poison": True} | options),
        )  # fmt: skip
        self.pool = LocalPool(extent_layout(self.memory.layout), extents, folder=folder, faults=copy_faults)
        self.copies = PoolCopies(self.pool, self.memory, span=engine.core.span, post=engine.owner.post)
        self.inbox, self.context = Inbox(faults=read_faults), zmq.Context()
        engine.attach(copies=self.copies, links=DirectLink(engine.owner, self.context, self.inbox.port, engine.hello, engine.core))
        engine.open()

    def close(self):
        self.inbox.close()
        stats = self.engine.close()
        self.memory.close()
        self.context.term()
        return stats

    def outcome(self):
        return self.inbox.outcomes.get(timeout=20)

    def hears(self, text):
        """Wait until the engine has said it."""
        while text not in self.said.get(timeout=10):
            pass

    def write(self, place, layer, step):
        self.computed += step.end - step.begin
        for name, view in place.views.items():
            rows = pattern(layer, step.begin, step.end, WIDTHS[name])
            for token in range(step.begin, step.end):
                view[place.blocks[token // BLOCK], token % BLOCK] = rows[token - step.begin]

    def attend(self, place, layer, step):
        self.attention(layer, step.chunk)
        for name, view in place.views.items():
            rows = torch.stack([view[place.blocks[token // BLOCK], token % BLOCK] for token in range(step.end)])
            assert torch.equal(rows, pattern(layer, 0, step.end, WIDTHS[name])), f"chunk {step.chunk} layer {layer} {name}"

    def layer(self, layer, step):
        engine, place = self.engine, self.engine.wait_for_layer(layer)
        work = [(self.write, "write"), (self.attend, "attend")]
        for number, (what, name) in enumerate(work):
            if self.compute is None:
                what(place, layer, step)
            else:
                self.compute.run(lambda what=what: what(place, layer, step), name)
            if (number == 0) == (self.style == "plain"):
                engine.kv_written(layer)
        engine.layer_done(layer)

    def prefill(self, run):
        for chunk in range(1, run.chunks + 1):
            step = self.engine.start(run, chunk)
            if step.begin == step.end:
                self.engine.copy_step()
                continue
            for layer in range(LAYERS):
                self.layer(layer, step)


@contextmanager
def opened(folder, **options):
    rig = Rig(folder, **options)
    try:
        yield rig
    finally:
        rig.stats = rig.close()


@contextmanager
def compute_stream(delay=None):
    stream = CpuStream("compute", delay=delay)
    try:
        yield stream
        stream.synchronize()
    finally:
        stream.close()
