"""Streams: in order within one, any order between two, and events that stand for exactly what was before them."""

import threading
import time
import weakref
from functools import partial

import pytest

from tidegate.engine.streams import CpuStream, DeviceStream, open_stream


@pytest.fixture
def streams():
    made = [CpuStream("one"), CpuStream("two")]
    yield made
    for stream in made:
        stream.close()


def test_work_of_one_stream_is_in_order_and_off_the_callers_thread(streams):
    one, _ = streams
    seen = []
    for number in range(100):
        one.run(lambda number=number: seen.append((number, threading.get_ident())))
    one.synchronize()
    assert [number for number, _ in seen] == list(range(100))
    assert threading.get_ident() not in {thread for _, thread in seen}


def test_two_streams_overlap_and_an_event_orders_them(streams):
    one, two = streams
    met = threading.Barrier(2, timeout=10)
    one.run(met.wait)
    two.run(met.wait)  # only if both run at once
    go, seen = threading.Event(), []
    one.run(go.wait)
    one.run(lambda: seen.append("one"))
    event = one.record()
    one.run(lambda: seen.append("later"))
    two.run(lambda: seen.append("before"))
    before = two.record()
    two.wait(event)
    two.run(lambda: seen.append("two"))
    before.synchronize()
    assert seen == ["before"]
    assert not event.query()
    go.set()
    two.synchronize()
    assert event.query()
    one.synchronize()
    assert seen[:2] == ["before", "one"]
    assert sorted(seen[2:]) == ["later", "two"]


def test_an_event_does_not_stand_for_what_comes_after_it(streams):
    one, _ = streams
    hold = threading.Event()
    event = one.record()
    one.run(hold.wait)
    event.synchronize()
    assert not one.record().query()
    hold.set()


def test_after_an_error_nothing_runs_and_everybody_hears_of_it(streams):
    one, two = streams
    fine = one.record()
    one.run(lambda: 1 / 0)
    seen = []
    one.run(lambda: seen.append("after"))
    two.wait(one.record())
    two.run(lambda: seen.append("other"))
    fine.synchronize()
    for stream in streams:
        with pytest.raises(ZeroDivisionError):
            stream.synchronize()
    assert seen == []


def test_a_delay_comes_before_the_work_that_it_names():
    asked, order, hold = [], [], threading.Event()

    def delay(name):
        asked.append(name)
        hold.wait(10)
        return 0.01

    stream = CpuStream("slow", delay=delay)
    stream.run(lambda: order.append("load"), "load")
    stream.run(lambda: order.append("rest"))
    assert order == []  # the caller went on
    hold.set()
    stream.close()
    assert (order, asked) == (["load", "rest"], ["load", ""])
    stream.close()
    for use in (lambda: stream.run(print), stream.record):
        with pytest.raises(RuntimeError, match="stream slow is closed"):
            use()


class Native:
    """Writes down what a device would be told."""

    def __init__(self, said, name="stream"):
        self.said, self.name = said, name

    def __call__(self):
        return self

    def __enter__(self):
        self.said.append("enter")

    def __exit__(self, *_):
        self.said.append("leave")

    def record_event(self):
        return Native(self.said, "event")

    def wait_event(self, event):
        self.said.append(f"wait {event.name}")

    def query(self):
        return 1

    def synchronize(self):
        self.said.append(f"synchronize {self.name}")


def test_a_device_stream_hands_everything_to_its_library():
    said = []
    module = type("module", (), {"Stream": Native(said), "stream": staticmethod(lambda native: native)})
    stream = DeviceStream(module)
    stream.run(lambda: said.append("work"))
    event = stream.record()
    stream.wait(event)
    assert event.query()
    event.synchronize()
    stream.close()
    assert said == ["enter", "work", "leave", "wait event", "synchronize event", "synchronize stream"]
    with pytest.raises(TypeError, match="synchronize with a CPU event"):
        stream.wait(CpuStream("x").record())


def test_devices_that_are_not_here_are_named():
    stream = open_stream("cpu", "s")
    stream.close()
    with pytest.raises(OSError, match="device npu is not available"):
        open_stream("npu", "s")
    with pytest.raises(ValueError, match="choose cpu, cuda or npu"):
        open_stream("tpu", "s")


def test_what_is_under_way_counts_as_pending(streams):
    one, _ = streams
    begun, hold = threading.Event(), threading.Event()
    one.run(lambda: (begun.set(), hold.wait(10)))
    one.run(begun.set)
    assert begun.wait(10)
    assert one.pending == 2
    hold.set()
    one.synchronize()
    assert one.pending == 0


def test_a_stream_holds_nothing_of_what_is_done() -> None:
    """A peer that has gone is unmapped only when nobody names its memory: a waiting thread must not."""

    class Memory:
        pass

    memory = Memory()
    gone = weakref.ref(memory)
    stream = CpuStream("idle")
    stream.run(partial(id, memory))
    del memory
    while stream.pending:  # an event after it would take its place
        time.sleep(0.001)
    assert gone() is None
    stream.close()
