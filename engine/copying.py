"""Carries out physical copies on worker threads and reports what became of them.

Rules: a job reports an Outcome until it reports one that is `stopped`, which is its last: only then can its memory be
given to anyone (an error is no proof that a copy has stopped); begin and end are recorded here, by the data path, the
end before it is reported; each kind of job has streams of its own, so that loads do not wait for saves; jobs of one
stream run in the order they were submitted; a callback runs on the stream's thread and should only post to its owner.
Faults are injected through a constructor argument, for tests and demonstrations, and absent otherwise.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from tidegate.engine.recorder import NULL, Recording, content_tag, range_tags
from tidegate.engine.streams import CpuStream

log = logging.getLogger(__name__)


class Outcome(msgspec.Struct, frozen=True):
    """What became of a copy, and whether it is known to have stopped."""

    ok: bool
    stopped: bool
    reason: str = ""
    copies: int = 0  # after coalescing
    bytes: int = 0
    seconds: float = 0.0  # from begin to end, an injected delay included


class Work(msgspec.Struct, frozen=True):
    """Which contents of which slot a copy is about, and any names that its events should carry (transfer, layer, run,
    ...).
    """

    slot: int
    epoch: int
    labels: dict[str, int | str] = {}


class Fault(msgspec.Struct, frozen=True):
    """What to inject into one copy.

    ok: only wait.  quiet: fail, and no byte lands.  unknown: report a failure that is not stopped at once, then wait,
    copy all the same, and report the end.  Waiting is for `hold` (if given) to be set, then for `delay` seconds,
    between begin and copy.
    """

    mode: Literal["ok", "quiet", "unknown"] = "ok"
    delay: float = 0.0
    hold: threading.Event | None = None

    def wait(self) -> None:
        if self.hold is not None:
            self.hold.wait()
        if self.delay > 0:
            threading.Event().wait(self.delay)


Faults = Callable[[str, Work], Fault | None]
OnOutcome = Callable[[Outcome], None]


class Job(msgspec.Struct):
    """One copy: `kind` names it in events, `copy` moves the bytes and returns (copies, bytes); the rest says what it
    touches.
    """

    kind: str
    work: Work
    ranges: Sequence[tuple[int, int, int]]  # source offset, destination offset, length in bytes, for the record
    source: Callable[[], Sequence[Any]] | None  # buffers read, for tags; None where they are no memory
    landed: Callable[[], Sequence[Any]] | None  # buffers written, likewise
    copy: Callable[[], tuple[int, int]]
    fields: dict[str, Any] = {}


class CopyWorkers:
    """A few streams for each kind of job; with one (the default) strictly first in, first out."""

    def __init__(self, name: str, *, threads: int = 1, recorder: Recording = NULL, faults: Faults | None = None) -> None:
        if threads < 1:
            raise ValueError(f"{name}: threads is {threads}: at least one must copy")
        self.recorder, self._faults = recorder, faults
        self._name, self._threads = name, threads
        self._lock = threading.Lock()
        self._streams: dict[str, list[CpuStream]] = {}
        self._closed = False

    def _stream(self, kind: str) -> CpuStream:
        """The stream of `kind` that has least to do."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed: nothing more can be copied")
            if kind not in self._streams:
                self._streams[kind] = [CpuStream(f"{self._name}-{kind}-{n}") for n in range(self._threads)]
            return min(self._streams[kind], key=lambda stream: stream.pending)

    def submit(self, job: Job, on_outcome: OnOutcome) -> None:
        """Queue `job`; RuntimeError after close."""
        self._stream(job.kind).run(partial(self._run, job, on_outcome), job.kind)

    def report(self, outcome: Outcome, on_outcome: OnOutcome) -> None:
        """Report what ended before it began, from a stream of its own as any other outcome."""
        self._stream("report").run(partial(self._tell, outcome, on_outcome), "report")

    @staticmethod
    def _tell(outcome: Outcome, on_outcome: OnOutcome) -> None:
        try:
            on_outcome(outcome)
        except Exception:
            log.exception("%s: its owner could not be told", outcome.reason)

    def close(self) -> None:
        """Wait for every queued job to end.  Again does nothing."""
        with self._lock:
            self._closed = True
        for streams in self._streams.values():
            for stream in streams:
                stream.close()

    def _run(self, job: Job, on_outcome: OnOutcome) -> None:
        try:
            self._carry_out(job, on_outcome)
        except Exception:  # a callback's or recorder's error must not vanish in the pool
            log.exception("%s of slot %d epoch %d: its owner could not be told", job.kind, job.work.slot, job.work.epoch)

    def _carry_out(self, job: Job, on_outcome: OnOutcome) -> None:
        fault = (self._faults and self._faults(job.kind, job.work)) or Fault()
        self._record(job, "begin", ranges=job.ranges, tag=job.source)
        if fault.mode == "unknown":
            on_outcome(Outcome(ok=False, stopped=False, reason="injected: failed, and the copy may still land"))
        began = time.monotonic()
        fault.wait()
        outcome = self._copied(job) if fault.mode != "quiet" else Outcome(False, True, "injected: failed, nothing landed")
        if fault.mode == "unknown":
            outcome = Outcome(
                False, True, "injected: the copy that was reported failed has ended", outcome.copies, outcome.bytes
            )
        outcome = msgspec.structs.replace(outcome, seconds=time.monotonic() - began)
        landed = job.landed if outcome.bytes else None
        self._record(job, "end", ok=outcome.ok, bytes=outcome.bytes, tag=job.source, landed=landed)
        on_outcome(outcome)

    @staticmethod
    def _copied(job: Job) -> Outcome:
        try:
            copies, size = job.copy()
        except (OSError, ValueError) as error:  # both come from calls that have returned: nothing is in flight
            return Outcome(ok=False, stopped=True, reason=f"{job.kind} of slot {job.work.slot} epoch {job.work.epoch}: {error}")
        return Outcome(ok=True, stopped=True, copies=copies, bytes=size)

    def _record(self, job: Job, edge: str, **fields: Any) -> None:
        """Add a line; a callable among `fields` gives the buffers whose tag is due, None leaves the field out."""
        if not self.recorder.enabled:
            return
        said, work = {name: x for name, x in fields.items() if x is not None}, job.work
        for name in [name for name, x in said.items() if callable(x)]:
            buffers = said[name]()
            said[name] = content_tag(*buffers)
            if name == "tag" and self.recorder.by_range:
                said["tags"] = range_tags(buffers)
        self.recorder.record(f"{job.kind}_{edge}", slot=work.slot, epoch=work.epoch, **work.labels, **job.fields, **said)


def wait_for(start: Callable[[OnOutcome], None]) -> Outcome:
    """Block until the job that `start` submits reports for the first time."""
    arrived = threading.Event()
    first: list[Outcome] = []

    def on_outcome(outcome: Outcome) -> None:
        if not first:
            first.append(outcome)
            arrived.set()

    start(on_outcome)
    arrived.wait()
    return first[0]
