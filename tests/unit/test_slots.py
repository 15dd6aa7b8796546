"""Layer memory: what a layout refuses, who can write, and what a killed Prefill leaves."""

import contextlib
import fcntl
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tidegate.engine import slot_layout, slots
from tidegate.engine.slot_layout import check_layout, layout_digest, plan_layout

WIDTHS = {"main": 576, "index": 128}


def layout(slot_of_layer=(0, 1, 0, 1)):
    return plan_layout(slot_of_layer, WIDTHS, "bfloat16", blocks=5, block_size=4)


@pytest.fixture
def memory():
    memory = slots.SharedMemory.allocate(layout())
    yield memory
    memory.close()


@pytest.fixture
def address():
    return f"tidegate-test-{uuid.uuid4()}"


def test_layers_share_slots_and_areas_do_not_overlap(memory):
    plan = memory.layout
    assert plan.slots == 2
    assert plan.layers(1) == (1, 3)
    for value, (slot, name) in enumerate((slot, name) for slot in range(2) for name in WIDTHS):
        memory.view(slot, name).fill_(value + 1)
    for value, (slot, name) in enumerate((slot, name) for slot in range(2) for name in WIDTHS):
        area = plan.area(slot, name)
        assert (memory.view(slot, name) == value + 1).all()
        assert area.offset % slot_layout.PAGE == 0
        assert memory.view(slot, name).shape == (5, 4, WIDTHS[name])
        assert len(memory.bytes[area.offset : area.offset + plan.area_bytes(area)]) == 5 * 4 * WIDTHS[name] * 2
    with pytest.raises(ValueError, match="slot 2 has no main area"):
        plan.area(2, "main")


def test_tokens_lie_in_the_blocks_that_a_run_owns(memory):
    plan, row = memory.layout, 576 * 2
    area = plan.area(1, "main")
    ranges = [(area.offset + at * row, rows * row) for at, rows in ((4 * 4 + 3, 1), (0, 4), (2 * 4, 2))]
    assert plan.token_ranges(area, [4, 0, 2], 7, 14) == ranges
    views = memory.token_views(1, [4, 0, 2], 7, 14)
    assert [tuple(view.shape) for view in views] == [(rows, width) for width in (576, 128) for rows in (1, 4, 2)]
    for value, view in enumerate(views, 1):
        view.fill_(value)
    found = [memory.bytes[at : at + size].view(np.uint16) for at, size in memory.token_ranges(1, [4, 0, 2], 7, 14)]
    assert [set(piece.tolist()) for piece in found] == [{bits} for bits in (0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0)]
    assert int((memory.view(1, "main") != 0).sum()) == 7 * 576  # and no other row


@pytest.mark.parametrize(("blocks", "tokens", "message"), [
    ([5], (0, 4), r"block 5 is outside Prefill's blocks 0\.\.4 of 4 tokens"), ([-1], (0, 4), "block -1 is outside"),
    ([0], (0, 5), "lie in 2 blocks of 4; 1 block ids were given"), ([0, 1], (4, 8), "lie in 1 blocks of 4; 2"),
    ([0, 0], (3, 5), "name one twice"), ([], (4, 4), "at least one"), ([0], (-1, 3), "begins at 0 or later"),
    ([2**62], (0, 4), "block 4611686018427387904 is outside"),
])  # fmt: skip
def test_foreign_missing_and_repeated_blocks_are_refused(blocks, tokens, message):
    with pytest.raises(ValueError, match=message):
        layout().token_pieces(blocks, *tokens)


OWN = ("version", "size", "slot_of_layer", "blocks", "block_size", "kinds_of_layer")


def changed(plan, area=0, keep_digest=False, **fields):
    """`plan` with fields of one area (or of itself) changed, and the digest made right."""
    own = {name: fields.pop(name) for name in list(fields) if name in OWN}
    areas = list(plan.areas)
    areas[area] = msgspec.structs.replace(areas[area], **fields)
    plan = msgspec.structs.replace(plan, areas=tuple(areas), **own)
    return plan if keep_digest else msgspec.structs.replace(plan, digest=layout_digest(plan))


