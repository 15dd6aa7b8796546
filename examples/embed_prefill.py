"""A Prefill worker without a model: the embedding API from beginning to end, in a process of its own.

It "computes" a known pattern into 6 layers over 3 buffers, in chunks, reads back what the pool loaded of earlier chunks, and has
Decode (`embed_decode.py`, another process) check every row that it pulled.

    python examples/embed_prefill.py [TRACE_DIRECTORY]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
import zmq
from embed_decode import BLOCK, CHUNK, LAYERS, PROMPTS, WIDTHS, pattern

from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_copies import PoolCopies, extent_layout
from tidegate.engine.prefill_engine import Place, PrefillEngine, Run, Step, layer_memory
from tidegate.engine.prefill_link import DirectLink
from tidegate.engine.recorder import NULL, Recorder
from tidegate.engine.slot_layout import plan_layout
from tidegate.protocol.topology import SlotPlan

PLAN = SlotPlan.make(layers=LAYERS, independent=frozenset({1}), buffers=2)


def tokens_of(place: Place, name: str, first: int, end: int) -> torch.Tensor:
    """A copy of the rows of tokens [first, end), as an attention kernel would find them."""
    return torch.stack([place.views[name][place.blocks[t // BLOCK], t % BLOCK] for t in range(first, end)])


def compute(engine: PrefillEngine, run: Run, step: Step) -> None:
    """One chunk through every layer."""
    for layer in range(LAYERS):
        place = engine.wait_for_layer(layer)
        for name, view in place.views.items():
            rows = pattern(layer, step.first, step.end, WIDTHS[name])
            for token in range(step.first, step.end):
                view[place.blocks[token // BLOCK], token % BLOCK] = rows[token - step.first]
        engine.kv_written(layer)
        for name in place.views:  # "attention": it reads every row so far, those of earlier chunks included
            assert torch.equal(tokens_of(place, name, 0, step.end), pattern(layer, 0, step.end, WIDTHS[name]))
        engine.layer_done(layer)
    engine.wait_for_save()


def main(trace: str = "") -> int:
    if trace:
        Path(trace).mkdir(parents=True, exist_ok=True)
    decode = subprocess.Popen([sys.executable, str(Path(__file__).with_name("embed_decode.py")), *([trace] if trace else [])],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert decode.stdout is not None
    recorder = Recorder(Path(trace) / "prefill-0.jsonl", "prefill-0") if trace else NULL
    slots = [PLAN.slot_of(layer) for layer in range(1, LAYERS + 1)]
    memory = layer_memory(plan_layout(slots, WIDTHS, "int8", blocks=10, block_size=BLOCK))
    engine = PrefillEngine(memory, plan=PLAN, chunk_tokens=CHUNK, poison=True, recorder=recorder, say=print)
    pool = LocalPool(extent_layout(memory.layout), extents=20, recorder=recorder)
    copies = PoolCopies(pool, memory, span=engine.core.span, post=engine.owner.post)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    engine.attach(copies=copies, links=DirectLink(engine.owner, context, int(decode.stdout.readline()), engine.hello, engine.core))
    engine.open()
    for run in filter(None, (engine.next_run() for _ in PROMPTS)):
        for chunk in range(1, run.chunks + 1):
            compute(engine, run, engine.start(run, chunk))
    said = [decode.stdout.readline() for _ in PROMPTS]
    print(*said, sep="", end="")
    print({name: round(value, 3) for name, value in engine.close().items()})
    decode.communicate()
    recorder.close()
    memory.close()
    context.term()
    return int(decode.returncode != 0 or not all("is right" in line for line in said))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
