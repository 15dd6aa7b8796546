"""The parts fit together: shared slots, pool, pull and sparse decode, driven by hand, give the reference tokens; a
read or a save that nobody waited for gives others, which is what makes a skipped gate visible."""

import threading

import numpy as np
import pytest
import torch

from tidegate.engine.copying import Fault, Work
from tidegate.engine.decode_engine import DecodeEngine, RowKind
from tidegate.engine.decode_kv import AttemptBatch
from tidegate.engine.hot_buffer import Reader
from tidegate.engine.model import Model, ModelConfig, greedy, reference_generate
from tidegate.engine.pool_keys import chain_keys, root_key
from tidegate.engine.pool_local import LocalPool
from tidegate.engine.prefill_copies import extent_layout
from tidegate.engine.pull_shm import Part, ShmPull
from tidegate.engine.recorder import Recorder, read_lines
from tidegate.engine.slot_layout import plan_layout
from tidegate.engine.slots import SharedMemory

CONFIG = ModelConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    first_k_dense_replace=4,
    q_lora_rank=32,
    kv_lora_rank=96,
    qk_rope_head_dim=16,
    index_topk=12,
    index_head_dim=32,
)
SLOT_OF_LAYER, CHUNK, NEW = (0, 1, 0, 1), 24, 12
PROMPT = torch.randint(0, 256, (60,), generator=torch.Generator().manual_seed(2)).tolist()
AREAS = {"main": CONFIG.main_width, "index": CONFIG.index_width}
KEYS = chain_keys(root_key("layout", "model"), PROMPT, (24, 48, 60))


class Overwritten(threading.Event):
    """Set once layer 2 has taken the slot of layer 0, which it does not do before the copy that is to wait for it has begun."""

    def __init__(self, waited_for):
        super().__init__()
        self.begun = threading.Event()
        if not waited_for:
            self.begun.set()

    def wait(self, timeout=None):
        self.begun.set()
        return super().wait(timeout)


class Path:
    """PrefillKV of one request over two slots; `wait` says which copies a slot waits for before it is overwritten."""

    def __init__(self, folder, recorder, wait, faults, overwritten):
        self.memory = SharedMemory.allocate(plan_layout(SLOT_OF_LAYER, AREAS, "bfloat16", blocks=1, block_size=len(PROMPT)))
        kinds = [RowKind(name, "bfloat16", width) for name, width in AREAS.items()]
        self.decode = DecodeEngine(kinds, layers=4, blocks=9, block_size=16, rows=1, hot=16, poison=True)
        self.blocks = (3, 0, 7, 1, 8)
        self.store = LocalPool(extent_layout(self.memory.layout), 3, folder=folder, recorder=recorder, faults=faults)
        self.backend = ShmPull(recorder=recorder, faults=faults)
        self.backend.connect("p0", self.memory)
        for name, pages in self.decode.memory.pages.items():
            self.backend.register(name, pages.memory, pages.spans(self.blocks))
        self.wait, self.open, self.epoch = wait, {0: [], 1: []}, 0
        self.overwritten = overwritten

    def view(self, layer, first, end):
        return [self.memory.view(SLOT_OF_LAYER[layer], name)[0, first:end] for name in AREAS]

    def stored(self, layer, chunk):
        areas = self.memory.layout.areas_of(SLOT_OF_LAYER[layer])
        offsets = np.array([[area.offset + chunk * CHUNK * area.row_bytes for area in areas]])
        work = Work(self.work.slot, self.work.epoch, self.work.labels | {"pool_chunk": chunk})
        return [KEYS[chunk]], layer, self.memory.bytes, offsets, work

    def begin_chunk(self, chunk, start, end):
        self.chunk, self.start, self.end = chunk, start, end
        assert self.store.allocate([KEYS[chunk]], [end - start]) == ["new"]

    def wait_for_layer(self, layer):
        slot = SLOT_OF_LAYER[layer]
        for kind, ended in self.open[slot]:
            assert kind not in self.wait or ended.wait(10)
        self.open[slot] = []
        if layer == 2:
            assert self.overwritten.begun.wait(60)
        self.epoch += 1
        self.work = Work(slot, self.epoch, {"layer": layer, "chunk": self.chunk})
        for view in self.view(layer, 0, len(PROMPT)):
            view.view(torch.uint8).fill_(0xFF)  # whatever the last owner left is poison
        if layer == 2:
            self.overwritten.set()
        for chunk in range(self.chunk):
            self.store.pin([KEYS[chunk]])
            self.finished(lambda done, chunk=chunk: self.store.load(*self.stored(layer, chunk), done)).wait(10)
            self.store.unpin([KEYS[chunk]])
        return dict(zip(AREAS, self.view(layer, 0, len(PROMPT)), strict=True))

    def kv_written(self, layer):
        save = self.finished(lambda done: self.store.save(*self.stored(layer, self.chunk), done))
        parts = []
        for name in AREAS:
            area = self.memory.layout.area(SLOT_OF_LAYER[layer], name)
            [(source, size)] = self.memory.layout.token_ranges(area, [0], self.start, self.end)
            to = self.decode.memory.pages[name].ranges(layer, self.blocks, self.start, self.end)
            sizes = [length for _, length in to]
            assert size == sum(sizes)
            sources = [source + sum(sizes[:n]) for n in range(len(sizes))]
            parts.append(Part(name, sources, [at for at, _ in to], sizes))
        read = self.finished(lambda done: self.backend.submit("p0", parts, self.work, done))
        self.open[SLOT_OF_LAYER[layer]] += [("save", save), ("read", read)]

    def layer_done(self, layer):
        pass

    @staticmethod
    def finished(start):
        ended = threading.Event()
        start(lambda outcome: ended.set() if outcome.stopped else None)
        return ended

    def end_chunk(self):
        for _, ended in self.open[0] + self.open[1]:
            assert ended.wait(10)
        self.store.finish([KEYS[self.chunk]])

    def close(self):
        self.backend.close()
        self.store.close()
        self.memory.close()


