"""What the sessions of every process were told, kept for `tidegate coverage`, whoever started the process and whether it has a trace.

Rules: only where TIDEGATE_TRACES names a folder; a process writes into a folder of its own there, line by line, so that what a process
that is killed was told is known up to its death; a worker whose code came on its command line (tests plant mistakes so) is not the
product, and writes nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tidegate.engine.recorder import NullRecorder, Recorder

__all__ = ["EventsToo", "with_events"]

FOLDER = "TIDEGATE_TRACES"
KINDS = ("header", "event", "end")


class EventsToo:
    """Records with `inner`; of a header, of events and of the end also in `own`, at once."""

    hears = True

    def __init__(self, inner: Recorder | NullRecorder, own: Recorder) -> None:
        self._inner, self._own = inner, own
        self.enabled, self.by_range, self.life = inner.enabled, inner.by_range, inner.life

    def record(self, kind: str, **fields: Any) -> None:
        if kind in KINDS:
            self._own.record(kind, **fields)
        if self._inner.hears:
            self._inner.record(kind, **fields)

    def close(self) -> None:
        self._inner.close()
        self._own.close()


def with_events(inner: Recorder | NullRecorder, name: str) -> Recorder | NullRecorder | EventsToo:
    """`inner`, or what also keeps the events where they are asked for.  name: of the process.  OSError if the folder takes none."""
    folder = os.environ.get(FOLDER)
    if not folder or sys.argv[0] == "-c":
        return inner
    own = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=folder)) / f"{name}.jsonl"
    return EventsToo(inner, Recorder(own, name))