WRONG = [
    ({"version": 1}, "version 1: this side speaks 3"),
    ({"blocks": 4, "keep_digest": True}, "does not belong to this layout"),
    ({"block_size": 2, "keep_digest": True}, "does not belong to this layout"),
    ({"size": 4096}, "the peer described other memory"),
    ({"area": 3, "width": 10**6}, "ends at byte"),
    ({"area": 3, "offset": 2**62, "width": 2**61}, "ends at byte"),
    ({"blocks": 10**6}, "ends at byte"),
    ({"area": 1, "offset": 0}, "inside slot 0"),
    ({"area": 1, "name": "main", "slot": 0}, "one area of a slot twice"),
    ({"offset": 1}, "begins at byte 1, which bfloat16 cannot"),
    ({"width": 0}, "sizes start at 1"),
    ({"blocks": 0}, "0 blocks of 4 tokens"),
    ({"block_size": -1}, "blocks of -1 tokens"),
    ({"offset": -2}, "numbers at 0"),
    ({"dtype": "float8"}, "dtype is 'float8'"),
    ({"slot_of_layer": (0, 1, 2)}, "use each"),
    ({"slot_of_layer": (0, 0)}, "use each"),
    ({"kinds_of_layer": (("main", "index"),) * 3}, "says of 3 layers what rows they have, and has 4"),
    ({"kinds_of_layer": (("main", "index"), ("main",), ("main",), ("main",))}, "each area some layer's"),
    ({"kinds_of_layer": (("main", "index", "scale"), ("main", "index"), ("main",), ("main",))}, "each area some layer's"),
    ({"kinds_of_layer": (("main", "index"), ("main", "index"), (), ("main",))}, "each layer some, once"),
    ({"kinds_of_layer": (("main", "index"), ("main", "index"), ("main", "main"), ("main",))}, "each layer some, once"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_layout_that_contradicts_itself_or_the_memory_is_refused(change, message):
    plan = layout()
    check_layout(plan, plan.size)
    with pytest.raises(ValueError, match=message):
        check_layout(changed(plan, **change), plan.size)


def test_a_layer_has_rows_in_some_areas_of_its_slot():
    """Layers 3 and 5 have no indexer: slot 0 has its area for layer 1, slot 2 has none at all."""
    kinds = [("main", "index"), ("main", "index"), ("main",), ("main", "index"), ("main",)]
    plan = plan_layout((0, 1, 0, 1, 2), WIDTHS, "bfloat16", blocks=5, block_size=4, kinds_of_layer=kinds)
    assert [[area.name for area in plan.areas_of(slot)] for slot in range(3)] == [["main", "index"], ["main", "index"], ["main"]]
    names = [tuple(area.name for area in plan.areas_of(slot, layer)) for layer, slot in enumerate(plan.slot_of_layer)]
    assert names == kinds
    memory = slots.SharedMemory.allocate(plan)
    assert [*memory.views(0, 2)] == ["main"]
    assert [*memory.views(0)] == ["main", "index"]
    assert [view.shape[1] for view in memory.token_views(0, [1], 0, 2, layer=2)] == [576]
    assert len(memory.token_ranges(0, [1], 0, 2, layer=0)) == 2 * len(memory.token_ranges(0, [1], 0, 2, layer=2))
    memory.close()
    assert plan.digest != plan_layout((0, 1, 0, 1, 2), WIDTHS, "bfloat16", blocks=5, block_size=4).digest
    full = plan_layout((0, 1), WIDTHS, "bfloat16", blocks=5, block_size=4, kinds_of_layer=[("index", "main")] * 2)
    assert full == plan_layout((0, 1), WIDTHS, "bfloat16", blocks=5, block_size=4), "where all have all there is nothing to say"


def test_a_skipped_slot_and_an_unknown_dtype_are_refused():
    with pytest.raises(ValueError, match="skip none"):
        plan_layout([0, 2], WIDTHS, "bfloat16", blocks=1, block_size=4)
    with pytest.raises(ValueError, match="dtype is 'int4'"):
        plan_layout([0], WIDTHS, "int4", blocks=1, block_size=4)


def test_a_reader_sees_writes_and_cannot_write(memory, address):
    server = slots.MemoryServer(memory, address)
    reader = slots.fetch_memory(address)
    assert reader.layout == memory.layout
    memory.view(1, "index")[3, 1] = 3.5
    [(offset, length)] = reader.layout.token_ranges(reader.layout.area(1, "index"), [3], 1, 2)
    assert (np.frombuffer(reader.bytes[offset : offset + length].tobytes(), np.uint16) == 0x4060).all()
    assert not reader.writable
    with pytest.raises(ValueError, match="read-only"):
        reader.bytes[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        reader.view(0, "main")
    fd = reader.reader_fd()
    handed = memory.reader_fd()
    assert fcntl.fcntl(handed, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    os.close(handed)
    for attempt in (lambda: mmap.mmap(fd, 4096), lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 0)):
        with pytest.raises(OSError, match=r"Permission denied|Bad file|not permitted|Invalid"):
            attempt()
    with pytest.raises(PermissionError):  # even through a descriptor that was opened for writing again
        os.pwrite(again := os.open(f"/proc/self/fd/{fd}", os.O_RDWR), b"x", 0)
    os.close(fd)
    reader.close()
    reader.close()
    server.close()
    with pytest.raises(OSError, match="is Prefill running"):
        slots.fetch_memory(address)
    assert not os.get_inheritable(again)
    os.close(again)


def test_memory_that_can_shrink_or_is_short_is_not_mapped():
    plan = layout()
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, plan.size)
    with pytest.raises(ValueError, match="not sealed"):
        slots.SharedMemory.map(loose, plan)
    short = os.memfd_create("short", os.MFD_ALLOW_SEALING)
    os.ftruncate(short, plan.size - 4096)
    fcntl.fcntl(short, fcntl.F_ADD_SEALS, slots.SEALS)
    with pytest.raises(ValueError, match="described other memory"):
        slots.SharedMemory.map(short, plan)
    for fd in (loose, short):
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)


def test_what_is_no_memory_server_is_refused(memory):
    def say(talk, message):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            talk(theirs)
            theirs.close()
            with pytest.raises(ValueError, match=message):
                slots.receive_memory(ours)

    fd = memory.reader_fd()
    before = os.listdir("/proc/self/fd")
    say(lambda peer: None, "0 bytes and 0 descriptors")
    say(lambda peer: peer.sendall(b"GET "), "4 bytes and 0 descriptors")
    say(lambda peer: socket.send_fds(peer, [b"\xff\xff\xff\xff"], [fd]), "at most 1048576")
    say(lambda peer: (socket.send_fds(peer, [b"\0\0\0\x09"], [fd]), peer.sendall(b"{}")), "closed after 2 of 9")
    say(lambda peer: (socket.send_fds(peer, [b"\0\0\0\x02"], [fd]), peer.sendall(b"{}")), "missing required field")
    assert os.listdir("/proc/self/fd") == before
    os.close(fd)


@contextlib.contextmanager
def listening(address, talk=lambda peer: None, backlog=1):
    """Somebody at `address` that does `talk` with the first who comes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind("\0" + address)
        server.listen(backlog)

        def serve():
            with contextlib.suppress(OSError), server.accept()[0] as peer:
                talk(peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_server_that_drips_has_no_more_time_than_one_that_is_mute(memory, address):
    def drip(peer):
        socket.send_fds(peer, [b"\0\0\x10\0"], [fd])
        while True:
            peer.send(b"{")
            threading.Event().wait(0.02)

    fd, before = memory.reader_fd(), None
    with listening(address, drip):
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match=r"has not handed it over in 0\.3 s"):
            slots.fetch_memory(address, timeout=0.3)
    assert len(os.listdir("/proc/self/fd")) <= len(before)
    os.close(fd)


def test_memory_of_another_user_is_not_mapped(memory, address, monkeypatch):
    server, me = slots.MemoryServer(memory, address), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)  # this process is somebody else from here on
    with pytest.raises(PermissionError, match=f"served by user {me}, this is user {me + 1}"):
        slots.fetch_memory(address)
    monkeypatch.undo()
    slots.fetch_memory(address).close()
    server.close()


def test_one_that_takes_nobody_is_there_and_nobody_waits_for_it(address):
    """A stopped Prefill: each look at it stays in its queue, which fills; then a look must not wait for room."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stopped:
        stopped.bind("\0" + address)
        stopped.listen(0)
        answers = []
        looking = threading.Thread(target=lambda: answers.extend(slots.is_served(address) for _ in range(200)), daemon=True)
        looking.start()
        looking.join(60)
        assert answers == [True] * 200
    assert not slots.is_served(address)


def test_an_address_in_use_is_named(memory, address):
    server = slots.MemoryServer(memory, address)
    with pytest.raises(OSError, match="address of its own"):
        slots.MemoryServer(memory, address)
    server.close()


def test_descriptors_are_given_back(memory, address):
    before = os.listdir("/proc/self/fd")
    server = slots.MemoryServer(memory, address)
    for _ in range(5):
        slots.fetch_memory(address).close()
    server.close()  # joins its thread
    assert os.listdir("/proc/self/fd") == before


PREFILL = """
import sys, signal
from tidegate.engine import slots, slot_layout
memory = slots.SharedMemory.allocate(slot_layout.plan_layout([0], {"main": 576}, "bfloat16", blocks=2, block_size=4))
memory.view(0, "main").fill_(2)
server = slots.MemoryServer(memory, sys.argv[1])
print("ready", flush=True)
signal.pause()
"""


def test_a_killed_prefill_leaves_its_reader_alive_and_nothing_else(address):
    prefill = subprocess.Popen([sys.executable, "-c", PREFILL, address], stdout=subprocess.PIPE)
    assert prefill.stdout.readline() == b"ready\n"
    reader = slots.fetch_memory(address)
    prefill.send_signal(signal.SIGKILL)
    prefill.wait()
    prefill.stdout.close()
    assert (np.frombuffer(reader.bytes[: 8 * 576 * 2].tobytes(), np.uint16) == 0x4000).all()
    reader.close()
    with pytest.raises(OSError, match="no memory server"):
        slots.fetch_memory(address)
    assert address not in Path("/proc/net/unix").read_text()