def tokens(folder, recorder, wait=("save", "read"), faults=None, overwritten=None):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model, path = Model.random(CONFIG, 4), Path(folder, recorder, wait, faults, overwritten or Overwritten(False))
    for chunk, start in enumerate(range(0, len(PROMPT), CHUNK)):
        path.begin_chunk(chunk, start, min(start + CHUNK, len(PROMPT)))
        model.prefill_chunk(PROMPT[start : start + CHUNK], start, path)
        path.end_chunk()
    path.close()
    path.decode.core.readers[1] = Reader(1, 0, path.blocks, len(PROMPT), layers=4, block_size=16)
    token, got = PROMPT[-1], []
    for position in range(len(PROMPT) - 1, len(PROMPT) - 1 + NEW):
        token = greedy(model.decode_step(AttemptBatch(path.decode, [(token, position, 1)])))[0]
        got.append(token)
    path.decode.open()
    path.decode.close()
    want = reference_generate(model, PROMPT, CHUNK, NEW)[0]
    torch.set_num_threads(before)
    return got, want


def test_the_parts_give_the_reference_tokens_and_events_that_agree(tmp_path):
    recorder = Recorder(tmp_path / "t.jsonl", "both")
    got, want = tokens(tmp_path / "pool", recorder)
    recorder.close()
    assert got == want
    lines, chunks = read_lines(recorder.path), 3
    count = {kind: sum(line["kind"] == kind for line in lines) for kind in ("read_end", "save_end", "load_end")}
    assert count == {"read_end": 4 * chunks, "save_end": 4 * chunks, "load_end": 4 * (0 + 1 + 2)}
    begun = {}
    saved = {}
    for line in lines:
        where = line["kind"].split("_")[0], line["epoch"], line.get("pool_chunk")
        if line["kind"].endswith("begin"):
            begun[where] = line
        elif line["kind"] == "read_end":
            assert line["tag"] == begun[where]["tag"] == line["landed"]
        elif line["kind"] == "save_end":
            saved[line["layer"], line["chunk"]] = line["tag"]
            assert line["tag"] == begun[where]["tag"]
        else:
            assert line["landed"] == saved[line["layer"], line["pool_chunk"]]


@pytest.mark.parametrize("kind", ["read", "save"])
def test_a_slot_overwritten_too_early_shows_in_tokens_and_events(tmp_path, kind):
    recorder = Recorder(tmp_path / "t.jsonl", "both")
    overwritten = Overwritten(True)

    def faults(which, work):
        first = which == kind and (work.labels["layer"], work.labels["chunk"]) == (0, 0)
        return Fault(hold=overwritten) if first else None

    got, want = tokens(tmp_path / "pool", recorder, {"save", "read"} - {kind}, faults, overwritten)
    recorder.close()
    assert got != want
    begun, torn = {}, 0
    for line in read_lines(recorder.path):
        if line["kind"] == f"{kind}_begin":
            begun[line["epoch"]] = line["tag"]
        elif line["kind"] == f"{kind}_end":
            torn += line["tag"] != begun[line["epoch"]]
    assert torn >= 1


def test_a_late_copy_that_is_waited_for_is_harmless(tmp_path):
    recorder = Recorder(tmp_path / "t.jsonl", "both")
    got, want = tokens(tmp_path / "pool", recorder, faults=lambda kind, work: Fault(delay=0.01))
    recorder.close()
    assert got == want
