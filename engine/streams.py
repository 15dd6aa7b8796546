"""Streams and events: in which order device work runs, and how to know that it has come somewhere.

Rules: work of one stream runs in the order it was queued, work of two streams in any order but where an event orders it; an event
stands for the work queued before its record and no other; after an error a stream runs nothing more, and whoever waits for it or for
one of its later events hears of the error.  On the CPU a stream is a real thread with a queue, so that overlap and races are real.
On accelerators `torch.cuda` and `torch.npu` do the work; that part of this module has not been run on such a device yet.

A test gives a CPU stream a `delay`: seconds to wait before a piece of work, by its name.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["CpuEvent", "CpuStream", "DeviceEvent", "DeviceStream", "Event", "Stream", "open_stream"]

Delay = Callable[[str], float]


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Has everything before it ended?  Never blocks."""

    def synchronize(self) -> None:
        """Block until it has; raises the stream's error if that came first.  From any thread."""


class Stream(Protocol):
    """A queue of work.  Queue from one thread at a time."""

    def run(self, work: Callable[[], Any], name: str = "") -> None:
        """Queue `work`.  On a device `work` is called at once, and what it launches is queued."""

    def record(self) -> Event:
        """An event that stands for everything queued so far."""

    def wait(self, event: Event) -> None:
        """What is queued from now on begins only when `event` has come.  Does not block the caller."""

    def synchronize(self) -> None:
        """Block until everything queued so far has ended; raises the first error of its work."""

    def close(self) -> None:
        """Let everything queued end, then end the stream."""


class CpuEvent:
    """An `Event` of a CpuStream."""

    def __init__(self) -> None:
        self._come = threading.Event()
        self._error: BaseException | None = None

    def query(self) -> bool:
        return self._come.is_set()

    def synchronize(self) -> None:
        self._come.wait()
        if self._error is not None:
            raise self._error

    def happen(self, error: BaseException | None) -> None:
        """The stream has come here."""
        self._error = error
        self._come.set()


class CpuStream:
    """A `Stream` of one thread."""

    def __init__(self, name: str, *, delay: Delay | None = None) -> None:
        self.name, self._delay = name, delay
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], str] | CpuEvent | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._pending = 0
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """How many pieces of work are queued or under way."""
        return self._pending

    def _count(self, change: int) -> None:
        with self._lock:
            self._pending += change

    def run(self, work: Callable[[], Any], name: str = "") -> None:
        if self._closed:
            raise RuntimeError(f"stream {self.name} is closed: nothing more can be queued")
        self._count(1)
        self._queue.put((work, name))

    def record(self) -> CpuEvent:
        event = CpuEvent()
        if self._closed:
            raise RuntimeError(f"stream {self.name} is closed: nothing more can be queued")
        self._queue.put(event)
        return event

    def wait(self, event: Event) -> None:
        self.run(event.synchronize, "wait")

    def synchronize(self) -> None:
        self.record().synchronize()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, CpuEvent):
                item.happen(self._error)
                continue
            if self._error is None:
                self._one(*item)
            del item  # the memory that it names may be let go of now, and the next may be long in coming
            self._count(-1)

    def _one(self, work: Callable[[], Any], name: str) -> None:
        if self._delay is not None and (seconds := self._delay(name)) > 0:
            time.sleep(seconds)
        try:
            work()
        except BaseException as error:
            self._error = error


class DeviceEvent:
    """An `Event` of torch.cuda or torch.npu."""

    def __init__(self, event: Any) -> None:
        self.native = event

    def query(self) -> bool:
        return bool(self.native.query())

    def synchronize(self) -> None:
        self.native.synchronize()


class DeviceStream:
    """A `Stream` of torch.cuda or torch.npu; `native` may be given, such as the stream that a model computes on."""

    def __init__(self, module: Any, native: Any = None) -> None:
        self._module = module
        self.native = module.Stream() if native is None else native

    def run(self, work: Callable[[], Any], name: str = "") -> None:
        with self._module.stream(self.native):
            work()

    def record(self) -> DeviceEvent:
        return DeviceEvent(self.native.record_event())

    def wait(self, event: Event) -> None:
        if not isinstance(event, DeviceEvent):
            raise TypeError("a device stream waits for events of its device only: synchronize with a CPU event before queueing")
        self.native.wait_event(event.native)

    def synchronize(self) -> None:
        self.native.synchronize()

    def close(self) -> None:
        self.synchronize()


def open_stream(device: str, name: str, *, delay: Delay | None = None) -> Stream:
    """A new stream on "cpu", "cuda" or "npu"; OSError, naming the device, where torch has none here."""
    if device == "cpu":
        return CpuStream(name, delay=delay)
    if device not in ("cuda", "npu"):
        raise ValueError(f"device is {device!r}: choose cpu, cuda or npu")
    import torch  # here, for what only copies bytes on the host does without it

    module = getattr(torch, device, None)
    if module is None or not module.is_available():
        raise OSError(f"device {device} is not available to torch {torch.__version__} here: use cpu, or install its driver and plug-in")
    if delay is not None:
        raise ValueError(f"a delay can be injected into CPU streams only, not on {device}")
    return DeviceStream(module)
