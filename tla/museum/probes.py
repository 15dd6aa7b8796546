"""Probes of the museum: each asserts one property of the data path, and says in the assertion what is wrong.

Run by spec/museum_probe.py in a process of its own, with and without the fault.
"""

import queue
import threading

import numpy as np
import torch

from tidegate.engine.blocks import BlockAllocator
from tidegate.engine.copying import Fault, Work
from tidegate.engine.hot_buffer import HotBuffers, Reader
from tidegate.engine.paged_rows import PagedRows, RowKind
from tidegate.engine.pool_client import Client
from tidegate.engine.pool_index import Index
from tidegate.engine.pool_layout import ExtentLayout
from tidegate.engine.pool_local import LocalPool
from tidegate.kernels import Residency, forced

BLOCK = 4
KIND = RowKind("main", "float32", 3)


def pages(layers=2, blocks=4):
    """A pool whose rows say layer and row number: 100 * layer + number."""
    memory = torch.arange(blocks * BLOCK, dtype=torch.float32).view(1, blocks, BLOCK, 1).repeat(layers, 1, 1, 3)
    return PagedRows(KIND, (memory + 100 * torch.arange(layers)[:, None, None, None]).contiguous())


def addresses_in_64_bits():
    """AddressBounds: block n of a large pool begins at n times its bytes, and lies inside."""
    kind = RowKind("main", "bfloat16", 512)
    pool = PagedRows(kind, torch.empty(1, 20_000, 128, 512, dtype=torch.bfloat16, device="meta"))
    size = 128 * kind.row_bytes
    for block in (0, 16_383, 16_384, 19_999):
        ((first, last),) = pool.spans([block]).tolist()
        assert (first, last) == (block * size, (block + 1) * size), (
            f"block {block} of {size} bytes each is said to be bytes {first}..{last}"
        )


def layers_have_places_of_their_own():
    """AddressBounds: no two layers of a request share a byte."""
    pool, taken = pages(), {}
    for layer in range(pool.layers):
        for first, length in pool.ranges(layer, [2, 0], 0, 7):
            for byte in range(first, first + length):
                assert taken.setdefault(byte, layer) == layer, f"byte {byte} belongs to layer {taken[byte] + 1} and to layer {layer + 1}"


def blocks_in_pairs():
    """IndexerCover: the blocks that hold some tokens are as many on both sides, whatever the length of the prompt."""
    for tokens in range(1, 3 * BLOCK + 1):
        here, there = BlockAllocator(8, BLOCK), BlockAllocator(8, BLOCK)
        for side in (here, there):
            side.ask(1, tokens + 1)  # a token more is coming
            side.admitted()
        sent, due = len(here.holding(1, 0, tokens)), -(-tokens // BLOCK)
        assert sent == due, f"{tokens} tokens in blocks of {BLOCK}: {sent} blocks are sent, {due} hold them"


def one_slot_for_a_position():
    """ResidencyExact: a position asked for twice takes one slot, and no slot is lost."""
    with forced("torch"):
        table = Residency(1, 4)
        step = table.step(torch.tensor([[9, 9, 4, 5]]), [16], [1])
    slots = step.slots[0].tolist()
    assert slots[0] == slots[1], f"position 9 lies in slots {slots[0]} and {slots[1]}"
    kept = sorted(table.positions[0].tolist())
    assert kept == [-1, 4, 5, 9], f"the table holds positions {kept}"


def rows_of_this_attempt():
    """ResidencyExact: what an attempt reads from its hot row is its own, whoever was in that row before."""
    pool = pages()
    buffers = HotBuffers([pool], rows=1, hot=4)
    for attempt, block in ((5, 0), (5 + 251, 3)):
        reader = Reader(attempt, 0, [block], BLOCK, layers=2, block_size=BLOCK)
        step = buffers.look_up(0, [reader], torch.tensor([[1, 2]]))
        buffers.fetch(0, [reader], step)
        got, due = buffers.memory[0][0, 0, step.slots[0, 0], 0].item(), pool.memory[0, block, 1, 0].item()
        assert got == due, f"attempt {attempt} reads row {got:.0f}, its own is row {due:.0f}"


def new_row_in_the_pool():
    """HostFresh: a row that decode writes is in the host pool when it is read from there."""
    pool = pages()
    reader = Reader(1, 0, [1], 2, layers=2, block_size=BLOCK)
    buffers = HotBuffers([pool], rows=1, hot=2)
    pool.write(0, torch.tensor([reader.place(0, 2)]), torch.full((1, 3), 77.0))
    reader.wrote(0, 2)
    step = buffers.look_up(0, [reader], torch.tensor([[2]]))
    buffers.fetch(0, [reader], step)
    got = buffers.memory[0][0, 0, step.slots[0, 0], 0].item()
    assert got == 77.0, f"the row just written as 77 is read from the host pool as {got:.0f}"


OBJECT = ExtentLayout(rows=4, layers=((8,),), name="probe")  # 32 bytes
A, B = b"a" * 32, b"b" * 32


def a_dead_writer_keeps_no_name():
    """NoneHalfWritten: what a dead process was writing can be written by another."""
    pool = LocalPool(OBJECT, 2)
    try:
        dead = Index(pool._folder.env, Client(2**22 + 1, 1), 2)  # no process has this id
        dead._change(lambda t: t.join(dead._client))
        dead.allocate([A], [4], None)
        (first,) = pool.allocate([A], [4])
        pool.recover()
        (then,) = (first,) if first == "new" else pool.allocate([A], [4])
        assert then == "new", f"an object that a dead process was writing is {first}, and {then} after a recovery: nobody can write it"
    finally:
        pool.close()


def a_load_does_not_outlast_its_pin():
    """FillReadsStored: a load that ended well has read the object that it was asked for."""
    now, hold, outcomes = [0.0], threading.Event(), queue.Queue()
    pool = LocalPool(OBJECT, 1, pin_seconds=10.0, clock=lambda: now[0], faults=lambda kind, _: Fault(hold=hold) if kind == "load" else None)

    def write(key, number):
        pool.allocate([key], [4])
        pool.save([key], 0, np.full(32, number, np.uint8), np.array([[0]]), Work(0, 1), outcomes.put)
        outcomes.get(timeout=30)
        pool.finish([key])

    try:
        write(A, 1)
        pool.pin([A])
        got = np.zeros(32, np.uint8)
        pool.load([A], 0, got, np.array([[0]]), Work(0, 1), outcomes.put)
        now[0] = 11.0
        write(B, 2)
        hold.set()
        outcome = outcomes.get(timeout=30)
        assert not outcome.ok or (got == 1).all(), f"the load of object 1 ended well and read the bytes of object {got[0]}"
    finally:
        hold.set()
        pool.close()
