"""Records what happened in a process as JSON lines: physical events from the data path, machine events from whoever
owns one.

Rules: a line gets its number under a lock, so `seq` is a total order within the process and has no gap; a line is the operating
system's before what it tells of has an effect, so that of a process that is killed nothing is missing from which anything followed;
nothing here reads a clock, for clocks order nothing between processes; a line that cannot be written as JSON gets no number;
recording is off unless a Recorder is passed in, and `NULL` costs one attribute look-up (ask `enabled` before a tag is
computed for it).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from tidegate.kernels.copy import as_bytes


class Recording(Protocol):
    """What the data path needs of a recorder."""

    @property
    def enabled(self) -> bool:
        """False where a line about bytes would be thrown away."""

    @property
    def hears(self) -> bool:
        """False where a line about the sessions would be; true wherever `enabled` is."""

    @property
    def by_range(self) -> bool:
        """Is a tag due for each range, beside the one for all?  Where ranks share out the rows of a step, no two of them move the same."""

    def record(self, kind: str, **fields: Any) -> None:
        """Add one line; it outlives this process from then on."""


class Recorder:
    """Writes lines `{"process": .., "seq": 0, 1, .., "kind": .., **fields}` to a new file at `path`.

    by_range: as `Recording` says.  Raises FileExistsError where the file is there: two runs in one trace would be two histories with one
    name.
    """

    enabled = hears = True

    def __init__(self, path: Path | str, process: str, *, by_range: bool = False) -> None:
        self.path, self.process, self.by_range = Path(path), process, by_range
        self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 - closed by close()
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._seq = 0

    @property
    def life(self) -> str:
        """What the instance is called in the trace, all its ranks together: `process` without the rank."""
        return self.process.rpartition("-")[0]

    def record(self, kind: str, **fields: Any) -> None:
        """Add one line; ValueError after close, or for a field named as one of the recorder's own."""
        if not fields.keys().isdisjoint(("process", "seq")):
            raise ValueError(f"fields {sorted(fields)} of a {kind!r} line: process and seq are the recorder's own names")
        rest = self._encoder.encode(fields)
        with self._lock:
            if self._file.closed:
                raise ValueError(f"recorder {self.path} is closed: the {kind!r} line came too late")
            head = self._encoder.encode({"process": self.process, "seq": self._seq, "kind": kind})
            left = memoryview((head[:-1] + b"," + rest[1:] if fields else head) + b"\n")
            while left:
                left = left[self._file.write(left) or 0 :]
            self._seq += 1

    def close(self) -> None:
        """Close the file; again does nothing."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class NullRecorder:
    """Records nothing."""

    enabled = hears = by_range = False
    life = ""

    def record(self, kind: str, **fields: Any) -> None:
        pass

    def close(self) -> None:
        pass


NULL = NullRecorder()


def content_tag(*buffers: Any) -> str:
    """16 hex digits that name the bytes of `buffers`, one after another (torch or numpy memory, or anything with a
    buffer).
    """
    digest = hashlib.blake2b(digest_size=8)
    for buffer in buffers:
        digest.update(as_bytes(buffer).data)
    return digest.hexdigest()


def range_tags(buffers: Sequence[Any]) -> list[str]:
    """The tag of each of `buffers`."""
    return [content_tag(buffer) for buffer in buffers]


def read_lines(path: Path | str) -> list[Mapping[str, Any]]:
    """The lines of one recording; ValueError naming the first line that is cut off or out of sequence."""
    lines: list[Mapping[str, Any]] = []
    for number, raw in enumerate(Path(path).read_bytes().splitlines(keepends=True)):
        try:
            line = msgspec.json.decode(raw, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}:{number + 1}: {error}: the recording is damaged or its process died in a line") from error
        if line.get("seq") != number:
            raise ValueError(f"{path}:{number + 1}: seq is {line.get('seq')!r}, {number} is due: a line is missing or moved")
        lines.append(line)
    return lines
